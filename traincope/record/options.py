"""What a run can be told, by `traincope.run()` or the environment.

A value that cannot be is said once, in one line, and left out: the run goes on as if it had not been given.
"""

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

from traincope.record.throttle import DEFAULT_RATIO

logger = logging.getLogger(__name__)

OFF_SWITCH = "TRAINCOPE"
OUT_VARIABLE = "TRAINCOPE_OUT"
LEVEL_VARIABLE = "TRAINCOPE_LEVEL"
AGENT_VARIABLE = "TRAINCOPE_AGENT"
DEFAULT_DISK_BUDGET = 256 * 1024 * 1024
DEFAULT_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `traincope.run()` can be told."""

    out: str | os.PathLike[str] | None = None
    """The run directory, the same for all ranks. Default: $TRAINCOPE_OUT, else `traincope_runs/<run id>`."""
    run_id: str | None = None
    """What the run is called, the same for all ranks. Default: $TRAINCOPE_RUN_ID, else the launcher's job."""
    level: int = DEFAULT_LEVEL
    """What is recorded, by the levels of `probes.py`; $TRAINCOPE_LEVEL wins."""
    module_depth: int | None = None
    """At level 2, how far below the module that is called those lie that get spans; None: its blocks, found."""
    axes: Mapping[str, str] | None = None
    """Name or description of a process group -> its mesh axis, before whatever else tells."""
    disk_budget: int = DEFAULT_DISK_BUDGET
    """Bytes a writing thread may keep."""
    throttle: float | None = DEFAULT_RATIO
    """Own time above this share of the step over 20 steps lowers the level by one; None: never."""
    flops: float | None = None
    """Model FLOPs of one step of the whole job, where they cannot be counted; None: what is counted."""
    agent: bool = True
    """Whether the first rank of a node that finds none starts the node's agent; not if $TRAINCOPE_AGENT is `off`."""


def told_agent(options: Options) -> bool:
    """The environment can only take it away: where children are forbidden, the code does not change."""
    return options.agent and os.environ.get(AGENT_VARIABLE, "").lower() not in ("off", "0")


def told_level(options: Options) -> int:
    """The environment wins: a job is started again with less, or more, without a change of its code."""
    wish = os.environ.get(LEVEL_VARIABLE, "")
    if wish.isdecimal():
        return int(wish)
    if type(options.level) is int and options.level >= 0:
        return options.level
    logger.warning("level is %r, no whole number from 0 on: it is %d", options.level, DEFAULT_LEVEL)
    return DEFAULT_LEVEL


def told_disk_budget(options: Options) -> int:
    """Bytes."""
    if _is_amount(options.disk_budget):
        return int(options.disk_budget)
    logger.warning("disk_budget is %r, no number of bytes: it is %d", options.disk_budget, DEFAULT_DISK_BUDGET)
    return DEFAULT_DISK_BUDGET


def told_throttle(options: Options) -> float | None:
    """A share of the step; None: never too expensive."""
    if options.throttle is None or _is_amount(options.throttle):
        return options.throttle
    logger.warning("throttle is %r, no share of the step: it is %g", options.throttle, DEFAULT_RATIO)
    return DEFAULT_RATIO


def told_flops(options: Options) -> float | None:
    """Of one step of the whole job; None: not told."""
    if options.flops is None or (_is_amount(options.flops) and options.flops > 0):
        return options.flops
    logger.warning("flops is %r, no number of operations: it is left out", options.flops)
    return None


def told_depth(options: Options) -> int | None:
    """Levels below the root, at least 1; None: not told."""
    depth = options.module_depth
    if depth is None or (type(depth) is int and depth >= 1):
        return depth
    logger.warning("module_depth is %r, no whole number from 1 on: the model's blocks get spans", depth)
    return None


def told_axes(options: Options) -> dict[str, str]:
    """Of those that were told, the ones that are words."""
    axes = options.axes
    if axes is None:
        return {}
    if not isinstance(axes, Mapping):
        logger.warning("axes is no mapping of a process group's name or description to its axis: it is left out")
        return {}
    told = {name: axis for name, axis in axes.items() if _is_word(name) and _is_word(axis)}
    if len(told) < len(axes):
        logger.warning("axes of process groups need words, which %d of %d are not", len(axes) - len(told), len(axes))
    return told


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value.strip() == value != ""


def _is_amount(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf
