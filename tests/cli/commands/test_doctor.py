"""`traincope doctor` as a person types it."""

import json
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

import traincope
from tests.cli.test_commands import run
from traincope.cli.main import main
from traincope.doctor import Examination, Finding, Section, State, render
from traincope.engine.ranks import peak

REPOSITORY = Path(__file__).parents[3]

AILING = Examination(
    subject="a machine\x1b[31m",
    sections=(
        Section(
            title="DISK",
            findings=(
                Finding(name="directory", state=State.OK, fact="/data"),
                Finding(name="filesystem", state=State.NOTE, fact="nfs4", advice="record elsewhere"),
                Finding(name="space", state=State.BAD, fact="0 B free [/] :warning:", advice="make room"),
                Finding(name="reservation", state=State.BAD, fact="No space left", advice="make room"),
            ),
        ),
    ),
)

AILING_TEXT = r"""
a machine\x1b[31m

DISK
    directory    ok    /data
    filesystem   note  nfs4
    space        bad   0 B free [/] :warning:
    reservation  bad   No space left

TO DO
 1. space, reservation: make room
 2. filesystem: record elsewhere
"""


def test_the_gravest_finding_comes_first_and_each_remedy_once() -> None:
    written = StringIO()
    render(AILING, Console(file=written, width=80))
    assert "\n" + written.getvalue() == AILING_TEXT


def test_doctor_without_a_run_examines_this_machine_and_exits_with_0() -> None:
    ended = run("doctor")
    assert ended.returncode == 0, ended.stdout
    titles = ("SOFTWARE", "EXTRAS", "GPU", "PROBES", "DISK", "SETTINGS", "TO DO")
    assert sorted(titles, key=ended.stdout.index) == list(titles)
    assert ended.stderr == ""


def test_doctor_examines_a_run_in_json_too() -> None:
    document = json.loads(run("doctor", str(REPOSITORY / "sample_runs" / "demo"), "--format", "json").stdout)
    assert document["healthy"] is True
    assert [section["title"] for section in document["sections"]] == ["ranks", "probes", "records", "clocks"]
    assert document["sections"][0]["findings"][0] == {
        "name": "present",
        "state": "ok",
        "fact": "ranks 0-3: all ranks",
        "advice": None,
    }


def test_a_path_that_is_not_a_run_has_the_exit_code_of_the_error_tree(tmp_path: Path) -> None:
    ended = run("doctor", str(tmp_path))
    assert ended.returncode == 4
    assert "is not a run directory" in ended.stderr
    assert "Traceback" not in ended.stderr


def doctor(*arguments: str) -> int:
    """The exit code, in this process."""
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def measure(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Measure with short rounds: the rates are rough, their way is not."""
    monkeypatch.setattr(peak, "ROUND_SECONDS", 1e-4)
    monkeypatch.setattr(peak, "MAX_SIDE", 256)
    return doctor("--measure-peak", *arguments)


def test_a_measured_peak_is_kept_and_gives_runs_on_this_machine_their_mfu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of before: the report names the command, and after it divides by what was measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    layer = torch.nn.Linear(8, 8)
    with traincope.run(tmp_path / "run") as recorded:
        for _ in range(4):
            layer(torch.ones(2, 8)).sum().backward()
            recorded.step()
    threads = torch.get_num_threads()
    before = traincope.analyze(traincope.open_run(tmp_path / "run")).utilization
    assert before.reason is not None
    assert f"run traincope doctor --measure-peak --threads {threads} on its host" in before.reason
    assert measure("--threads", str(threads), "--format", "json", monkeypatch=monkeypatch) == 0
    findings = json.loads(capsys.readouterr().out)["sections"][0]["findings"]
    assert [each["name"] for each in findings] == ["float32", "bfloat16", "float16", "float64", "kept"]
    (kept,) = json.loads((tmp_path / "cache" / "traincope" / "peaks.json").read_text())
    after = traincope.analyze(traincope.open_run(tmp_path / "run")).utilization
    assert after.peak is not None
    assert dict(after.peak.flops) == {"float32": kept["flops"]["float32"]}
    assert after.ratios.mfu is not None
    assert torch.get_num_threads() == threads


def test_without_a_home_the_call_that_declares_the_peak_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    assert measure("--threads", "1", "--format", "json", monkeypatch=monkeypatch) == 0
    *rates, kept = json.loads(capsys.readouterr().out)["sections"][0]["findings"]
    assert (kept["state"], kept["fact"]) == ("note", "nowhere: HOME and XDG_CACHE_HOME name no directory")
    assert "run.describe(peak_flops={'float32': " in kept["advice"]
    assert all(rate["state"] == "ok" for rate in rates)


@pytest.mark.parametrize(
    "arguments", [("--threads", "2"), ("--measure-peak", "--threads", "0"), ("--measure-peak", "some/run")]
)
def test_impossible_measurements_are_refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(*arguments) != 0
    assert "--" in capsys.readouterr().err
