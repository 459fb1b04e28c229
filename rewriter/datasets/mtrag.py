"""MTRAG (Katsis et al., 2025, doi 10.1162/TACL.a.19) as `IBM/mt-rag-benchmark` publishes it.

Turns: `mtrag-human/generation_tasks/reference.jsonl`, one task a line: `task_id` (`<conversation><::><turn>`),
`conversation_id`, `turn`, `Collection`, `input` (messages with `speaker`, `user` or `agent`, and `text`; the last is
the question), `targets` (answers with `text`), `Answerability`. Its `contexts` are what a retriever found, no labels.

Gold passages: `mtrag-human/retrieval_tasks/<domain>/qrels/dev.tsv` in BEIR's form (`query-id`, `corpus-id`, `score`),
whose query ids are task ids. Rewrites: `mtrag-human/retrieval_tasks/<domain>/<domain>_rewrite.jsonl`, `_id` and
`text`, which begins with `|user|:`; a model wrote them.

Passages: `corpora/passage_level/<domain>.jsonl.zip`, `_id`, `title` and `text`, which begins with the title. Gold
passages have these ids, and not those of `corpora/document_level`.
"""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from core.artifacts import json_object
from core.errors import InputError
from core.records import Message, Passage, Turn
from core.trec import read_qrels
from rewriter.datasets.field_reader import FieldReader, collect_turns, read_records

ROLES = {"user": "user", "agent": "assistant"}
ANSWERED = {"ANSWERABLE", "PARTIAL"}  # elsewhere the target says that there is no answer, or makes conversation


def read(path: Path, qrels: Path | None = None) -> list[Turn]:
    """The turns of MTRAG.

    Args:
        path: `reference.jsonl`.
        qrels: `<domain>/qrels/dev.tsv`: only the turns of this domain are read, and the rewrites beside it; without
            it, all four domains, without gold passages.

    Raises:
        InputError: a line is not usable (file, line, field, value), or the two files do not belong together.
    """
    gold = read_qrels(qrels) if qrels else {}
    rewrites = read_rewrites(qrels) if qrels else {}
    tasks = list(read_records(path))
    if qrels:
        domain = {collection_of(task) for task in tasks if task.text("task_id") in gold}
        if not domain:
            raise InputError(
                f"{qrels} has no judgement for any task of {path}: its first query id is `{next(iter(gold))}`, "
                "the task ids look like `<conversation><::><turn>`; take both files from one state of the repository."
            )
        tasks = [task for task in tasks if collection_of(task) in domain]
    return collect_turns(path, ((task, turn_of(task, gold, rewrites)) for task in tasks))


def turn_of(task: FieldReader, gold: dict[str, dict[str, int]], rewrites: dict[str, str]) -> Turn:
    """One turn. Its reply is the target: the assistant's reply, as reviewers corrected it, apologies included."""
    name, conversation = task.text("task_id"), task.text("conversation_id")
    messages = [message_of(message) for message in task.objects("input")]
    if not messages or messages[-1]["role"] != "user":
        task.refuse("input", "messages that end with the user's question")
    targets = task.objects("targets")
    answered = "Answerability" not in task.values or bool(ANSWERED.intersection(task.texts("Answerability")))
    return Turn(
        id=f"{conversation}_{task.number('turn')}",
        history=tuple(messages[:-1]),
        question=messages[-1]["content"],
        answers=tuple(target.text("text") for target in targets) if answered else (),
        relevant=gold.get(name, {}),
        rewrite=rewrites.get(name),
        conversation=conversation,
        kind="follow_up" if messages[1:] else "first",
        reply=targets[0].text("text", empty=True) if targets else "",
    )


def message_of(record: FieldReader) -> Message:
    speaker = record.text("speaker")
    if speaker not in ROLES:
        record.refuse("speaker", "`user` or `agent`")
    return {"role": ROLES[speaker], "content": record.text("text")}


def collection_of(task: FieldReader) -> str:
    return task.text("Collection")


def rewrite_files(qrels: Path) -> list[Path]:
    """The file of rewrites that lies beside `<domain>/qrels/dev.tsv`, where there is one."""
    return sorted(qrels.resolve().parents[1].glob("*_rewrite.jsonl"))[:1]


def read_rewrites(qrels: Path) -> dict[str, str]:
    """Task id -> rewrite."""
    return {
        record.text("_id"): record.text("text").removeprefix("|user|:").strip()
        for path in rewrite_files(qrels)
        for record in read_records(path)
    }


def read_passages(path: Path) -> Iterator[Passage]:
    """The passages of a domain, in the order of the file.

    Args:
        path: `<domain>.jsonl.zip` as published, or the file in it.

    Yields:
        Passages; their text may be empty.

    Raises:
        InputError: the file cannot be read, or a line is not usable (file, line, field, value).
    """
    for number, line in enumerate(passage_lines(path), 1):
        record = FieldReader(f"{path}:{number}", json_object(line, f"{path}:{number}"))
        yield Passage(record.text("_id"), record.text("text", empty=True), record.text("title", empty=True))


def passage_lines(path: Path) -> Iterator[str]:
    """The lines of a file, or of the one file of a zip archive.

    Raises:
        InputError: the file cannot be read, or the archive holds another number of JSON files than one.
    """
    try:
        if not zipfile.is_zipfile(path):
            with path.open(encoding="utf-8") as lines:
                yield from lines
            return
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if Path(name).suffix in (".jsonl", ".json")]
            names = [name for name in names if not name.startswith("__MACOSX/")]  # what macOS adds to archives
            if len(names) != 1:
                raise InputError(f"{path}: one .jsonl file is expected in the archive, got {len(names)}.")
            with archive.open(names[0]) as file:
                yield from io.TextIOWrapper(file, encoding="utf-8")
    except (OSError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cannot be read ({error}); download it again.") from error
