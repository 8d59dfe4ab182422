"""Starting the node's agent: a fresh interpreter that this process has nothing more to do with.

A shell in between ends at once, so that the agent is nobody's child here: whoever waits for all children of a
training would wait for it. It has a session of its own, for what ends the training's group must not end it.
"""

import os
import sys
from pathlib import Path

import traincope
from traincope.record.meeting import Place
from traincope.record.options import OFF_SWITCH
from traincope.store.layout import AGENT_LOG
from traincope.store.lock import job_name, lock_path, take_lock

SHELL = ("/bin/sh", "-c", '"$@" &', "sh")
PROGRAM = "import sys; sys.path.append(sys.argv.pop(1)); from traincope.cli.agent import main; main()"
"""Last on the path: nothing beside this traincope may hide what the interpreter has."""
SHELL_SECONDS = 5.0
RANKS_VARIABLES = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE")


def start_agent(place: Place, disk_budget_bytes: int) -> None:
    """Of this node and attempt, unless there is one. Raises OSError where no process can be started."""
    lock = take_lock(lock_path(job_name(place.run, attempt=place.attempt)))
    if lock is None:
        return
    try:
        _launch(place, disk_budget_bytes, lock)
    finally:
        os.close(lock)  # the agent has it


def _launch(place: Place, disk_budget_bytes: int, lock: int) -> None:
    import subprocess  # here, for most processes that import traincope start no agent

    command = [
        *(*SHELL, sys.executable, "-P", "-c", PROGRAM, str(Path(traincope.__file__).parents[1])),
        *(str(place.run), "--attempt", str(place.attempt), "--lock", str(lock)),
        *("--disk-budget", str(disk_budget_bytes), *_local_ranks()),
    ]
    with (place.directory / AGENT_LOG).open("ab") as log:
        shell = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(),
            pass_fds=(lock,),
            start_new_session=True,
        )
        shell.wait(SHELL_SECONDS)


def _environment() -> dict[str, str]:
    """Of the training, but that numpy takes one thread, and nothing is recorded."""
    told = {name: value for name, value in os.environ.items() if name != "TRAINCOPE_NOTES"}
    return {**told, "OMP_NUM_THREADS": "1", OFF_SWITCH: "off"}


def _local_ranks() -> tuple[str, ...]:
    """How many ranks the node has, where the launcher tells."""
    told = next((os.environ[name] for name in RANKS_VARIABLES if os.environ.get(name, "").isdecimal()), None)
    return () if told is None else ("--ranks", told)
