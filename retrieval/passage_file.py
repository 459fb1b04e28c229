"""Passages in one Arrow file: written as a stream, read by memory map."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow

from core.records import Passage

BATCH = 10_000  # passages in a record batch; every batch but the last is full
TEXT = pyarrow.large_string()
SCHEMA = pyarrow.schema([("id", TEXT), ("text", TEXT), ("title", TEXT)])


def write_passages(path: Path, passages: Iterable[Passage]) -> None:
    """Write passages in their order; memory holds one batch of them."""
    stream = iter(passages)
    with pyarrow.ipc.new_file(str(path), SCHEMA) as writer:
        while some := list(islice(stream, BATCH)):
            columns = [[getattr(passage, name) for passage in some] for name in SCHEMA.names]
            writer.write_batch(pyarrow.record_batch(columns, schema=SCHEMA))


class PassageFile:
    """The passages of a file by their row, from 0.

    Args:
        path: what `write_passages` has written.
    """

    def __init__(self, path: Path):
        reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
        self._batches = [reader.get_batch(number).columns for number in range(reader.num_record_batches)]
        self._rows = sum(len(columns[0]) for columns in self._batches)

    def __len__(self) -> int:
        return self._rows

    def id(self, row: int) -> str:
        """The id of a row."""
        number, place = divmod(row, BATCH)
        return self._batches[number][0][place].as_py()

    def ids(self, rows: Sequence[int]) -> list[str]:
        """The ids of many rows."""
        numbers, places = np.divmod(np.asarray(rows, dtype=np.int64), BATCH)
        order = np.argsort(numbers, kind="stable")
        found = np.empty(len(numbers), dtype=object)
        for part in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):  # the rows of one record batch
            if len(part):
                found[part] = self._batches[numbers[part[0]]][0].take(pyarrow.array(places[part])).to_pylist()
        return found.tolist()

    def passage(self, row: int) -> Passage:
        """The passage of a row."""
        number, place = divmod(row, BATCH)
        return Passage(*(column[place].as_py() for column in self._batches[number]))

    def __iter__(self) -> Iterator[Passage]:
        for columns in self._batches:
            for some in zip(*(column.to_pylist() for column in columns), strict=True):
                yield Passage(*some)
