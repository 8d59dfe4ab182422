"""`traincope run -- COMMAND` with scripts that do not use traincope, under real launchers."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import forked
from tests.cli.test_commands import ENVIRONMENT
from traincope.analysis import Fault, FaultKind, analyze
from traincope.cli.launch.outcome import print_outcome
from traincope.cli.main import make_parser
from traincope.errors import UsageError
from traincope.events import CLEAN, Kind
from traincope.startup.notes import Notes
from traincope.store import RunRecords, read_run
from traincope.timeline import open_run

ON_TWO_RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""

WITHOUT_A_LAUNCHER = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
raise ValueError("no more data")
"""

ALONE_IN_A_GROUP = """
import torch, torch.distributed as dist
def join():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""

BY_SPAWN = f"""{ALONE_IN_A_GROUP}
def worker(rank):
    join()
    dist.all_reduce(torch.ones(2))
    list(torch.utils.data.DataLoader([1.0, 2.0], num_workers=1))
    raise KeyError("no such token")
if __name__ == "__mp_main__":
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
if __name__ == "__main__":
    torch.multiprocessing.spawn(worker, nprocs=1)
"""

RECORDS_ITSELF = f"""{ALONE_IN_A_GROUP}
import sys, traincope
join()
dist.all_reduce(torch.ones(2))
with traincope.run(sys.argv[1]):
    dist.all_reduce(torch.ones(2))
"""


ONE_DIES = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(2))
"""

LEAVES = f"""{ALONE_IN_A_GROUP}
import os, sys
join()
if sys.argv[1] == "at once":
    os.kill(os.getpid(), 9)
try:
    {{}}["no such token"]
except KeyError:
    sys.exit(3)
"""


def traincope_run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.traincope("run", *words, environment={**ENVIRONMENT, **environment}, timeout=120)


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def endings(run: RunRecords) -> dict[int, str | None]:
    return {rank.rank: rank.info.ending for rank in run.ranks}


def faults_of(run: Path) -> list[Fault]:
    return [fault for fault in analyze(open_run(run)).faults if not fault.is_mark]


def recorded(run: RunRecords, kind: Kind) -> dict[int, list[str]]:
    """Rank -> the names of its training thread's events of that kind."""
    names = {}
    for rank in run.ranks:
        main = rank.thread("main")
        names[rank.rank] = [rank.name(int(number)) for number in main["name"][main["kind"] == kind]]
    return names


def test_torchrun_records_its_ranks_and_not_itself(tmp_path: Path) -> None:
    out, script = tmp_path / "run", written(tmp_path / "train.py", ON_TWO_RANKS)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ended = traincope_run("--out", str(out), "--", *torchrun, script)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    lines = ended.stderr.splitlines()
    printed = lines[lines.index(f"traincope: recorded 2 ranks in {out}") :]
    assert printed[1].startswith("run: 2 ranks, ")
    assert printed[-1].startswith("traincope: next: ")
    assert printed[-1].endswith(f" report {out}")
    assert 4 <= len(printed) <= 18
    run = read_run(out)
    assert endings(run) == {0: CLEAN, 1: CLEAN}
    assert recorded(run, Kind.COLLECTIVE) == {0: ["all_reduce"] * 3, 1: ["all_reduce"] * 3}


def test_a_rank_of_torchrun_that_is_killed_leaves_its_exit_code(tmp_path: Path) -> None:
    out, script = tmp_path / "run", written(tmp_path / "train.py", ONE_DIES)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert traincope_run("--out", str(out), "--", *torchrun, script).returncode == 1
    assert endings(read_run(out))[1] is None
    assert [(note.rank, note.exit_code) for note in read_run(out).launcher if note.first] == [(1, -signal.SIGKILL)]
    first, *others = (fault for fault in faults_of(out) if fault.ranks)
    assert (first.kind, first.ranks, first.follows) == (FaultKind.KILLED, (1,), False)
    assert first.what == "was killed (signal 9), noted by the launcher"
    assert [(fault.ranks, fault.follows) for fault in others] == [((0,), True)]


@pytest.mark.sweep
def test_a_sys_exit_after_a_caught_error_is_not_a_clean_end(tmp_path: Path) -> None:
    """The process cannot see it at its end, but the command knows its exit code."""
    out, script = tmp_path / "run", written(tmp_path / "leaves.py", LEAVES)
    ended = traincope_run("--out", str(out), "--", sys.executable, script, "after a caught error")
    assert (ended.returncode, endings(read_run(out))) == (3, {0: CLEAN})
    (fault,) = faults_of(out)
    assert (fault.kind, fault.what) == (FaultKind.EXIT, "exited with code 3, noted by the launcher")


