"""Records: reading returns what was written."""

import json

import pytest

from core.json_records import parse_record, to_json_dict
from core.records import Candidate, EvaluationRecord, Hit, Score, SystemResult, TokenStats, Turn, TurnRecord

STATS = TokenStats(("x",), (0.0,), (1.5,), (-1.0,), (-0.5,))


@pytest.mark.parametrize(
    "record",
    [
        Turn("a", ({"role": "user", "content": "Hi"},), "Who?", answers=("Ann",), relevant={"d": 0}, reply="Ann."),
        TurnRecord("a", "set", (Candidate("x", "y", -1.0, 2, documents=(Hit("d", 0.0),), list_id="1", score=0.0),)),
        TurnRecord("a", counts={"merged": 0}, lists={"1": Score(0.0, "x", key=(0,), stats=STATS, ended=False)}),
        TurnRecord("a", lists={"1": Score(None, error="no", parts={"ppl": None, "udcg": 0.0})}),
        EvaluationRecord("a", {"base": SystemResult("q", (Hit("d", 1.0),), "rewrite", "Ann", 0.0)}),
        Turn("a", (), "Who?"),
        TurnRecord("a", lists={"1": Score(None, error="empty answer", stats=TokenStats((), (), (), (), ()))}),
        EvaluationRecord("a", {"base": SystemResult("q", answer="")}),
    ],
)
def test_what_is_written_is_read_again(record):
    line = json.dumps(to_json_dict(record))
    assert parse_record(type(record), json.loads(line), "file:1") == record
