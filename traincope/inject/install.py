"""Inject what the environment asks for, in a process that trains."""

import os

from traincope.inject.calls import Calls
from traincope.inject.injection import FAULT_VARIABLE, parse_injections
from traincope.inject.kinds import FAULTS
from traincope.inject.kinds.fault import Injector
from traincope.inject.moments import Moments


def inject_requested() -> None:
    """Prepare the faults of $TRAINCOPE_FAULT. Does nothing without the variable. Raises UsageError if it is not valid.

    Every rank calls it at the same place, when it joins its process group: some faults need a second group.
    """
    text = os.environ.get(FAULT_VARIABLE)
    if not text:
        return
    import torch.distributed as dist

    joined = dist.is_available() and dist.is_initialized()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    moments, calls = Moments(), Calls()
    for injection in parse_injections(text, known=FAULTS):
        fault = FAULTS[injection.name]
        fault.arm(
            Injector(
                injection=injection,
                rank=rank,
                world_size=world_size,
                moments=moments,
                calls=calls,
                group=dist.new_group() if fault.needs_group and joined else None,
                culprits=fault.culprits(injection, world_size),
            )
        )
    moments.watch()
    calls.watch()