def test_a_rank_below_a_shell_has_the_shells_exit_code_and_the_outcome_needs_only_ascii(tmp_path: Path) -> None:
    """In an interpreter of its own, which reads the encoding when it starts."""
    out, script = tmp_path / "ü-层", written(tmp_path / "leaves.py", LEAVES)
    shell = ("sh", "-c", f"{sys.executable} {script} 'at once'; exit 7")
    command = [sys.executable, "-m", "traincope.cli.main", "run", "--out", str(out), "--", *shell]
    variables = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii:strict"}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=variables)
    assert ended.returncode == 7
    assert "traincope: recorded 1 rank in " in ended.stderr
    assert "\\xfc-\\u5c42" in ended.stderr
    (fault,) = faults_of(out)
    assert (fault.kind, fault.what) == (FaultKind.KILLED, "ended without a record of its end")
    assert fault.evidence == "its process no longer exists; the command that launched it exited with code 7"


def test_an_uncaught_error_is_recorded_and_its_exit_code_kept(tmp_path: Path) -> None:
    script = written(tmp_path / "alone.py", WITHOUT_A_LAUNCHER)
    variables = {"TRAINCOPE_OUT": str(tmp_path / "run"), "TRAINCOPE_RUN_ID": "nightly-7"}
    ended = traincope_run("sh", "-c", f"cd {tmp_path} && {sys.executable} {script}", **variables)
    assert ended.returncode == 1
    assert "ValueError: no more data" in ended.stderr
    assert f"traincope: recorded 1 rank in {tmp_path / 'run'}" in ended.stderr
    run = read_run(tmp_path / "run")
    assert (run.info.id, endings(run)) == ("nightly-7", {0: "ValueError"})
    assert recorded(run, Kind.PHASE)[0].count("SGD") == 3
    (details,) = [details for details in run.ranks[0].details.values() if details.get("type") == "ValueError"]
    assert details["at"] == "alone.py:8"


def test_a_spawned_process_is_recorded_with_the_error_that_multiprocessing_catches(tmp_path: Path) -> None:
    """The child reads the script again, and makes an optimizer there; its loader has a worker: both are no training."""
    out, script = tmp_path / "run", written(tmp_path / "spawn.py", BY_SPAWN)
    ended = traincope_run("--out", str(out), "--", sys.executable, script)
    assert ended.returncode == 1
    run = read_run(out)
    assert (run.attempts, endings(run)) == (1, {0: "KeyError"})
    assert recorded(run, Kind.COLLECTIVE) == {0: ["all_reduce"]}
    assert [(note.rank, note.exit_code) for note in run.launcher] == [(0, 1)]


def test_a_run_that_the_script_begins_replaces_the_automatic_run(tmp_path: Path) -> None:
    out, own_run, script = tmp_path / "run", tmp_path / "own", written(tmp_path / "own.py", RECORDS_ITSELF)
    ended = traincope_run("--out", str(out), "--", sys.executable, script, str(own_run))
    assert ended.returncode == 0
    assert f"the command itself recorded in {own_run}" in ended.stderr
    assert "already recording" not in ended.stderr
    assert not out.exists()
    assert recorded(read_run(own_run), Kind.COLLECTIVE) == {0: ["all_reduce"]}


