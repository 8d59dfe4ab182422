"""Python with the sitecustomize of `traincope run` keeps its path, its modules and its torch."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from traincope import open_run, startup
from traincope.record.session.identity import this_host
from traincope.record.session.options import OUT_VARIABLE
from traincope.startup.notes import NOTES_VARIABLE, ChildEnd, Note, Notes, read_notes
from traincope.topology import Host

INTERPRETER = Path(startup.__file__).parent / "interpreter"

WHAT_IS_THERE = """
import sys
ours = {"traincope_watch"}
print(sys.path, sorted(set(sys.modules) - ours), getattr(sys.modules.get("sitecustomize"), "said", None))
"""

TRAINS_WITHOUT_TRAINCOPE = """
import importlib, pickle, sys
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.optim import optimizer
assert pickle.loads(pickle.dumps(dist.init_process_group)) is dist.init_process_group
for module in (distributed_c10d, optimizer):
    assert "exec_module" not in vars(module.__loader__)
assert not [finder for finder in sys.meta_path if type(finder).__module__ == "traincope_watch"]

sys.modules["traincope"] = None
assert "traincope_watch" in dist.init_process_group.__code__.co_filename
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.destroy_process_group()
importlib.reload(distributed_c10d)
assert "traincope_watch" not in distributed_c10d.init_process_group.__code__.co_filename
"""


def python(script: str, *places: Path, notes: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), NOTES_VARIABLE: str(notes)}
    return subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=150, env=environment
    )


@pytest.mark.parametrize(
    "theirs",
    ["", "said = 'hello'", "import traincope_not_there", "raise OSError('no such mount')"],
    ids=["none", "one", "imports what is not there", "raises"],
)
def test_the_users_sitecustomize_still_runs(tmp_path: Path, theirs: str) -> None:
    if theirs:
        (tmp_path / "sitecustomize.py").write_text(theirs)
    without, with_ours = python(WHAT_IS_THERE, tmp_path), python(WHAT_IS_THERE, INTERPRETER, tmp_path)
    assert with_ours.stdout == without.stdout
    assert with_ours.stderr == without.stderr
    assert with_ours.returncode == without.returncode


def test_torch_is_left_as_it_was_and_an_interpreter_without_traincope_trains_unrecorded(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    ended = python(TRAINS_WITHOUT_TRAINCOPE, INTERPRETER, notes=notes)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert read_notes(notes) == Notes(
        counts={Note.PYTHON: 1, Note.TORCH: 1, Note.NO_TRAINCOPE: 1},
        without_traincope=(sys.executable,),
        own_runs=(),
        ends=(),
    )


CHILDREN = """
import multiprocessing, os, signal, subprocess, sys

def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    pids = []
    for code in ("pass", "import os; os._exit(5)"):
        child = subprocess.Popen([sys.executable, "-Sc", code])
        child.wait()
        pids.append(child.pid)
    for method in ("spawn", "fork", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=kill_myself)
        process.start()
        process.join()
        assert process.exitcode == -9, process.exitcode
        pids.append(process.pid)
    stopped = os.fork()
    if not stopped:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    assert os.WIFSTOPPED(os.waitpid(stopped, os.WUNTRACED)[1])
    os.kill(stopped, signal.SIGCONT)
    assert os.waitpid(stopped, 0) == (stopped, 0)
    print(*pids, stopped)
"""


def test_the_parent_that_waits_for_a_child_notes_its_end(tmp_path: Path) -> None:
    """Started by subprocess, or by multiprocessing in each of its ways; one that is only stopped has not ended."""
    notes, script = tmp_path / "notes", tmp_path / "children.py"
    notes.touch()
    script.write_text(CHILDREN)
    ended = python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", INTERPRETER, notes=notes)
    assert (ended.returncode, ended.stderr) == (0, "")
    well, left, *killed, continued = map(int, ended.stdout.split())
    noted = [(end.pid, end.exit_code) for end in read_notes(notes).ends]
    assert noted == [(well, 0), (left, 5), *((pid, -signal.SIGKILL) for pid in killed), (continued, 0)]
    assert {end.host for end in read_notes(notes).ends} == {this_host()}
    times = [end.at_wall_ns for end in read_notes(notes).ends]
    assert times == sorted(times)


STOPS_ITS_LAUNCHER = """
import os, signal, time
if os.environ["RANK"] == "1":
    print(os.getppid(), flush=True)
    time.sleep(3)  # a launcher that is stopped while it starts its ranks does not wait for their ends
    os.kill(os.getppid(), signal.SIGTERM)
