"""`traincope diff` and `report --what-if` as a person or a CI job types them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import traincope
from tests.cli.test_commands import run
from traincope.events import Kind
from traincope.store import RECORD_DTYPE
from traincope.store.segments.segments import HEADER_BYTES

SAMPLES = Path(__file__).parents[3] / "sample_runs"
STEPS = 50
"""As few as a test needs."""


def record(directory: Path, *, step_ns: int) -> Path:
    """A warm-up step and steps of this length +- 2 %, written by hand because a busy machine is not exact."""
    with traincope.run(directory, budget=None) as recording:
        for _ in range(STEPS + 2):
            recording.step()
            with traincope.span("work"):
                pass
    (segment,) = directory.glob("attempt-*/rank-*/main-*.seg")
    records = np.memmap(segment, dtype=RECORD_DTYPE, offset=HEADER_BYTES, mode="r+")
    steps = np.flatnonzero(records["kind"] == Kind.STEP)
    lengths = [step_ns + step_ns * (number % 5 - 2) // 100 for number in range(len(steps))]
    borders = int(records["start_ns"][steps[0]]) + np.cumsum([0, *lengths])
    records["start_ns"][steps], records["end_ns"][steps] = borders[:-1], borders[1:]
    records.flush()
    return directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of one job: a fast one, one that died, and one that is slower by a tenth."""
    parent = tmp_path_factory.mktemp("runs")
    record(parent / "1-quick", step_ns=100_000_000)
    died = record(parent / "2-died", step_ns=100_000_000)
    for card in died.glob("attempt-*/rank-*/rank.json"):
        card.write_text(card.read_text().replace('"clean"', '"RuntimeError"'))
    record(parent / "3-slow", step_ns=110_000_000)
    return parent


def test_a_slower_run_is_named_and_has_an_exit_code_of_its_own(runs: Path) -> None:
    ended = run("diff", str(runs / "1-quick"), str(runs / "3-slow"))
    assert (ended.returncode, ended.stderr) == (10, "")
    assert "VERDICT  B is slower by 10.0 %: unattributed\n" in ended.stdout
    assert "    mean step: 110 ms instead of 100 ms " in ended.stdout
    small = run("diff", str(runs / "1-quick"), str(runs / "3-slow"), "--threshold", "11")
    assert small.returncode == 0
    assert "VERDICT  B differs by 10.0 %, less than the threshold of 11.0 %" in small.stdout


def test_a_faster_run_is_not_a_regression(runs: Path) -> None:
    faster = run("diff", str(runs / "3-slow"), str(runs / "1-quick"), "--format", "json")
    assert (faster.returncode, json.loads(faster.stdout)["judgement"]) == (0, "faster")


def test_last_is_the_last_run_in_the_directory_that_ended_cleanly(runs: Path) -> None:
    ended = run("diff", str(runs / "3-slow"), "--last", "--format", "json")
    assert ended.returncode == 10
    document = json.loads(ended.stdout)
    assert document["before"]["id"] == json.loads((runs / "1-quick" / "run.json").read_text())["id"]
    assert document["movers"] == ["unattributed"]
    assert document["before"]["steps"] == STEPS
    alone = run("diff", str(runs / "1-quick"), "--last")
    assert alone.returncode == 4
    assert "ended cleanly with counted steps" in alone.stderr


def test_a_run_compared_with_itself_shows_no_evidence(runs: Path) -> None:
    ended = run("diff", str(runs / "1-quick"), str(runs / "1-quick"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "VERDICT  no evidence that the runs differ" in ended.stdout


def test_a_run_of_few_steps_is_not_tested() -> None:
    ended = run("diff", str(SAMPLES / "demo"), str(SAMPLES / "demo"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "VERDICT  not tested whether the runs differ: about 50 steps per run are needed\n" in ended.stdout
    assert "no evidence" not in ended.stdout
    assert "WHAT ELSE DIFFERS  nothing in the records" in ended.stdout


def test_different_work_is_compared_by_shares_and_is_not_a_regression() -> None:
    ended = run("diff", str(SAMPLES / "demo"), str(SAMPLES / "demo-3d"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "the runs do different work per step" in ended.stdout
    assert "layout: mesh.tp  - -> 2" in ended.stdout


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["diff", "{demo}"], 2, "give two runs, RUN_A RUN_B; or --last, after one run"),
        (["diff", "{demo}", "{demo}", "--last"], 2, "give two runs, RUN_A RUN_B; or --last, after one run"),
        (["diff", "{demo}", "nowhere"], 4, "nowhere does not exist"),
        (["diff", "{demo}", "{demo}", "--threshold", "two"], 2, "invalid"),
        (
            ["diff", "{demo}", "{demo}", "--threshold", "-1"],
            2,
            "-1 is not a percentage; give a number from 0 to 100, e.g. 2",
        ),
        (["report", "{demo}", "--what-if", "forwards=0.5"], 2, "this run has no forwards to change"),
    ],
)
def test_bad_input_is_one_sentence_and_its_exit_code(words: list[str], code: int, sentence: str) -> None:
    ended = run(*(word.format(demo=SAMPLES / "demo") for word in words))
    assert ended.returncode == code
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_run_without_a_step_cannot_be_compared(runs: Path, tmp_path: Path) -> None:
    with traincope.run(tmp_path / "none"), traincope.span("work"):
        pass
    ended = run("diff", str(runs / "1-quick"), str(tmp_path / "none"))
    assert ended.returncode == 4
    assert ended.stderr.startswith("traincope diff: ")
    assert "has no counted step" in ended.stderr


def test_names_of_a_run_reach_the_terminal_as_text_only(runs: Path, tmp_path: Path) -> None:
    hostile = shutil.copytree(runs / "1-quick", tmp_path / "[red]x")
    card = hostile / "run.json"
    manifest = json.loads(card.read_text()) | {"settings": {"\x1b]0;a": "[bold]\x07"}}
    card.write_text(json.dumps(manifest))
    shown = run("diff", str(runs / "1-quick"), str(hostile)).stdout
    assert "\x1b" not in shown
    assert "[red]x" in shown
    assert "[bold]\\x07" in shown


def test_what_if_answers_in_text_and_in_json() -> None:
    text = run("report", str(SAMPLES / "demo"), "--what-if", "forward=0.5, fsdp.transfer=2")
    assert (text.returncode, text.stderr) == (0, "")
    assert text.stdout.startswith("WHAT IF  forward=0.5, fsdp.transfer=2\n")
    answer = json.loads(run("report", str(SAMPLES / "demo"), "--what-if", "forward=0.5", "--format", "json").stdout)
    assert answer["steps"] == 29
    assert answer["predicted_step_ns"] == pytest.approx(answer["step_ns"] * (1 + answer["change_ratio"]))
    assert -0.2 < answer["change_ratio"] < -0.1
    assert abs(answer["replay_error_ratio"]) < 0.001
