"""`python -m retrieval.evaluate` on TREC files."""

import json
import random
import resource

import pytest

from core.trec import read_run
from retrieval.evaluate import main
from tests.conftest import call

RUN = "q1 Q0 b 1 5 t\nq1 Q0 a 2 4 t\nq1 Q0 d 3 3 t\nq1 Q0 c 4 2 t\nq2 Q0 y 1 1 t\nq5 Q0 y 1 1 t\n"
QRELS = "q1 0 a 1\nq1 0 c 2\nq1 0 b 0\nq1 0 e 1\nq2 0 x 2\nq3 0 y 0\nq4 0 z 1\n"


def evaluate(*words, ok=True):
    return call(main, *words, ok=ok)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.run").write_text(RUN)
    (tmp_path / "b.run").write_text("q1 Q0 a 1 9 t\nq2 Q0 x 1 1 t\nq2 Q0 w 2 1 t\nq4 Q0 z 1 1 t\n")
    (tmp_path / "qrels").write_text(QRELS)
    return tmp_path


def test_table_counts_and_comparison(files):
    measures = ["MRR@10", "MAP", "MAP(retrieved)", "P@2", "nDCG@4", "nDCG(dcg='exp-log2')@4"]
    words = ["--run", files / "a.run", "--run2", files / "b.run", "--qrels", files / "qrels"]
    output = evaluate(*words, "--json", files / "out.json", "--measures", *measures)
    assert "a.run: evaluated 3 of 4 queries (1 without relevant documents); 1 not in the run score 0" in output
    assert "1 of the run have no qrels" in output and "1 have equal scores" in output
    report = json.loads((files / "out.json").read_text())
    ours = report["runs"]["a.run"]["measures"]
    # q1: relevant a at rank 2 and c at rank 4 of three; q2 and q4 find nothing.
    assert ours["MRR@10"] == pytest.approx(0.5 / 3)
    assert ours["MAP"] == pytest.approx((1 / 2 + 2 / 4) / 3 / 3)
    assert ours["MAP(retrieved)"] == pytest.approx((1 / 2 + 2 / 4) / 2 / 3)
    assert ours["P@2"] == pytest.approx(0.5 / 3)
    # discounts 1, 1 / log2(3), 1 / 2, 1 / log2(5); gains: a 1, c 2 or 2^2 - 1 = 3, e 1
    second, fourth = 0.6309297535714575, 0.43067655807339306
    assert ours["nDCG@4"] == pytest.approx((second + 2 * fourth) / (2 + second + 0.5) / 3)
    assert ours["nDCG(dcg='exp-log2')@4"] == pytest.approx((second + 3 * fourth) / (3 + second + 0.5) / 3)
    # b.run: q1 a first, q2 x and w tied: x comes first, as its id is higher (trec_eval's rule), q4 z first
    assert report["runs"]["b.run"]["measures"]["MRR@10"] == pytest.approx(3 / 3)
    assert report["comparison"]["MRR@10"]["difference"] == pytest.approx((0.5 - 3) / 3)


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("a.run", "q1 Q0 b 1 5\n", "a.run:1: expected `query Q0 document rank score tag`"),
        ("a.run", "q1 Q0 b 1 nan t\n", "a.run:1: the score must be a finite number, got `nan`"),
        ("a.run", "q1 Q0 b 1 1e400 t\n", "a.run:1: the score must be a finite number, got `1e400`"),
        ("a.run", "q1 Q0 b 1 2 t\nq1 Q0 b 2 1 t\n", "a.run:2: document `b` appears twice"),
        ("a.run", "zz Q0 b 1 2 t\n", "none of its 1 queries has qrels"),
        ("a.run", "", "the file is empty; expected lines `query Q0 document rank score tag`"),
        ("qrels", "q1 0 a yes\n", "qrels:1: the grade must be a whole number, got `yes`"),
        ("qrels", "q1 0 a 3000000000\n", "qrels:1: the grade must be between -1000 and 1000, got 3000000000"),
        ("qrels", "q1 0 a 1\nq1 0 a 0\n", "qrels:2: document `a` has two grades"),
        ("qrels", "q1 0 a 0\n", "nothing can be measured"),
    ],
)
def test_bad_files_are_named(files, name, text, expected):
    (files / name).write_text(text)
    assert expected in evaluate("--run", files / "a.run", "--qrels", files / "qrels", ok=False)


@pytest.mark.parametrize(
    "text",
    [
        RUN.replace(" ", "\t"),
        RUN.replace(" ", "  "),
        RUN.replace("\n", "\r\n"),
        "\ufeff" + RUN,
        RUN.replace("\n", " \n"),
        " " + RUN.replace("\n", "\n\n"),
        "".join(sorted(RUN.splitlines(True), key=lambda line: line.split()[3])),
        RUN[:-1],
    ],
    ids=["tabs", "two blanks", "Windows", "byte order mark", "blank at the end", "empty lines", "by rank", "no end"],
)
def test_a_run_however_it_is_laid_out(tmp_path, text):
    (tmp_path / "run").write_text(text, encoding="utf-8", newline="")
    expected = {"q1": {"b": 5.0, "a": 4.0, "d": 3.0, "c": 2.0}, "q2": {"y": 1.0}, "q5": {"y": 1.0}}
    assert read_run(tmp_path / "run") == expected


def test_bad_flags_are_named(files):
    words = ["--run", files / "a.run", "--qrels", files / "qrels"]
    for name in ("MRRR@3", "R", "P@1.5", "nDCG@0"):
        assert f"`{name}` is not a measure" in evaluate(*words, "--measures", name, ok=False)
    assert "ir_measures cannot calculate alpha_nDCG@3" in evaluate(*words, "--measures", "alpha_nDCG@3", ok=False)
    before = (files / "a.run").read_text()
    assert "is an input file; name another file" in evaluate(*words, "--json", files / "a.run", ok=False)
    assert (files / "a.run").read_text() == before
    assert "`--resamples` must be a whole number >= 1, got 0." in evaluate(*words, "--resamples", "0", ok=False)
    assert "`--run` and `--run2` are the same file" in evaluate(*words, "--run2", files / "a.run", ok=False)
    assert "nowhere: cannot be read" in evaluate("--run", "nowhere", "--qrels", files / "qrels", ok=False)


def processor_seconds() -> float:
    """CPU seconds of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
def test_a_large_run_is_quick(tmp_path):
    """Two runs of 10,000 queries and 100 documents each, with the comparison: below 3 s on an idle machine with two
    cores. The test measures CPU time, which hardly depends on the load of the machine."""
    rng = random.Random(0)
    with (tmp_path / "run").open("w") as run, (tmp_path / "qrels").open("w") as qrels:
        for query in range(10_000):
            for rank in range(1, 101):
                doc = f"d{rng.randrange(10**6)}x{rank}"
                run.write(f"c{query // 8}_{query % 8} Q0 {doc} {rank} {101 - rank} tag\n")
                if rank == 1 + query % 100:
                    qrels.write(f"c{query // 8}_{query % 8} 0 {doc} 1\n")
    (tmp_path / "run2").write_text((tmp_path / "run").read_text())
    start = processor_seconds()
    evaluate("--run", tmp_path / "run", "--run2", tmp_path / "run2", "--qrels", tmp_path / "qrels")
    assert processor_seconds() - start < 10
