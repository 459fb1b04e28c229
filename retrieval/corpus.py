"""Collections: passages streamed from a file."""

from collections.abc import Iterator
from pathlib import Path

from core.artifacts import read_json_lines
from core.errors import InputError
from core.records import Passage


def read_corpus(path: Path) -> Iterator[Passage]:
    """Passages of a JSONL collection, in file order.

    Args:
        path: JSONL with `id`, `text` and, where there is one, `title`.

    Raises:
        InputError: a line is not usable (file, line, field), an id stands twice, or the collection is empty.
    """
    seen: set[str] = set()
    for number, record in read_json_lines(path):
        for name in ("id", "text"):
            value = record.get(name)
            if not isinstance(value, str) or not value.strip():
                what = "is missing" if name not in record else f"must be a text that is not empty, got {value!r:.60}"
                raise InputError(f"{path}:{number}: the field `{name}` {what}.")
        title = record.get("title") or ""
        if not isinstance(title, str):
            raise InputError(f"{path}:{number}: `title` must be a text, got {title!r:.60}.")
        if record["id"] in seen:
            raise InputError(f"{path}:{number}: the id `{record['id']}` stands twice; ids must be unique.")
        seen.add(record["id"])
        yield Passage(record["id"], record["text"], title)
    if not seen:
        raise InputError(f"{path}: the collection is empty; one JSON object a line is expected, with `id` and `text`.")
