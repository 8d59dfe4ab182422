"""`traincope hang PID` on real jobs of torchrun with two ranks on gloo, which know nothing of traincope."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import ENVIRONMENT
from tests.live.processes import until
from tests.live.unrecorded import hanging
from traincope.errors import UsageError
from traincope.live.unrecorded.processes import find_ranks
from traincope.store.job.outside_stacks import find_py_spy, read_stacks
from traincope.store.job.process import Process, children_of_all

PYTHON = Path(sys.executable).parent
LINE = 1 + Path(hanging.__file__).read_text().split("\n").index(
    "                time.sleep(3600)  # the line of the fault"
)
WITHOUT_PTRACE = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")


def torchrun(dumps: Path, *, stop: Path) -> "subprocess.Popen[bytes]":
    command = [PYTHON / "torchrun", "--standalone", "--nproc-per-node", "2", hanging.__file__, str(stop)]
    variables = {"TORCH_FR_DUMP_TEMP_FILE": f"{dumps}/dump_", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill(launcher: "subprocess.Popen[bytes]") -> None:
    """Kill the launcher and its ranks, which are in sessions of their own."""
    ranks = children_of_all().get(launcher.pid, ())
    for pid in (launcher.pid, *ranks):
        os.kill(pid, signal.SIGKILL)
    launcher.wait()


def answer(*words: str, before: tuple[str, ...] = (), without_py_spy: bool = False) -> dict[str, Any]:
    program = [sys.executable, "-m", "traincope.cli.main"]
    if without_py_spy:  # an interpreter in another directory, with the same packages
        program = [sys.executable, "-c", HIDDEN]
    done = subprocess.run(
        [*before, *program, "hang", *words, "--format", "json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


HIDDEN = """
import os, sys
os.environ["PATH"], sys.executable = "/usr/bin:/bin", "/usr/bin/python3"
from traincope.cli.main import main
main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    process: "subprocess.Popen[bytes]"
    dumps: Path
    stop: Path
    """The file that lets it hang."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job that trains until a test needs `hung`."""
    dumps, stop = tmp_path_factory.mktemp("dumps"), tmp_path_factory.mktemp("stop") / "stop"
    process = torchrun(dumps, stop=stop)
    try:
        yield Job(process=process, dumps=dumps, stop=stop)
    finally:
        kill(process)


@pytest.fixture(scope="module")
def hung(job: Job) -> tuple[int, Path]:
    """The launcher of the job, which hangs now, and the folder with its dumps."""
    job.stop.touch()
    until(lambda: len(list(job.dumps.iterdir())) == 2 or job.process.poll() is not None, "the dumps")
    return job.process.pid, job.dumps


def test_a_healthy_job_has_no_hang_and_goes_on(job: Job) -> None:
    """The first test, before the job hangs."""
    assert not job.stop.exists()
    until(lambda: len(children_of_all().get(job.process.pid, ())) == 2, "the ranks")
    for rank in children_of_all()[job.process.pid]:
        until(lambda rank=rank: "all_reduce" in read_stacks(rank, py_spy=str(find_py_spy())).text, "its loop")
    shown = answer(str(job.process.pid))
    assert shown["hangs"] == []
    assert shown["lacks"][0].endswith("went on between 6 looks at 2 processes: no hang, a slow rank, or a loop")
    assert job.process.poll() is None


def test_the_launchers_processes_are_found_by_any_of_them(hung: tuple[int, Path]) -> None:
    launcher, _ = hung
    ranks = sorted(children_of_all()[launcher])
    for pids in ([launcher], ranks[:1], ranks):
        found = find_ranks(pids)
        assert [(each.rank, each.pid) for each in found.ranks] == list(enumerate(ranks))
        assert (found.world_size, found.numbered) == (2, False)


def test_the_rank_that_sleeps_is_named_by_stacks_and_kernel(hung: tuple[int, Path]) -> None:
    """Without dumps, as if the job wrote none."""
    launcher, dumps = hung
    kept = {path: path.read_bytes() for path in dumps.iterdir()}
    for path in kept:
        path.unlink()
    shown = answer(str(launcher))
    for path, content in kept.items():
        path.write_bytes(content)
    (hang,) = shown["hangs"]
    assert (hang["kind"], hang["culprits"], hang["victims"], hang["confidence"]) == ("stuck", [1], [0], "medium")
    assert (hang["call_site"], hang["collective"], hang["step"]) == (f"hanging.py:{LINE}", None, None)
    assert hang["lasted_ns"] >= 5_000_000_000
    ranks = sorted(children_of_all()[launcher])
    assert shown["verdict"][0]["advice"].startswith(f"Look at hanging.py:{LINE} (process {ranks[1]} on ")
    (lack,) = shown["lacks"]
    assert lack.startswith("collectives are not known: the processes wrote no dump")


