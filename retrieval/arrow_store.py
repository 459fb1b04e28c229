"""Passages in an Arrow file: written as a stream, read by memory map."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow

from core.records import Passage

BATCH = 10_000  # passages per record batch; only the last batch may hold fewer
TEXT = pyarrow.large_string()
SCHEMA = pyarrow.schema([("id", TEXT), ("text", TEXT), ("title", TEXT)])


def write_passages(path: Path, passages: Iterable[Passage]) -> None:
    """Write passages in order, one record batch at a time."""
    stream = iter(passages)
    with pyarrow.ipc.new_file(str(path), SCHEMA) as writer:
        while batch := list(islice(stream, BATCH)):
            columns = [[getattr(passage, name) for passage in batch] for name in SCHEMA.names]
            writer.write_batch(pyarrow.record_batch(columns, schema=SCHEMA))


class ArrowStore:
    """The passages of an Arrow file by row number, from 0.

    Args:
        path: a file written by `write_passages`.
    """

    def __init__(self, path: Path):
        reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
        self._batches = [reader.get_batch(number).columns for number in range(reader.num_record_batches)]
        self._rows = sum(len(columns[0]) for columns in self._batches)

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[Passage]:
        for columns in self._batches:
            for fields in zip(*(column.to_pylist() for column in columns), strict=True):
                yield Passage(*fields)

    def passage(self, row: int) -> Passage:
        """The passage of a row."""
        batch, offset = divmod(row, BATCH)
        return Passage(*(column[offset].as_py() for column in self._batches[batch]))

    def id(self, row: int) -> str:
        """The id of a row."""
        batch, offset = divmod(row, BATCH)
        return self._batches[batch][0][offset].as_py()

    def ids(self, rows: Sequence[int]) -> list[str]:
        """The ids of many rows, read batch by batch."""
        batches, offsets = np.divmod(np.asarray(rows, dtype=np.int64), BATCH)
        ids = np.empty(len(batches), dtype=object)
        for batch in np.unique(batches):
            positions = np.flatnonzero(batches == batch)
            ids[positions] = self._batches[batch][0].take(pyarrow.array(offsets[positions])).to_pylist()
        return ids.tolist()
