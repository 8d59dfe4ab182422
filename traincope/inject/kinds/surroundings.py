"""Faults of what surrounds a rank: its disk, its clock, its data workers, its checkpoints, its agent, its end."""

import functools
import multiprocessing
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from traincope.inject.kinds.fault import Fault, Injector, no_rank, once, prepared
from traincope.inject.kinds.stuck import FOR_EVER

CLOCK_JUMP_SECONDS = 3_600.0


def _fill_the_disk(_injector: Injector) -> None:
    """Let no file of this process grow from now on."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _jump(_injector: Injector) -> None:
    """Set this process's wall clock forward. The machine's stays as it is."""
    read, read_ns = time.time, time.time_ns
    time.time = lambda: read() + CLOCK_JUMP_SECONDS
    time.time_ns = lambda: read_ns() + int(CLOCK_JUMP_SECONDS * 1e9)


def _signal_worker(number: signal.Signals) -> Callable[[Injector], None]:
    """Send a signal to a data worker."""

    def act(_injector: Injector) -> None:
        for child in multiprocessing.active_children()[:1]:
            if child.pid is not None:
                os.kill(child.pid, number)

    return act


def _stand_in(injector: Injector, owner: Any, name: str) -> None:
    """Let a function stand still at its next call, for ever."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def standing(*_args: Any, **_kwargs: Any) -> None:
        injector.tell(injector.injection.step)
        time.sleep(FOR_EVER)

    setattr(owner, name, standing)


def _stop_checkpoints(injector: Injector) -> None:
    """Stand still inside of torch's functions, as a writer to a dead disk does."""
    import torch
    from torch.distributed.checkpoint import state_dict_saver

    _stand_in(injector, torch.serialization, "_save")
    _stand_in(injector, state_dict_saver, "_save_state_dict")


def _stop_teardown(injector: Injector) -> None:
    """Stand still inside of `destroy_process_group`, which calls this function last."""
    from torch.distributed import distributed_c10d

    _stand_in(injector, distributed_c10d, "_update_default_pg")


def _kill_agent(_injector: Injector) -> None:
    """Kill the agents of this node."""
    subprocess.run(["pkill", "-KILL", "-f", "traincope.* agent "], check=False)


SURROUNDINGS = (
    Fault(name="disk_full", what="no file of the rank can grow any more", arm=once(_fill_the_disk)),
    Fault(name="clock_jump", what="the rank's wall clock jumps forward by an hour", arm=once(_jump)),
    Fault(
        name="worker_killed", what="one of the rank's data workers is killed", arm=once(_signal_worker(signal.SIGKILL))
    ),
    Fault(
        name="worker_stuck", what="one of the rank's data workers is stopped", arm=once(_signal_worker(signal.SIGSTOP))
    ),
    Fault(name="checkpoint_stuck", what="the rank's next checkpoint never ends", arm=prepared(_stop_checkpoints)),
    Fault(name="teardown_stuck", what="the rank stands still in destroy_process_group", arm=prepared(_stop_teardown)),
    Fault(name="agent_killed", what="the node's agent is killed", arm=once(_kill_agent), culprits=no_rank),
)
