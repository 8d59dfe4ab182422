"""`traincope hang`: its answer as text and as JSON, for runs that hang and runs that do not."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.analysis.faults.hangs.test_stops import analysis, stuck, victim
from tests.live.recorded import record
from traincope.analysis import Analysis
from traincope.analysis.verdict.hang_findings import hang_findings
from traincope.cli.main import main
from traincope.report.schema import NativeStack
from traincope.report.text.hangs import hang_document, render_hangs

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"


def run_command(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["hang", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def text_of(result: Analysis) -> str:
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        render_hangs(
            hang_document(result.hangs, tuple(hang_findings(result.timeline, result.hangs))),
            console,
        )
    return captured.get()


def test_a_healthy_run_has_no_hang(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(str(DEMO)) == 0
    assert capsys.readouterr().out == "No rank hangs, and no collective mismatches, as far as the records show.\n"


def test_the_json_has_the_hangs_and_their_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(str(DEMO), "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema_version": 3,
        "hangs": [],
        "verdict": [],
        "next_step": 30,
        "lacks": [],
        "native_stacks": [],
    }


def test_a_hang_is_named_with_the_stack_of_its_culprit() -> None:
    assert text_of(analysis(victim(0), stuck(1))) == (
        "VERDICT\n"
        " 1. stall  rank 1, step 5; confidence high\n"
        "    rank 1 stood at train.py:9 for 34.0 s; rank 0 waited for it in all_reduce on\n"
        "    dp, at train.py:30\n"
        "    do: Look at train.py:9 (process 1001 on host-boot). It may go on by itself.\n"
        "    meaning, remedy, check: traincope explain stall\n"
        "\n"
        "STACK  of rank 1, innermost first\n"
        "    wait (threading.py:327)\n"
        "    load (train.py:9)\n"
        "    main (train.py:41)\n"
    )


def test_an_unknown_culprit_says_what_is_missing_and_whom_to_ask() -> None:
    text = " ".join(text_of(analysis(victim(0), replace(stuck(1), looks=()))).split())
    assert "no evidence shows whether its process lived" in text
    assert "do: Get the stacks of rank 1 (process 1001 on host-boot): py-spy dump --pid PID." in text


def test_c_frames_are_shown_below_the_stack_of_the_records() -> None:
    result = analysis(victim(0), stuck(1))
    stacks = (
        NativeStack(rank=1, pid=7, frames=["futex_wait (libc.so.6)", "load (train.py:9)"], problem=None),
        NativeStack(rank=2, pid=8, frames=[], problem="py-spy may not read the processes"),
    )
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        render_hangs(
            hang_document(result.hangs, tuple(hang_findings(result.timeline, result.hangs)), native_stacks=stacks),
            console,
        )
    assert captured.get().endswith(
        "\n"
        "NATIVE STACK  of rank 1 (process 7), innermost first\n"
        "    futex_wait (libc.so.6)\n"
        "    load (train.py:9)\n"
        "\n"
        "NATIVE STACK  of rank 2 (process 8), innermost first\n"
        "    py-spy may not read the processes\n"
    )


@pytest.mark.parametrize("option", ["--stacks", "--native"])
def test_stacks_of_a_run_without_running_ranks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    record(tmp_path / "run", monkeypatch)
    assert run_command(str(tmp_path / "run"), option) == 2
    assert re.search("none of them runs on this host|no rank of .* runs on this host", capsys.readouterr().err)
