"""Samples of a training thread's Python stack in a window, or in long steps: `stacks-step-N.json` in the rank's
directory, with the first step N.

    {"interval_ns": 10000000, "requested": true, "of_long_steps": false,
     "sites": [["train.py", 31, "Slow.forward", "layers.3", "time.sleep"], ...],
     "stacks": [[0, 4, 5], ...], "times_ns": [...], "waited_ns": [...], "stack": [...]}

A stack lists the numbers of its sites, innermost first. The last three have one entry per sample.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from traincope.arrays import Ints
from traincope.errors import RunDirectoryError
from traincope.store.layout import STACK_SAMPLES_FILES, step_of_samples
from traincope.store.lines import read_object


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A line of code in a stack."""

    path: str
    line: int
    function: str
    """Qualified name."""
    module: str
    """Name of the innermost module of the model around it; empty outside of modules."""
    called: str
    """Function without a Python frame that the line had called, e.g. `time.sleep`; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSamples:
    """Samples of one rank in one window."""

    first_step: int
    """First step of the window, which leads in."""
    interval_ns: int
    """Pause between two samples."""
    stacks: tuple[tuple[Site, ...], ...]
    """Distinct stacks, innermost site first."""
    times_ns: Ints
    """Monotonic times of the rank's host, ascending."""
    waited_ns: Ints
    """Time from the request for each sample until it was taken, in which the thread was in C."""
    stack: Ints
    """Number of each sample's stack."""
    requested: bool = True
    of_long_steps: bool = False
    """Only steps that lasted much longer than those before were sampled."""


def read_stack_samples(rank: Path) -> Iterator[StackSamples]:
    """Yield the samples of a rank's windows, in order. Unreadable files are left out."""
    for path in sorted(rank.glob(STACK_SAMPLES_FILES)):
        first_step = step_of_samples(path)
        if first_step is None:
            continue
        try:
            yield _samples(read_object(path), first_step=first_step)
        except (RunDirectoryError, KeyError, TypeError, ValueError, IndexError):
            continue


def _samples(raw: dict[str, Any], *, first_step: int) -> StackSamples:
    sites = [
        Site(path=str(path), line=int(line), function=str(function), module=str(module), called=str(called))
        for path, line, function, module, called in raw["sites"]
    ]
    stacks = tuple(tuple(sites[int(number)] for number in numbers) for numbers in raw["stacks"])
    columns = (np.array(raw[name], dtype=np.int64).reshape(-1) for name in ("times_ns", "waited_ns", "stack"))
    times_ns, waited_ns, stack = columns
    known = not len(stack) or 0 <= stack.min() <= stack.max() < len(stacks)
    if not (len(times_ns) == len(waited_ns) == len(stack) and known):
        raise ValueError("a sample has no stack")
    return StackSamples(
        first_step=first_step,
        interval_ns=int(raw["interval_ns"]),
        stacks=stacks,
        times_ns=times_ns,
        waited_ns=waited_ns,
        stack=stack,
        requested=bool(raw.get("requested", True)),
        of_long_steps=bool(raw.get("of_long_steps")),
    )