time.sleep(60)
"""


def test_a_torchrun_that_a_signal_stops_notes_it(tmp_path: Path) -> None:
    notes, script = tmp_path / "notes", tmp_path / "rank.py"
    notes.touch()
    script.write_text(STOPS_ITS_LAUNCHER)
    launch = f"import runpy, sys; sys.argv[1:] = ['--nproc-per-node', '2', {str(script)!r}]"
    ended = python(
        f"{launch}; runpy.run_module('torch.distributed.run', run_name='__main__')", INTERPRETER, notes=notes
    )
    assert (ended.returncode, ended.stderr.rstrip().endswith("got signal: 15")) == (1, True)
    assert [(end.pid, end.exit_code) for end in read_notes(notes).stops] == [(int(ended.stdout), -signal.SIGTERM)]


def test_an_incomplete_note_is_ignored(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text(
        "child 7 -9 100 node1 b00t\nchild 8 -9 100 node2\nchild 8 -9 100\nchild 8 -9\nchild 9 -9 later x y\n"
    )
    assert read_notes(notes).ends == (
        ChildEnd(pid=7, exit_code=-9, at_wall_ns=100, host=Host(name="node1", boot_id="b00t")),
        ChildEnd(pid=8, exit_code=-9, at_wall_ns=100, host=Host(name="node2", boot_id="")),
    )


WAITPID = """
import inspect, os, pickle, posix
here = os.waitpid
print(here.__module__, here.__name__, here.__qualname__, here.__doc__, inspect.signature(here))
assert pickle.loads(pickle.dumps(here)) is here is posix.waitpid
"""


def test_waitpid_looks_and_pickles_like_the_original() -> None:
    without, with_ours = python(WAITPID), python(WAITPID, INTERPRETER)
    assert (with_ours.stdout, with_ours.stderr) == (without.stdout, "")
    assert without.stdout.startswith("posix waitpid waitpid ")


def test_nothing_is_written_without_a_reader(tmp_path: Path) -> None:
    assert python("print('fine')", INTERPRETER, notes=tmp_path / "notes").stdout == "fine\n"
    assert list(tmp_path.iterdir()) == []


UNUSED_BY_TORCH = ("decimal", "fractions", "resource", "statistics", "sysconfig", "tomllib")
"""Modules of the standard library that the recorder imports, and torch does not."""
SHADOWED = """
import sys
sys.modules["sysconfig"] = sys  # a module of the training's own, imported before
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(dist.get_world_size())
dist.destroy_process_group()
"""
RAISES = """
import builtins, sys
import torch.distributed as dist
real = builtins.__import__
def handler(number, frame):
    raise TypeError("of the training")
def interrupted(name, *arguments):
    if name.startswith("traincope"):
        handler(14, sys._getframe())  # as Python calls a signal handler
    return real(name, *arguments)
builtins.__import__ = interrupted
try:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
except TypeError as error:
    print(error)
"""


def test_a_training_with_modules_of_the_recorder_s_names_trains_unrecorded(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    ended = python(SHADOWED, INTERPRETER, notes=notes)
    assert (ended.stdout, ended.stderr) == ("1\n", "")
    assert read_notes(notes).without_traincope == (sys.executable,)


def test_files_next_to_the_script_hide_no_module_of_the_interpreter_from_the_recorder(tmp_path: Path) -> None:
    """A training that does not import such a file never runs it."""
    notes, script = tmp_path / "notes", tmp_path / "train.py"
    notes.touch()
    script.write_text(SHADOWED.replace("sys.modules[", "#"))
    for name in UNUSED_BY_TORCH:
        (tmp_path / f"{name}.py").write_text("print('a file of the training ran')")
    runs_it = f"import runpy, sys; sys.path[0] = {str(tmp_path)!r}; runpy.run_path({str(script)!r})"
    ended = python(runs_it, INTERPRETER, notes=notes)
    assert (ended.stdout, ended.stderr) == ("1\n", "")
    assert read_notes(notes).counts[Note.TRAINS] == 1


def test_what_a_signal_handler_raises_during_the_import_passes(tmp_path: Path) -> None:
    assert python(RAISES, INTERPRETER, notes=tmp_path / "notes").stdout == "of the training\n"


FAILS = """
import os, subprocess, sys, torch
if sys.argv[1:] == ["child"]:
    raise ValueError("of a process that the rank starts")
