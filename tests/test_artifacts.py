"""Files: errors name bad lines, and writes are atomic."""

import pytest

from core.artifacts import read_json, read_json_lines, write_atomic
from core.errors import InputError


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{}\n{broken\n", ":2: not valid JSON"),
        (b"[1]\n", ":1: expected a JSON object, got list"),
        (b'{"id": "\\ud800"}\n', ":1: a string contains half a character"),
        (b'{"id": "\xff\xfe"}\n', ": not UTF-8"),
    ],
)
def test_bad_lines_are_named(tmp_path, content, expected):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"x.jsonl{expected}"):
        list(read_json_lines(path))


def test_lines_are_numbered_as_in_the_file(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('\ufeff{"id": "a"}\n\n{"id": "b"}\n')
    assert list(read_json_lines(path)) == [(1, {"id": "a"}), (3, {"id": "b"})]


def test_a_broken_list_is_reported_with_its_line_in_the_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('\n[{"id": "a"},\n\n{broken]\n')
    with pytest.raises(InputError, match=r"x.json:4: not valid JSON: .* at column 2"):
        list(read_json_lines(path))


@pytest.mark.parametrize("text", ["{}", "[1]", "{broken"])
def test_a_damaged_file_of_a_run_is_named(tmp_path, text):
    path = tmp_path / "manifest.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"manifest.json is damaged \(.*\); delete its folder"):
        read_json(path, "settings")


def test_a_file_that_is_not_written_to_its_end_stays_as_it_was(tmp_path):
    def pieces():
        yield "half"
        raise OSError(28, "No space left on device")

    path = tmp_path / "records.jsonl"
    write_atomic(path, ["whole", "\n"])
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write_atomic(path, pieces())
    assert path.read_text() == "whole\n" and list(tmp_path.iterdir()) == [path]
