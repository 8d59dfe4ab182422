"""Start of the node's agent: a fresh interpreter that is independent of this process.

The agent is not a child of this process: a launcher that waits for all children of a training would wait for it. Its
parent is a shell that waits for it and ends after it: the supervisor, whose descendants may read the ranks
(`process.outside_reader`). Both have a session of their own, so that a signal to the training's process group does not
end them.
"""

import json
import logging
import os
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from traincope.errors import RunDirectoryError
from traincope.private_files import held, open_regular
from traincope.record.instrumentation.asynchronous import suppressed
from traincope.record.instrumentation.own_children import start_program
from traincope.record.session.identity import this_host
from traincope.record.session.options import OFF, OFF_SWITCH, SHIP_VARIABLE
from traincope.record.session.rendezvous import Place
from traincope.store.job.manifests import read_rank_info
from traincope.store.job.process import Process
from traincope.store.layout import AGENT_LOG, attempt_directory
from traincope.store.lock import is_locked, job_name, lock_path, take_lock
from traincope.store.places.ship_notes import NAMED_VARIABLE, is_shipped, ship_wait_seconds

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
SHELL = ("/bin/sh", "-c", '"$@"; :', "sh")
"""The supervisor. `:` keeps it from becoming the agent."""
PROGRAM = "import sys; sys.path.append(sys.argv.pop(1)); from traincope.cli.commands.agent import main; main()"
"""traincope comes last on the path: files next to it must not hide modules of the interpreter."""
LOCK, KEY = 3, 4
"""The agent's descriptors."""
RANKS_VARIABLES = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE")


def start_agent(place: Place, disk_budget_bytes: int, ship: str | None = None) -> None:
    """Start the agent of this node and attempt unless it runs already. Raises OSError if no process can be started.

    `ship`: the URL below which it ships the run.
    """
    lock = take_lock(_lock_path(place))
    if lock is not None:
        with held(lock):  # until the agent has it
            _write_supervisor(lock, _launch(place, disk_budget_bytes, lock, ship=ship))


def _lock_path(place: Place) -> Path:
    return lock_path(job_name(place.run, attempt=place.attempt))


def _write_supervisor(lock: int, number: int) -> None:
    """Write the supervisor's identity, which no later process and no other container shares, into the lock file."""
    supervisor = Process.of(number)
    if supervisor is not None:
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(supervisor.as_json()).encode(), 0)


def supervisor_of(place: Place) -> Process | None:
    """The parent of this node's agent, from the agent's lock file; None if no rank has written it yet."""
    with suppressed(OSError, ValueError):
        return Process.read(json.loads(_lock_path(place).read_bytes()))
    return None


def _launch(place: Place, disk_budget_bytes: int, lock: int, *, ship: str | None) -> int:
    """Return the supervisor's process id."""
    command = [
        *(*SHELL, sys.executable, "-P", "-c", PROGRAM, str(Path(__file__).parents[3])),
        *(str(place.run), "--attempt", str(place.attempt), "--lock", str(LOCK)),
        *("--disk-budget", str(disk_budget_bytes), *_local_ranks()),
    ]
    environment = _environment(place, ship=ship)
    with ExitStack() as opened:
        nothing = opened.enter_context(held(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)))
        log = opened.enter_context(
            held(open_regular(place.directory / AGENT_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        )
        descriptors = {0: nothing, 1: log, 2: log, LOCK: lock}
        if place.key is not None:
            descriptors[KEY] = opened.enter_context(held(_pipe_with(place.key)))
            command += ["--key", str(KEY)]
        return start_program(command, environment=environment, descriptors=descriptors)


def _pipe_with(key: str) -> int:
    """Return the reading end of a pipe that holds the key: it appears in no argument, variable or file."""
    reading, writing = os.pipe()
    os.write(writing, key.encode())
    os.close(writing)
    return reading


def _environment(place: Place, *, ship: str | None) -> dict[str, str]:
    """Return the training's environment, with one thread for numpy, with recording off, and where to ship the run."""
    variables = {name: value for name, value in os.environ.items() if name != "TRAINCOPE_NOTES"}
    named = {} if place.named is None else {NAMED_VARIABLE: str(place.named)}
    return {**variables, SHIP_VARIABLE: ship or OFF[0], **named, "OMP_NUM_THREADS": "1", OFF_SWITCH: "off"}


def num_local_ranks() -> int | None:
    """Return the number of ranks on the node, if the launcher sets it."""
    return next((int(os.environ[name]) for name in RANKS_VARIABLES if os.environ.get(name, "").isdecimal()), None)


def _local_ranks() -> tuple[str, ...]:
    ranks = num_local_ranks()
    return () if ranks is None else ("--ranks", str(ranks))


def await_shipping(place: Place) -> None:
    """Wait until the agent has shipped this node's records, at the process's exit: a container may end with it.

    Only the last rank of the host waits: the agent goes on while another one runs, and a launcher must see the end of
    a rank that failed at once. The wait has a limit, and ends if no agent runs any more. What was not shipped is
    logged.
    """
    if _another_rank_runs(place):
        return
    until = time.monotonic() + ship_wait_seconds(os.environ)
    lock = _lock_path(place)
    while place.directory.exists() and not is_shipped(place.run, attempt=place.attempt, host=this_host()):
        if time.monotonic() > until or not is_locked(lock):
            logger.warning(
                "not all records were shipped; those left are in %s: ship them with `traincope ship %s`",
                place.run,
                place.named or place.run,
            )
            return
        time.sleep(POLL_SECONDS)


def _another_rank_runs(place: Place) -> bool:
    """Return whether another rank of this host records in this attempt."""
    host = this_host()
    for directory in attempt_directory(place.run, place.attempt).glob("rank-*"):
        with suppress(RunDirectoryError):
            info = read_rank_info(directory)
            runs = info.ending is None and info.process is not None and info.process.is_running()
            if runs and info.host == host and directory != place.directory:
                return True
    return False