subprocess.run([sys.executable, sys.argv[0], "child"])
raise OSError("no tokenizer")
"""


def test_a_rank_of_a_launcher_that_fails_before_it_trains_is_recorded(tmp_path: Path) -> None:
    """The processes that it starts, which have its variables, are not; nor is a launcher with the RANK of its node."""
    script = tmp_path / "train.py"
    script.write_text(FAILS)
    shown = {}
    for name, rank in {"launcher": {"RANK": "3"}, "rank": {"RANK": "3", "LOCAL_RANK": "3"}}.items():
        notes = tmp_path / f"notes-{name}"
        notes.touch()
        places = {"PYTHONPATH": str(INTERPRETER), NOTES_VARIABLE: str(notes), OUT_VARIABLE: str(tmp_path / name)}
        environment = {**os.environ, **rank, **places}
        ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=150, env=environment)
        assert ended.returncode == 1
        shown[name] = ended.stderr
    assert shown["launcher"] == shown["rank"]
    assert "traincope" not in shown["rank"]
    assert len([*tmp_path.rglob("rank.json")]) == 1
    run = open_run(tmp_path / "rank").run
    assert [(rank.rank, rank.info.ending) for rank in run.ranks] == [(3, "OSError")]
    assert run.info.id == "rank"


CANNOT_JOIN = """
import os, socket, sys
import torch.distributed as dist
os.environ.update(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
with socket.socket() as other:
    other.bind(("", 0))
    other.listen()
    os.environ["MASTER_PORT"] = str(other.getsockname()[1])
    try:
        dist.init_process_group("gloo")
    except dist.DistNetworkError:
        pass
if sys.argv[1:] == ["again"]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(("words", "ending"), [([], "DistNetworkError"), (["again"], "clean")])
def test_a_rank_that_cannot_join_is_recorded_at_its_end(tmp_path: Path, words: list[str], ending: str) -> None:
    """No launcher has started it: it makes its variables itself, as in a function of multiprocessing, which catches the
    error. If it tries again, and joins, it has not failed.
    """
    notes, script = tmp_path / "notes", tmp_path / "train.py"
    notes.touch()
    script.write_text(CANNOT_JOIN)
    places = {"PYTHONPATH": str(INTERPRETER), NOTES_VARIABLE: str(notes), OUT_VARIABLE: str(tmp_path / "run")}
    ended = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, timeout=150, env={**os.environ, **places}
    )
    assert (ended.returncode, "traincope" in ended.stderr) == (0, False)
    assert [rank.info.ending for rank in open_run(tmp_path / "run").run.ranks] == [ending]


KEEPS = """
import os, sys, weakref
import torch, torch.distributed as dist

class Held:
    pass

def join():
    held = Held()
    try:
        dist.init_process_group("gloo", init_method="env://", rank=0, world_size=1)
    except ValueError:
        return weakref.ref(held)

os.environ.pop("MASTER_ADDR", None)
if sys.argv[1:] == ["rank"]:
    os.environ["RANK"] = "0"
held = join()
assert (held() is not None) == (sys.argv[1:] == ["rank"])
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
assert held() is None
"""


@pytest.mark.parametrize("words", [[], ["rank"]])
def test_a_training_that_goes_on_without_a_group_keeps_no_frames(tmp_path: Path, words: list[str]) -> None:
    """They would keep its tensors alive. A rank keeps them until it trains: it may be its end."""
    notes, script = tmp_path / "notes", tmp_path / "train.py"
    notes.touch()
    script.write_text(KEEPS)
    places = {"PYTHONPATH": str(INTERPRETER), NOTES_VARIABLE: str(notes), OUT_VARIABLE: str(tmp_path / "run")}
    ended = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, timeout=150, env={**os.environ, **places}
    )
    assert (ended.returncode, ended.stderr) == (0, "")


WRAPS = """
import subprocess, sys
import torch.distributed as dist
if sys.argv[1:] == ["child"]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    raise ValueError("of the rank")
subprocess.run([sys.executable, sys.argv[0], "child"], check=True)
"""


def test_a_script_above_the_rank_does_not_take_its_place(tmp_path: Path) -> None:
    """Both have the variables of the rank. The script fails because the rank did."""
    script, notes = tmp_path / "train.py", tmp_path / "notes"
    script.write_text(WRAPS)
    notes.touch()
    places = {"PYTHONPATH": str(INTERPRETER), NOTES_VARIABLE: str(notes), OUT_VARIABLE: str(tmp_path / "run")}
    environment = {**os.environ, **places, "RANK": "0", "LOCAL_RANK": "0"}
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=150, env=environment)
    assert "CalledProcessError" in ended.stderr
    run = open_run(tmp_path / "run").run
    assert [(rank.rank, rank.info.ending) for rank in run.ranks] == [(0, "ValueError")]
    assert run.attempts == 1


NO_DESCRIPTOR = """
import resource, sys, types
sys.modules["torch"] = types.ModuleType("torch")
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
raise OSError("no tokenizer")
"""


def test_a_failing_rank_without_a_free_descriptor_shows_its_own_error(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    environment = {**os.environ, "PYTHONPATH": str(INTERPRETER), NOTES_VARIABLE: str(notes)} | dict.fromkeys(
        ("RANK", "LOCAL_RANK"), "0"
    )
    ended = subprocess.run([sys.executable, "-c", NO_DESCRIPTOR], capture_output=True, text=True, env=environment)
    assert (
        ended.stderr
        == 'Traceback (most recent call last):\n  File "<string>", line 5, in <module>\nOSError: no tokenizer\n'
    )
