"""Runs of one workflow below directories and URLs. Only manifests are read, so the runs here have no records."""

import json
import os
import signal
import tempfile
import webbrowser
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.viewer.pages.test_workflow import job
from traincope.cli.main import main
from traincope.cli.together import with_runs_of_workflow
from traincope.errors import UsageError

DEMO = Path(__file__).parents[2] / "sample_runs" / "demo"


def manifest(workflow: object) -> str:
    return json.dumps({**json.loads((DEMO / "run.json").read_text()), "settings": {"workflow": workflow}})


def jobs(folder: Path) -> Path:
    """Two runs of workflow 7, which has declared its name as a number once, one of another, and two damaged ones."""
    for name, text in {
        "actor": manifest(7),
        "deep/er/trainer": manifest("7"),
        "other": manifest("70"),
        "cut": manifest("7")[:-9],
        "list": "[]",
    }.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "run.json").write_text(text)
    return folder


def taken(*places: Path, workflow: str = "7") -> list[str]:
    return [str(run) for run in with_runs_of_workflow(_arguments(*places, workflow=workflow)).run_directories]


def _arguments(*places: Path, workflow: str) -> Namespace:
    return Namespace(run_directories=list(places), workflow=workflow, attempt=None)


def test_runs_are_taken_once_and_named_with_those_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = jobs(tmp_path)
    (tmp_path / "link").symlink_to("actor")
    runs = [str(place / "actor"), str(place / "deep/er/trainer")]
    assert taken(place, place / "link", place / "deep") == runs
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"2 runs of the workflow 7: {', '.join(runs)}"
    assert [line.partition(":")[0] for line in lines[:-1]] == ["left out"] * 2
    assert lines[0].startswith(f"left out: {place}/cut/run.json cannot be read: ")
    assert lines[1].startswith(f"left out: {place}/list/run.json does not hold a JSON object; ")
    assert taken(place / "deep") == runs[1:]
    assert capsys.readouterr().err == f"1 run of the workflow 7: {runs[1]}; it is compared with no other\n"


def test_a_directory_that_may_not_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """As another user; pytest's own directory is closed to all others."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        place = jobs(Path(name))
        (place / "deep").chmod(0o700)
        os.seteuid(65534)
        try:
            assert taken(place) == [str(place / "actor")]
        finally:
            os.seteuid(0)
    assert f"left out: [Errno 13] Permission denied: '{place}/deep'\n" in capsys.readouterr().err


def test_a_place_without_such_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{tmp_path}/missing is not a directory"):
        taken(tmp_path / "missing")
    with pytest.raises(UsageError, match=rf"no run below {tmp_path}, file://{tmp_path} has the workflow '8'"):
        taken(tmp_path, Path(f"file:{tmp_path}"), workflow="8")


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = fsspec.filesystem("memory")
    files.put(f"{jobs(tmp_path / 'runs')}/", "/together/", recursive=True)
    yield "memory://together"
    files.rm("/together", recursive=True)


def test_below_a_url_only_the_manifests_directly_below_are_read(
    memory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is copied. `Path` takes one of a URL's slashes, messages have both."""
    assert taken(Path(memory), Path(f"{memory}/actor")) == ["memory:/together/actor"]
    assert not (tmp_path / "cache").exists()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("left out: memory://together/cut/run.json cannot be read: ")
    assert lines[-1] == "1 run of the workflow 7: memory://together/actor; it is compared with no other"


def interrupted(_address: str) -> None:
    """As Ctrl-C does. A signal would be ignored where the tests run in the background of a shell."""
    raise KeyboardInterrupt


def test_view_opens_the_runs_of_the_workflow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The viewer is stopped as soon as it would open the browser."""
    runs = [job(tmp_path / name, name, "critic", workflow=of) for name, of in (("actor", "7"), ("critic", "8"))]
    monkeypatch.setattr(webbrowser, "open", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match="0"):
            main(["view", str(tmp_path), "--workflow", "7"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert f" shows {runs[0]}; press Ctrl-C" in capsys.readouterr().out


def test_report_of_one_run_of_a_workflow_is_still_that_of_a_workflow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that a script finds the same keys, however many runs there are."""
    job(tmp_path / "actor", "actor", "critic", workflow="7")
    with pytest.raises(SystemExit, match="0"):
        main(["report", str(tmp_path), "--workflow", "7", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["name"], len(document["reports"])) == ("7", 1)
    assert [(wait["awaited"], wait["recorded_ratio"]) for wait in document["waits"]] == [("critic", 0.0)]
