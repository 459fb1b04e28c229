"""Read conversations: the project's own `turns.jsonl`, and published data sets that have a reader."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from core.artifacts import sha256
from core.data_sources import DataSource, by_data_set, sources_with
from core.errors import InputError
from core.json_records import read_records
from core.records import Turn
from rewriter.datasets import READERS, mtrag
from rewriter.datasets.fields import unique_turns


@dataclass(frozen=True)
class TurnSet:
    """The turns of one split of a run. `fingerprint` identifies them in a manifest: hashes of their files, and which
    part of the files is used."""

    turns: tuple[Turn, ...]
    fingerprint: Any

    def __len__(self) -> int:
        return len(self.turns)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self.turns)

    @cached_property
    def by_id(self) -> dict[str, Turn]:
        return {turn.id: turn for turn in self.turns}


def load_turns(sources: Sequence[DataSource], split: str, limit: int | None = None) -> TurnSet:
    """Load the turns of a split, one data set after another.

    Args:
        sources: the data sets of the run.
        split: `train`, `development` or `test`.
        limit: maximum number of turns of each data set, from the beginning of its file.

    Raises:
        InputError: a file is missing or invalid, two data sets share the id of a turn, or no conversation is left for
            the split.
    """
    turns: list[Turn] = []
    source_of: dict[str, DataSource] = {}
    for source in sources_with(sources, split):
        for turn in load_split(source, split)[:limit]:
            other = source_of.setdefault(turn.id, source)
            if other is not source:
                keys = [data_set.setting(data_set.field_of(split)) for data_set in (other, source)]
                raise InputError(
                    f"the turn `{turn.id}` is in both `{keys[0]}` and `{keys[1]}`; ids of turns must be unique across "
                    "`data.sets`."
                )
            turns.append(turn)
    return TurnSet(tuple(turns), fingerprint(sources, split, limit))


def load_split(source: DataSource, split: str) -> list[Turn]:
    """Load the turns of a split of one data set."""
    path, qrels, field = source.turns_file(split), source.qrels_file(split), source.field_of(split)
    turns = READERS[source.format](path, qrels) if source.format in READERS else read_turns(path)
    if source.name:
        turns = [replace(turn, dataset=source.name) for turn in turns]
    if field == "test" or not (source.holdout or source.development_share):
        return turns
    kept = part_of(turns, split, source.holdout, source.development_share)
    if not kept:
        raise InputError(
            f"`{source.setting(field)}` has no conversation left for `{split}`; lower `data.holdout` "
            f"({source.holdout}) or `data.development_share` ({source.development_share})."
        )
    return kept


def part_of(turns: Sequence[Turn], split: str, holdout: float, development_share: float) -> list[Turn]:
    """The turns of one split of a file. Splits are whole conversations: first training, then development, then test.

    `holdout` is a share of all conversations, `development_share` a share of those that are not for testing.
    """
    conversations = list(dict.fromkeys(turn.group for turn in turns))
    test = len(conversations) - rounded_up(holdout * len(conversations))
    development = test - rounded_up(development_share * test)
    start, end = {"train": (0, development), "development": (development, test), "test": (test, None)}[split]
    members = set(conversations[start:end])
    return [turn for turn in turns if turn.group in members]


def rounded_up(number: float) -> int:
    """Round up, ignoring fractions below 0.01: 0.3334 of 27 is 9.0018, which gives 9."""
    return max(1, math.ceil(number - 0.01)) if number else 0


def fingerprint(sources: Sequence[DataSource], split: str, limit: int | None) -> dict[str, Any]:
    """Identify the turns in a manifest: SHA-256 of their files, the held-out shares, and the limit."""
    hashes = {}
    for source in sources_with(sources, split):
        files, qrels = [source.turns_file(split)], source.qrels_file(split)
        if qrels is not None:
            files += [qrels, *(mtrag.rewrite_files(qrels) if source.format == "mtrag" else [])]
        hashes[source.name] = sha256(*files)
    return {
        "files": by_data_set(hashes),
        "holdout": max(source.holdout for source in sources),
        "development_share": sources[0].development_share if split != "test" else 0.0,
        "limit": limit,
    }


def read_turns(path: Path) -> list[Turn]:
    """Read a JSONL file of turns, one `Turn` per line.

    Raises:
        InputError: a line is invalid (names file, line, field, value), an id is repeated, or there is no turn.
    """
    records = read_records(Turn, path)
    turns = ((place, replace(turn, rewrite=turn.rewrite or None, reply=turn.reply.strip())) for place, turn in records)
    return unique_turns(path, turns)
