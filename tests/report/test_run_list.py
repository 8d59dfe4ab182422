"""The runs below a directory, found and judged without reading records."""

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from tests.live.processes import start_rank, until
from tests.live.recorded import record
from tests.live.serve.test_watching import as_if_it_ran
from tests.s3 import BUCKET, files, s3_server
from traincope.analysis import analyze
from traincope.cli.main import main
from traincope.errors import NotARunError
from traincope.report.document.document import to_document
from traincope.report.run_list import RunState, judged_so_far, list_runs, title_so_far
from traincope.report.schema import Finding
from traincope.report.so_far import VerdictSoFar
from traincope.store.job.hang_notices import HangNotice, append_notice
from traincope.store.layout import ROWS_FILE, STANDING_FILE, rank_directory
from traincope.store.reading import find_run
from traincope.timeline import open_run

S = 1_000_000_000
SAMPLES = Path(__file__).parents[2] / "sample_runs"


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLES / "demo", tmp_path / "runs" / "demo"))


def test_a_running_run_hangs_and_dies(tmp_path: Path) -> None:
    """A real rank with its agent: it runs, then its agent announces a hang, then it is killed."""
    run, stop = tmp_path / "a" / "run", tmp_path / "stop"
    rank = start_rank(run, stop, rank=0, ranks=1)
    rows = rank_directory(run, attempt=0, rank=0) / ROWS_FILE
    until(rows.is_file, "the agent's rows")
    until(lambda: any(listed.steps for listed in list_runs(tmp_path)), "a step in the agent's rows")
    os.kill(rank.pid, signal.SIGSTOP)
    (listed,) = list_runs(tmp_path)
    assert (listed.path, listed.state, listed.world_size, listed.attempts) == (run, RunState.RUNNING, 1, 1)
    notice = HangNotice(attempt=0, at_wall_ns=time.time_ns(), culprits=(0,), sentence="hang: rank 0 stands")
    append_notice(run, notice)
    (listed,) = list_runs(tmp_path)
    assert (listed.state, listed.verdict, listed.title) == (RunState.HUNG, "hang: rank 0 stands", "hang on rank 0")
    assert (listed.steps or 0) >= 1
    rank.kill()
    rank.wait()
    (listed,) = list_runs(tmp_path)
    assert (listed.state, listed.verdict) == (RunState.DEAD, "hang: rank 0 stands")
    assert rank.stderr is not None
    rank.stderr.close()


