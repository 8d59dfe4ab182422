"""The judge of real packages: true statements about a sample run hold, and each false one misses alone."""

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from evaluation.frameworks import page
from evaluation.frameworks.__main__ import CASES, PAGE, judge_all
from evaluation.frameworks.judging import judge
from evaluation.frameworks.training import Ended
from evaluation.frameworks.truth import FLOAT, Case, Truth
from evaluation.truth.rows import Row
from traincope.analysis import Analysis, analyze
from traincope.timeline import open_run

DEMO = Path(__file__).parents[2] / "sample_runs" / "demo"
TOKENS, HIDDEN, LAYERS, VOCABULARY, STREAM = 32 * 128, 256, 6, 258, 2 * 128 * 256 * FLOAT
"""Sizes of the demo with four ranks: two stages, two replicas, eight microbatches of two sequences of 128 tokens."""
BLOCK = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * 128 + 3 * HIDDEN * 704
STAGE = 3 * BLOCK + 6 * HIDDEN + VOCABULARY * HIDDEN + HIDDEN // 2
"""Weights of a stage: blocks, their norms, the embedding or the output, and half of the last norm, the mean."""
TRUTH = Truth(
    steps=30,
    optimizer="AdamW",
    mesh={"pp": 2, "fsdp": 2},
    traffic={
        ("pp", "send"): (8, 8 * STREAM),
        ("pp", "recv"): (8, 8 * STREAM),
        ("fsdp", "all_gather"): (3 + 1, STAGE * FLOAT),
        ("fsdp", "reduce_scatter"): (3 + 1, STAGE * FLOAT),
        **{(axis, "all_reduce"): (1, FLOAT) for axis in ("pp", "fsdp", "world")},
    },
    flops=3 * TOKENS * (2 * (LAYERS * BLOCK + VOCABULARY * HIDDEN) + LAYERS * 4 * 128 * HIDDEN),
)
ENDED = Ended(exit_code=0, output="loss 1.25\n", losses={"losses-0": "0x1.4p+0"})


@cache
def demo() -> Analysis:
    return analyze(open_run(DEMO))


def judged(truth: Truth, *, observed: Ended = ENDED) -> dict[str, Row]:
    case = Case(name="demo", program="", ranks=4, truth=truth)
    return {row.quantity: row for row in judge(case, demo(), bare=ENDED, observed=observed)}


def missed(truth: Truth = TRUTH, *, observed: Ended = ENDED) -> list[str]:
    return [quantity for quantity, row in judged(truth, observed=observed).items() if not row.holds]


def test_the_truth_about_the_demo_holds() -> None:
    assert missed() == []


@pytest.mark.parametrize(
    ("quantity", "truth"),
    [
        ("steps", {"steps": 29}),
        ("mesh", {"mesh": {"pp": 2, "tp": 2}}),
        ("collectives", {"traffic": {**TRUTH.traffic, ("fsdp", "all_reduce"): (1, 8)}}),
        ("collectives", {"traffic": {**TRUTH.traffic, ("fsdp", "all_reduce"): (2, 4)}}),
        ("collectives", {"once": {("dp", "broadcast"): (1, 4)}}),
        ("FLOPs", {"flops": round((TRUTH.flops or 0) * 1.02)}),
        ("FLOPs", {"flops": None}),
        ("evaluations", {"evaluated_after": (6,)}),
        ("checkpoints", {"saved_after": (6,)}),
    ],
)
def test_a_false_statement_misses(quantity: str, truth: dict[str, object]) -> None:
    also = ["optimizer steps"] if quantity == "steps" else []
    assert missed(replace(TRUTH, **truth)) == [quantity, *also]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("quantity", "change"),
    [
        ("losses", {"losses": {"losses-0": "0x1.5p+0"}}),
        ("losses", {"losses": {}}),
        ("exit code", {"exit_code": 1}),
        ("output", {"output": "loss 1.25\nwarning\n"}),
        ("output", {"output": ""}),
    ],
)
def test_a_change_of_the_program_misses(quantity: str, change: dict[str, object]) -> None:
    assert missed(observed=replace(ENDED, **change)) == [quantity]  # type: ignore[arg-type]


def test_numbers_and_order_of_lines_may_change() -> None:
    first, second = (replace(ENDED, output=output) for output in ("port 29500\nrank 0 ends\n", "rank 1 ends\nport 7\n"))
    assert first.lines == second.lines == Counter({"port #": 1, "rank # ends": 1})


def test_a_program_that_fails_alone_fails_the_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its program is a missing file, which is all that Python says about it."""
    case = Case(name="missing", program="none.py", own_launcher=True, truth=TRUTH)
    assert judge_all([case], tmp_path / "frameworks.md") == 1
    assert capsys.readouterr().out.endswith("did not run: missing\n")
    assert "does not run here without traincope" in (tmp_path / "frameworks.md").read_text()


def test_the_page_keeps_the_rows_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "frameworks.md"
    page.write(path, "other", [], failure="does not install: no wheel", versions="other 1.0")
    page.write(path, "demo", list(judged(TRUTH).values()), failure="", versions="torch 2.13.0")
    other, demo_line = path.read_text().splitlines()[-2:]
    assert other.startswith("| other | other 1.0; ")
    assert other.endswith(" | does not install: no wheel |")
    assert demo_line.endswith(
        "| 4 | 30 | 30 | pp 2 x fsdp 2 | exact | 119,996,940,288 | none | none | sums exactly | identical |  |"
    )
    page.write(path, "demo", list(judged(replace(TRUTH, steps=29)).values()), failure="", versions="torch 2.13.0")
    assert path.read_text().splitlines()[-2] == other
    assert path.read_text().endswith("| steps: 30, true: 29. optimizer steps: 30, true: 29 |\n")


def test_the_kept_page_has_the_head_and_the_programs_of_the_judge() -> None:
    text = PAGE.read_text()
    assert text.startswith(page.HEAD)
    assert {line[2:].partition(" | ")[0] for line in text.splitlines() if line.startswith("| ")} - {"program"} == {
        case.name for case in CASES
    }


def test_a_program_is_called_by_a_part_of_its_name_package_or_file() -> None:
    case = Case(name="DeepSpeed ZeRO-1", package="deepspeed", program="packages/deepspeed_zero.py", truth=TRUTH)
    assert all(map(case.is_called, ("DeepSpeed", "zero-1", "deepspeed_zero.py")))
    assert not case.is_called("zero-2")