def test_dumps_of_the_job_name_the_collective_too(hung: tuple[int, Path]) -> None:
    launcher, _ = hung
    shown = answer(str(launcher))
    (hang,) = shown["hangs"]
    assert (hang["culprits"], hang["victims"], hang["collective"]) == ([1], [0], "all_reduce")
    assert hang["call_site"] == f"hanging.py:{LINE}"
    assert shown["lacks"] == []


def test_the_c_frames_of_the_culprit_are_shown_on_request(hung: tuple[int, Path]) -> None:
    launcher, _ = hung
    (stack,) = answer(str(launcher), "--native")["native_stacks"]
    assert (stack["rank"], stack["problem"]) == (1, None)
    assert stack["pid"] in children_of_all()[launcher]
    line = next(at for at, frame in enumerate(stack["frames"]) if frame.endswith(f"(hanging.py:{LINE})"))
    assert any("nanosleep" in frame for frame in stack["frames"][:line])


def test_without_py_spy_the_dumps_still_answer(hung: tuple[int, Path]) -> None:
    launcher, _ = hung
    shown = answer(str(launcher), without_py_spy=True)
    assert shown["lacks"] == ["no stack is known, because py-spy is not installed: pip install 'traincope[stacks]'"]
    assert [hang["culprits"] for hang in shown["hangs"]] == [[1]]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take a capability away")
def test_without_the_right_to_read_processes_it_says_what_to_allow(hung: tuple[int, Path]) -> None:
    shown = answer(str(hung[0]), before=WITHOUT_PTRACE)
    assert shown["lacks"] == [
        "py-spy may not read the processes; run this command as the job's user or as root; a container also needs the "
        "capability SYS_PTRACE, and kernel.yama.ptrace_scope must be 0 (1 is enough for the agent that the job started)"
    ]


def test_processes_without_a_rank_are_numbered_and_a_recorded_job_is_pointed_to(tmp_path: Path) -> None:
    """Two sleeping interpreters, as of `multiprocessing`; one of them was started by `traincope run`."""
    bare = {name: value for name, value in os.environ.items() if name not in ("RANK", "SLURM_PROCID")}
    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    processes = [subprocess.Popen(sleep, env={**bare, **more}) for more in ({}, {"TRAINCOPE_OUT": str(tmp_path)})]
    try:
        for process in processes:
            until(lambda pid=process.pid: "<module>" in read_stacks(pid, py_spy=str(find_py_spy())).text, "its sleep")
        shown = answer(*(str(process.pid) for process in reversed(processes)))
        found = find_ranks([process.pid for process in reversed(processes)])
        assert [each.pid for each in found.ranks] == [process.pid for process in reversed(processes)]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [hang["culprits"] for hang in shown["hangs"]] == []
    assert shown["lacks"][0] == f"this job is recorded, which shows more: traincope hang {tmp_path}"
    assert shown["lacks"][1].startswith("no process has a rank in its environment")


def environment(pid: int) -> Mapping[str, str]:
    process = Process.of(pid)
    return (None if process is None else process.environment()) or {}


LAUNCHER = """
import os, subprocess, sys
ranks = [{"RANK": str(rank), "WORLD_SIZE": "2", **dict(word.split("=") for word in sys.argv[1:])} for rank in (0, 1)]
sleep = [sys.executable, "-c", "import sys; sys.stdin.read()"]
for process in [subprocess.Popen(sleep, env={**os.environ, **rank}) for rank in ranks]:
    process.wait()
"""
"""A launcher of two ranks with these variables, which end when its standard input is closed."""


@pytest.mark.parametrize("own", [(), ("TORCHELASTIC_RUN_ID=none",)], ids=["deepspeed", "torchrun"])
def test_a_launcher_in_a_slurm_task_is_no_rank(own: tuple[str, ...]) -> None:
    """The number of its task equals the first rank."""
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "MASTER_ADDR": "node", "MASTER_PORT": "1"}
    bare = {name: value for name, value in os.environ.items() if name != "RANK"}
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, *own], stdin=subprocess.PIPE, env={**bare, **slurm}) as job:
        until(lambda: len(children_of_all().get(job.pid, ())) == 2, "its ranks")
        ranks = sorted(children_of_all()[job.pid])
        until(lambda: all("RANK" in environment(pid) for pid in ranks), "their programs")
        for pids in ([job.pid], ranks[:1], ranks):
            assert [(each.rank, each.pid) for each in find_ranks(pids).ranks] == list(enumerate(ranks))


def test_a_process_that_does_not_run_is_refused() -> None:
    with pytest.raises(UsageError, match="no process 4194303 runs on this host"):
        find_ranks([4194303])
