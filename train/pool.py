"""A small pooled collection (`data.pool`): the gold passages of all turns, and what BM25 finds beside them.

    python -m train.pool --config configs/topiocqa.yaml --data.pool 50

Reads all training and held-out turns, and the whole collection; writes `<run>/data/pool.jsonl`, a collection like any
other, and `<run>/data/pool.json`, which records its settings and inputs. With `data.sets`, each set has a pool of its
own, `pool-<set>.jsonl`. The whole run and the evaluation make it before anything else.
"""

from dataclasses import replace
from typing import Any

from core.artifacts import changes, read_json, write_json
from core.errors import InputError
from core.inputs import key_of, pool_file, set_names, splits_of, whole_corpus
from core.read_settings import read_settings
from core.runtime import log, process, run_command, set_up_logging, wait_for_all
from core.settings import RetrievalSettings, Settings
from retrieval.collection import collection_of
from retrieval.engines import build_engine
from retrieval.pooled_corpus import write_pooled_corpus
from rewriter.conversations import turns_hash, turns_of


def make_pool(settings: Settings) -> None:
    """Write the pools that `data.pool` asks for, unless they exist.

    Raises:
        InputError: the run folder holds a pool of other settings or inputs; names the difference.
    """
    if settings.data.pool and process()[0] == 0:
        for name in set_names(settings):
            write_pool(settings, name)
    wait_for_all()


def write_pool(settings: Settings, name: str) -> None:
    """Write the pool of a data set and its manifest, unless they exist."""
    path, plan = pool_file(settings, name), pool_plan(settings, name)
    manifest = path.with_suffix(".json")
    if manifest.exists() and path.exists():
        before = read_json(manifest)["plan"]
        changed = [text for key in sorted({*before, *plan}) for text in changes(key, before.get(key), plan.get(key))]
        if changed:
            raise InputError(f"{path} was made from something else: {'; '.join(changed)}. Use another `--run.dir`.")
        log.info("pool: complete, nothing to do (%s)", path)
        return
    turns = [turn for split in splits_of(settings) for turn in turns_of(settings, split, settings.run.limit)]
    collection = collection_of(settings, whole_corpus(settings, name))
    counts = write_pooled_corpus(
        path,
        [turn for turn in turns if turn.dataset == name],
        collection,
        build_engine(bm25_settings(settings), collection),
        settings.data.pool,
    )
    write_json(manifest, {"plan": plan, "counts": counts})
    log.info(
        "pool: %(passages)d of %(collection)d passages, %(gold)d of them gold -> %(path)s", counts | {"path": path}
    )


def pool_plan(settings: Settings, name: str) -> dict[str, Any]:
    """Everything that decides the pool of a data set, under the names of the settings."""
    bm25 = bm25_settings(settings)
    options = {f"retrieval.{name}": getattr(bm25, name) for name in ("engine", "analyzer", "k1", "b")}
    inputs = {f"data.{split}": turns_hash(settings, split) for split in splits_of(settings)}
    inputs[key_of("corpus", name)] = collection_of(settings, whole_corpus(settings, name)).identity
    return {"data.pool": settings.data.pool, "run.limit": settings.run.limit} | options | inputs


def bm25_settings(settings: Settings) -> RetrievalSettings:
    """The pool is made by BM25, whatever engine the run has."""
    return replace(settings.retrieval, engine="auto")


def main() -> None:
    settings = read_settings(__doc__)
    set_up_logging()
    if not settings.data.pool:
        raise InputError(f"`data.pool` must be at least 1 to make a pool, got {settings.data.pool}.")
    make_pool(settings)


if __name__ == "__main__":
    run_command(main)
