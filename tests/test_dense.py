"""Dense retrieval: FAISS against plain numpy; vectors survive a kill and are computed once."""

import os
import signal
import subprocess
import sys
from threading import Thread

import numpy as np
import pytest
from filelock import FileLock

from core.cli import read_settings
from core.errors import InputError
from core.settings import RetrievalSettings
from retrieval.dense import DenseRetriever, embeddings_folder, encode_corpus, load_index
from retrieval.engines import build_engine
from tests.conftest import ROOT
from tests.fakes import ListCollection, NumberEncoder, numbers

RNG = np.random.default_rng(0)
SMALL = RNG.integers(-3, 4, (50, 8)).astype(np.float32)


def retriever(folder, vectors, kind="flat", shard=16):
    collection, encoder = ListCollection(folder, numbers(vectors)), NumberEncoder()
    return DenseRetriever(encoder, load_index(kind, collection, encoder, shard), collection)


def test_flat_equals_numpy(tmp_path):
    """Uses whole numbers, so that the order of summation does not matter."""
    queries = RNG.integers(-3, 4, (20, 8)).astype(np.float32)
    expected = queries @ SMALL.T
    for row, hits in zip(expected, retriever(tmp_path, SMALL).search(numbers(queries), 10), strict=True):
        assert [hit.score for hit in hits] == sorted(row.tolist(), reverse=True)[:10]
        assert [row[int(hit.doc[1:])] for hit in hits] == [hit.score for hit in hits]
        assert len({hit.doc for hit in hits}) == 10


def clustered(number, centres):
    vectors = centres[RNG.integers(0, len(centres), number)] + 0.5 * RNG.normal(size=(number, centres.shape[1]))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_approximate_indexes_find_nine_of_ten(tmp_path, kind):
    centres = RNG.normal(size=(150, 32))
    vectors, queries = clustered(3000, centres), clustered(100, centres)
    best = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    rankings = retriever(tmp_path, vectors, kind, 1000).search(numbers(queries), 10)
    shared = [
        len({hit.doc for hit in hits} & {f"d{i}" for i in row}) for hits, row in zip(rankings, best, strict=True)
    ]
    assert np.mean(shared) >= 9
    assert all(a.score >= b.score for hits in rankings for a, b in zip(hits, hits[1:], strict=False))


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_k_above_the_collection(tmp_path, kind):
    hits = retriever(tmp_path, SMALL[:5], kind).search(["1 0 0 0 0 0 0 0"], 100)[0]
    assert sorted(hit.doc for hit in hits) == ["d0", "d1", "d2", "d3", "d4"]


def test_no_queries_give_no_results(tmp_path):
    hits = retriever(tmp_path, SMALL).search(["", "1 1 1 1 1 1 1 1", " \n"], 3)
    assert [len(found) for found in hits] == [0, 3, 0]


def test_a_killed_run_resumes_after_its_last_whole_shard(tmp_path):
    """The process is killed while it computes the second shard; the next one computes the second and the third."""
    collection = ListCollection(tmp_path, numbers(SMALL))
    code = f"""
import os, signal
from pathlib import Path
from retrieval.dense import encode_corpus
from tests.fakes import ListCollection, NumberEncoder
class Dying(NumberEncoder):
    def encode_passages(self, texts):
        if self.seen:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode_passages(texts)
encode_corpus(ListCollection(Path({str(tmp_path)!r}), {numbers(SMALL)!r}), Dying(), 20)
"""
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert killed.returncode == -signal.SIGKILL
    encoder = NumberEncoder()
    folder = embeddings_folder(collection, encoder)
    assert [file.name for file in folder.glob("*.npy")] == ["shard-00000.npy"]
    before = (folder / "shard-00000.npy").stat().st_mtime_ns
    shards = encode_corpus(collection, encoder, 20)
    assert (folder / "shard-00000.npy").stat().st_mtime_ns == before
    assert encoder.seen == 30
    assert np.array_equal(np.concatenate([np.load(shard) for shard in shards]), SMALL)


def test_a_shard_of_another_process_is_waited_for(tmp_path):
    collection, encoder = ListCollection(tmp_path, numbers(SMALL)), NumberEncoder()
    folder = embeddings_folder(collection, encoder)
    folder.mkdir()
    other = FileLock(folder / ".shard-00001.npy.lock")
    other.acquire()
    worker = Thread(target=encode_corpus, args=(collection, encoder, 20), daemon=True)
    worker.start()
    while not (folder / "shard-00002.npy").exists():
        worker.join(0.02)
        assert worker.is_alive()
    assert encoder.seen == 30 and not (folder / "shard-00001.npy").exists()
    other.release()  # without having computed it, like a process that dies
    worker.join(20)
    assert encoder.seen == 50 and np.array_equal(np.load(folder / "shard-00001.npy"), SMALL[20:40])


def test_vectors_and_index_are_made_once_per_plan(tmp_path):
    collection = ListCollection(tmp_path, numbers(SMALL))
    encoders = NumberEncoder(), NumberEncoder(), NumberEncoder("passage: ")
    for encoder in encoders:
        load_index("flat", collection, encoder)
    load_index("hnsw", collection, encoders[1])
    assert [encoder.seen for encoder in encoders] == [50, 0, 50]
    assert len(list(tmp_path.glob("dense-*"))) == 2


def test_damaged_files_are_named(tmp_path):
    collection, encoder = ListCollection(tmp_path, numbers(SMALL)), NumberEncoder()
    shard = encode_corpus(collection, encoder, 20)[1]
    np.save(shard, SMALL[:3])
    with pytest.raises(InputError, match=r"the shards have 33 rows instead of 50; delete them"):
        load_index("flat", collection, encoder, 20)
    shard.write_bytes(shard.read_bytes()[:90])
    with pytest.raises(InputError, match=r"shard-00001.npy is damaged .*delete it"):
        load_index("flat", collection, encoder, 20)
    shard.unlink()
    load_index("flat", collection, encoder, 20)
    index = embeddings_folder(collection, encoder) / "flat.faiss"
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(InputError, match=r"flat.faiss is damaged .*delete it"):
        load_index("flat", collection, encoder, 20)


def test_missing_packages_and_settings_are_named(tmp_path, monkeypatch):
    collection = ListCollection(tmp_path, numbers(SMALL))
    with pytest.raises(InputError, match="`retrieval.engine: dense` needs `retrieval.encoder`"):
        read_settings("", ["--run.dir", "x", "--rewriter.model", "m", "--retrieval.engine", "dense"])
    for package in ("faiss", "sentence_transformers"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            for module in ("retrieval.encoder", "retrieval.dense"):
                patch.delitem(sys.modules, module, raising=False)
            with pytest.raises(InputError, match=rf"{package}.*pip install -e '\.\[dense\]'"):
                build_engine(RetrievalSettings(engine="dense", encoder="somewhere"), collection)