def test_a_running_run_has_the_verdict_and_steps_of_its_records(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent has written no row yet. Six calls of `step()` end five steps, and the first does not count.

    A finished run without a report is not judged.
    """
    run = demo.parent / "going"
    record(run, monkeypatch, steps=6)
    as_if_it_ran(run)
    done, going = list_runs(demo.parent)
    assert (going.state, going.steps, going.title) == (RunState.RUNNING, None, None)
    unchanged, judged = judged_so_far([done, going])
    findings = [each for each in to_document(analyze(open_run(run)))["verdict"] if each["kind"] != "running"]
    assert unchanged == done
    assert (judged.steps, judged.verdict) == (5, f"{findings[0]['kind']}: {findings[0]['evidence']}")
    assert judged.title == f"{findings[0]['kind'].replace('_', ' ')}, so far (4 steps)"


@pytest.mark.parametrize(
    ("kinds", "ranks", "late", "title"),
    [
        (["straggler"], [1], None, "straggler on rank 1, so far (40 steps)"),
        (["exposed_wait"], [], "rank 1 is late, so far (...)", "rank 1 is late, so far (...)"),
        (["exposed_wait"], [], None, "exposed wait, so far (40 steps)"),
        (["killed_rank"], [2], "rank 1 is late, so far (...)", "killed rank on rank 2, so far (40 steps)"),
        ([], [], "rank 1 is late, so far (...)", "rank 1 is late, so far (...)"),
        ([], [], None, "no finding, so far (40 steps)"),
    ],
)
def test_a_finding_that_names_ranks_comes_before_the_latest_rank_so_far(
    demo: Path, kinds: list[str], ranks: list[int], late: str | None, title: str
) -> None:
    sample = to_document(analyze(open_run(demo)))["verdict"][0]
    findings = tuple(Finding(**{**sample, "kind": kind, "ranks": ranks}) for kind in kinds)
    so_far = VerdictSoFar(
        findings=findings, late=late, steps=40, last_step=40, mfu=None, goodput=None, by_rows=False, at_ns=0
    )
    assert title_so_far(so_far) == title


def test_a_finished_run_has_the_numbers_of_its_last_report(demo: Path) -> None:
    report = json.loads((demo / "expected.json").read_text())
    (listed,) = list_runs(demo)
    assert (listed.state, listed.mfu, listed.verdict) == (RunState.DONE, None, None)
    document = demo / "tiles" / "abc" / "document.json"
    document.parent.mkdir(parents=True)
    document.write_text(json.dumps(report))
    (listed,) = list_runs(demo)
    assert (listed.id, listed.world_size) == (report["run"]["id"], 4)
    assert listed.mfu == report["utilization"]["mfu"] > 0.4
    assert listed.goodput == report["goodput"]["productive_ratio"]
    assert listed.verdict == f"pipeline_bubble: {report['verdict'][0]['evidence']}"
    assert listed.title == "pipeline bubble"
    # The job has continued since: the report is not of this run any more.
    os.utime(document, (0, 0))
    (listed,) = list_runs(demo)
    assert (listed.mfu, listed.goodput, listed.verdict) == (None, None, None)


def test_the_brief_of_a_run_without_a_report_is_listed(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`traincope run` keeps it: an agent leaves no report of a small run."""
    with pytest.raises(SystemExit, match="0"):
        main(["report", str(demo), "--brief", "--keep"])
    assert "pipeline bubble (saves 4.8 %): " in capsys.readouterr().out
    report = json.loads((demo / "expected.json").read_text())
    (listed,) = list_runs(demo)
    assert (listed.mfu, listed.goodput) == (report["utilization"]["mfu"], report["goodput"]["productive_ratio"])
    assert listed.title == "pipeline bubble"
    os.utime(demo / "brief.json", (0, 0))
    (listed,) = list_runs(demo)
    assert listed.title is None


def test_a_run_without_a_report_has_the_last_numbers_of_its_agents(demo: Path) -> None:
    """MFU is the mean over two hosts. Goodput is that of rank 0's agent. The third file is damaged."""
    for rank, content in enumerate(['{"mfu": 0.5, "goodput": 0.9}', '{"mfu": 0.25, "goodput": 0.8}', '{"mfu']):
        (rank_directory(demo, attempt=0, rank=rank) / STANDING_FILE).write_text(content)
    (listed,) = list_runs(demo)
    assert (listed.mfu, listed.goodput) == (0.375, 0.9)


def test_the_number_of_steps_is_that_of_the_last_row(demo: Path) -> None:
    rows = rank_directory(demo, attempt=0, rank=0) / ROWS_FILE
    rows.write_text('[6, 1, 2, 0, 0, {"forward": 2}]\n[7, 3, 2, 0, 0, {"forward": 2}]\n[8, 5')
    (listed,) = list_runs(demo)
    assert listed.steps == 8


def on_another_host(run: Path, *rows: str, age_s: int = 0) -> None:
    """Rank 1 and the rows of all ranks as of a run on another host that has not ended. `age_s`: of the rows."""
    directory = rank_directory(run, attempt=0, rank=1)
    content = json.loads((directory / "rank.json").read_text())
    (directory / "rank.json").write_text(json.dumps({**content, "ending": None, "ended_wall_ns": None}))
    for rank, row in enumerate(rows):
        path = rank_directory(run, attempt=0, rank=rank) / ROWS_FILE
        path.write_text(row)
        os.utime(path, (time.time() - age_s,) * 2)


@pytest.mark.parametrize("age_s", [0, 3600])
@pytest.mark.parametrize("skew_s", [0, 30, -30])
@pytest.mark.parametrize(("last", "hangs"), [(5, True), (6, True), (7, False)])
def test_a_later_step_ends_a_hang(demo: Path, last: int, skew_s: int, age_s: int, *, hangs: bool) -> None:
    """Step 6 was complete on rank 1, the culprit. Neither clocks nor the time of the row count: it lacks an evaluation
    in the step, which may end after the announcement. A job that hangs writes no rows.
    """
    notice_ns = time.time_ns() - age_s * S
    rows = [f"[{step}, {notice_ns - 9 * S + skew_s * S}, {S}, 0, 0, {{}}]\n[8, {notice_ns}" for step in (9, last)]
    on_another_host(demo, *rows, age_s=age_s)
    append_notice(demo, HangNotice(attempt=0, at_wall_ns=notice_ns, culprits=(1,), sentence="rank 1", next_step=7))
    (listed,) = list_runs(demo)
    going_on = RunState.SILENT if age_s else RunState.RUNNING
    assert (listed.state, listed.verdict) == ((RunState.HUNG, "rank 1") if hangs else (going_on, None))


@pytest.mark.parametrize(("end_ns", "state"), [(-1, RunState.HUNG), (0, RunState.RUNNING), (1, RunState.RUNNING)])
def test_a_step_that_ended_later_ends_a_hang_of_an_earlier_version(demo: Path, end_ns: int, state: RunState) -> None:
    """Its row is written later in any case: the agent waits for copies of other hosts, and a store for the agent."""
    notice_ns = time.time_ns()
    on_another_host(demo, "", f"[6, {notice_ns - S}, {S + end_ns}, 0, 0, {{}}]\n[7, {notice_ns}")
    append_notice(demo, HangNotice(attempt=0, at_wall_ns=notice_ns, culprits=(0,), sentence="hang: rank 0 stands"))
    (listed,) = list_runs(demo)
    assert listed.state is state


@pytest.mark.sweep
def test_runs_behind_a_url_have_the_states_of_those_in_a_directory(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The objects are younger than the announcement of the hang."""
    now_ns, parent = time.time_ns(), demo.parent
    for name, ending in (("dead", "RuntimeError"), ("running", None), ("hung", None)):
        run = shutil.copytree(demo, parent / name)
        directory = rank_directory(run, attempt=0, rank=1)
        content = json.loads((directory / "rank.json").read_text())
        (directory / "rank.json").write_text(json.dumps({**content, "ending": ending}))
        (directory / ROWS_FILE).write_text(f"[6, {now_ns - 2 * S}, {S}, 0, 0, {{}}]\n")
    append_notice(parent / "hung", HangNotice(attempt=0, at_wall_ns=now_ns, culprits=(0,), sentence="hang: rank 0"))
    states = {"dead": "dead", "demo": "done", "hung": "hung", "running": "running"}
    with s3_server() as server:
        files(server).put(f"{parent}/", f"{BUCKET}/runs", recursive=True)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for place in (str(parent), f"s3://{BUCKET}/runs"):
            with pytest.raises(SystemExit):
                main(["ls", place, "--format", "json"])
            listed = {run["path"]: run for run in json.loads(capsys.readouterr().out)}
            assert {path: run["state"] for path, run in listed.items()} == {
                f"{place}/{name}": state for name, state in states.items()
            }
            assert listed[f"{place}/hung"]["verdict"] == "hang: rank 0"


def test_damaged_and_foreign_directories_end_nothing(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parent = demo.parent
    for name in ("cut", "future", "without"):
        shutil.copytree(demo, parent / name)
    (parent / "cut" / "run.json").write_text('{"version": 3')
    (parent / "future" / "run.json").write_text('{"version": 99}')
    (parent / "without" / "run.json").unlink()
    (parent / "part").mkdir()
    shutil.copytree(demo, parent / "part" / "bad rank")
    (rank_directory(parent / "part" / "bad rank", attempt=0, rank=2) / "rank.json").write_text("[]")
    (parent / "notes" / "attempt-x").mkdir(parents=True)
    (parent / "loop").symlink_to(parent)
    with pytest.raises(SystemExit) as ended:
        main(["ls", str(parent), "--format", "json"])
    assert ended.value.code == 0
    listed = {Path(run["path"]).name: run for run in json.loads(capsys.readouterr().out)}
    assert sorted(listed) == ["bad rank", "cut", "demo", "future", "without"]
    assert {name: run["state"] for name, run in listed.items()} == {
        "bad rank": "damaged",
        "cut": "damaged",
        "demo": "done",
        "future": "damaged",
        "without": "damaged",
    }
    for name, word in (
        ("cut", "run.json"),
        ("future", "format 99"),
        ("without", "run.json"),
        ("bad rank", "rank.json"),
    ):
        assert word in listed[name]["problem"]
        assert "\n" not in listed[name]["problem"]
    with pytest.raises(SystemExit):
        main(["ls", str(parent)])
    text = capsys.readouterr().out
    assert "damaged" in text
    lines = text.splitlines()
    (below,) = [at for at, line in enumerate(lines) if line.startswith("future")]
    assert lines[below + 1].startswith("  ")
    assert "format 99" in lines[below + 1]
    assert "\n5 runs\n" in text


def test_a_silent_run_of_another_host_is_not_called_dead(demo: Path) -> None:
    """Its process may be alive: this host cannot know."""
    manifest = rank_directory(demo, attempt=0, rank=1) / "rank.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "ending": None, "ended_wall_ns": None}))
    (listed,) = list_runs(demo)
    assert listed.state is RunState.SILENT


def test_unreadable_directories_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """As another user; pytest's own directory is closed to all others."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        closed = Path(name) / "closed"
        closed.mkdir(mode=0o700)
        with pytest.raises(SystemExit):
            main(["ls", name])  # imports what this user may read
        assert "unreadable" not in capsys.readouterr().err
        os.seteuid(65534)
        try:
            with pytest.raises(SystemExit):
                main(["ls", name])
            with pytest.raises(NotARunError, match=r"may not be read by this user.*TRAINCOPE_UMASK=027"):
                find_run(closed)
        finally:
            os.seteuid(0)
    assert "unreadable directories: 1; record with TRAINCOPE_UMASK=027" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "sentence"), [(["missing"], "is not a directory"), (["empty"], "no run below")])
def test_a_directory_without_runs(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit):
        main(["ls", str(tmp_path / words[0])])
    captured = capsys.readouterr()
    assert sentence in captured.out + captured.err
