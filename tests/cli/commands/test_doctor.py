"""`traincope doctor` as a person types it."""

import json
from io import StringIO
from pathlib import Path

from rich.console import Console

from tests.cli.test_commands import run
from traincope.doctor import Examination, Finding, Section, State, render

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
    titles = ("SOFTWARE", "GPU", "PROBES", "DISK", "SETTINGS", "TO DO")
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