IN_A_SHELL = f"{sys.executable} -m traincope.cli.main run"


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("{run} --out x -- sh -c 'rm $TRAINCOPE_NOTES; exit 3'", "its processes could not report"),
        ("{run} --out x -- sh -c 'rm $TRAINCOPE_NOTES; mkfifo $TRAINCOPE_NOTES; exit 3'", "could not report"),
        ("ulimit -f 0; {run} --out x -- sh -c 'exit 3'", "its processes could not report"),
        ("ulimit -n 6; {run} --out x -- sh -c 'exit 3'", ""),
        ("mkdir gone; cd gone; rmdir ../gone; {run} -- sh -c 'exit 3'", "traincope: not recorded: No such file or dir"),
        ("o=$PWD; mkdir gone; cd gone; rmdir ../gone; {run} --out $o/x -- sh -c 'exit 3'", "nothing was recorded"),
        ("TRAINCOPE_ON_HANG=stop {run} --out x -- sh -c 'exit 3'", "TRAINCOPE_ON_HANG must be report or exit"),
        ("TRAINCOPE_ON_HANG=exit {run} --out x -- sh -c 'exit 3'", "TRAINCOPE_AGENT=off switches off"),
        ("TRAINCOPE_OUT=/dev/null {run} -- sh -c 'exit 3'", "TRAINCOPE_OUT is ignored: /dev/null is not a directory"),
        ("{run} --out x -- sh -c 'exit 3' 2>/dev/full", ""),
        ("{run} --out x -- sh -c 'exit 3' 2>&- >&- <&-", ""),
        ("{ {run} --out x -- sh -c 'sleep 0.3; exit 3' 2>&1 >&-; echo $? >code; } | true; exit `cat code`", ""),
    ],
)
def test_whatever_happens_to_traincope_the_command_runs_and_its_exit_code_stays(
    tmp_path: Path, line: str, printed: str
) -> None:
    ended = subprocess.run(
        ["sh", "-c", line.replace("{run}", IN_A_SHELL)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**ENVIRONMENT, "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
    )
    assert (ended.returncode, ended.stdout) == (3, ""), ended.stderr
    assert printed in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.glob("traincope-run-*"))
    assert not (tmp_path / "traincope_runs").exists()


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("-c", "print(1)"), "1 Python process ran, but torch was not imported"),
        (("-S", "-c", "print(1)"), "no Python 3.11 or newer started with this"),
        (("-I", "-c", "print(1)"), "no Python 3.11 or newer started with this"),
    ],
)
def test_a_command_that_recorded_nothing_prints_the_reason(
    tmp_path: Path, words: tuple[str, ...], printed: str
) -> None:
    ended = traincope_run("--out", str(tmp_path / "run"), "--", sys.executable, *words)
    assert (ended.returncode, ended.stdout) == (0, "1\n")
    assert f"traincope: nothing was recorded: {printed}" in ended.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "the command is missing; give it after --, e.g. traincope run --out"),
        (("--",), "the command is missing; give it after --, e.g. traincope run --out"),
        (("--", "--out", "x"), "unknown option --out; give your command after --"),
        (("--", "no-such-command"), "cannot start no-such-command: No such file or directory"),
        (("--out", str(Path(__file__).parent), "--", "true"), "already exists and is not empty"),
    ],
)
def test_a_command_line_that_cannot_be_run_is_refused(words: tuple[str, ...], sentence: str) -> None:
    arguments = make_parser(["run"]).parse_args(["run", *words])
    with pytest.raises(UsageError) as refused:
        arguments.command.run(arguments)
    assert sentence in str(refused.value)


def test_budget_and_level_reach_every_process(tmp_path: Path) -> None:
    show = "import os; print(os.environ['TRAINCOPE_BUDGET'], os.environ['TRAINCOPE_LEVEL'])"
    options = ("--out", str(tmp_path / "run"), "--budget", "none", "--level", "2")
    ended = traincope_run(*options, "--", sys.executable, "-c", show)
    assert (ended.returncode, ended.stdout) == (0, "none 2\n")


def test_a_run_that_cannot_be_analyzed_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text("{")
    print_outcome(
        tmp_path,
        new=frozenset({tmp_path / "attempt-000" / "rank-00000"}),
        process_notes=Notes(counts={}, without_traincope=(), own_runs=(), ends=()),
    )
    recorded_line, reason, command = capsys.readouterr().err.splitlines()
    assert recorded_line.startswith("traincope: recorded 1 rank in ")
    assert reason.startswith("traincope: no verdict here: ")
    assert command.endswith(f"report {tmp_path}")


KILLED_AT_START = """
import os, signal, time
import torch.distributed as dist

if os.environ["RANK"] == "1":
    time.sleep(2)
    os.kill(os.getpid(), signal.SIGKILL)
dist.init_process_group("gloo")
"""


def test_a_rank_that_is_killed_before_its_first_process_group_is_named(tmp_path: Path) -> None:
    script = written(tmp_path / "start.py", KILLED_AT_START)
    launcher = (str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", "2")
    ended = traincope_run("--out", str(tmp_path / "run"), "--", *launcher, str(script))
    assert ended.returncode == 1
    assert "rank 1 was killed (signal 9) before it called init_process_group, and no rank had a pro" in ended.stderr
