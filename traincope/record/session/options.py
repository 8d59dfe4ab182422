"""Options of a run, from `traincope.run()` or the environment.

An impossible value is reported in one log line and replaced by its default. The run continues.
"""

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any

from traincope.errors import ConfigError, UsageError
from traincope.record.session.sampling import DEFAULT_BUDGET
from traincope.site_file import read_site_file, site_file
from traincope.store.places.node_local import Local
from traincope.store.places.remote import check_url, url_of

logger = logging.getLogger(__name__)

OFF_SWITCH = "TRAINCOPE"
OUT_VARIABLE = "TRAINCOPE_OUT"
LEVEL_VARIABLE = "TRAINCOPE_LEVEL"
BUDGET_VARIABLE = "TRAINCOPE_BUDGET"
AGENT_VARIABLE = "TRAINCOPE_AGENT"
MEMORY_PEAKS_VARIABLE = "TRAINCOPE_MEMORY_PEAKS"
MESSAGES_VARIABLE = "TRAINCOPE_MESSAGES"
WITNESS_VARIABLE = "TRAINCOPE_WITNESS"
SIGNAL_STACKS_VARIABLE = "TRAINCOPE_SIGNAL_STACKS"
NON_FINITE_VARIABLE = "TRAINCOPE_TRACE_NON_FINITE"
CORRUPTION_CHECK_VARIABLE = "TRAINCOPE_CORRUPTION_CHECK_STEPS"
WORKFLOW_VARIABLES = {"workflow": "TRAINCOPE_WORKFLOW", "role": "TRAINCOPE_ROLE"}
"""Setting of `run.describe()` -> variable: what jobs that work together share, and the name of this one among them."""
LOCAL_VARIABLE = "TRAINCOPE_LOCAL"
SHIP_VARIABLE = "TRAINCOPE_SHIP"
ON, OFF = ("on", "1"), ("off", "0")
DEFAULT_DISK_BUDGET = 256 * 1024 * 1024
DEFAULT_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Arguments of `traincope.run()`."""

    out: str | os.PathLike[str] | None = None
    """The run directory, the same for all ranks. Default: $TRAINCOPE_OUT, otherwise `traincope_runs/NAME`."""
    run_id: str | None = None
    """The run's id, the same for all ranks. Default: $TRAINCOPE_RUN_ID, otherwise the launcher's job."""
    level: int = DEFAULT_LEVEL
    """The level of recording, as `probes.py` defines it. $TRAINCOPE_LEVEL has precedence."""
    module_depth: int | None = None
    """At level 2: the depth below the root of the modules that get spans. None: the model's blocks, which are detected.
    """
    axes: Mapping[str, str] | None = None
    """Name or description of a process group -> its mesh axis. It has precedence over every other rule."""
    disk_budget: int = DEFAULT_DISK_BUDGET
    """Maximum bytes on disk per writing thread."""
    budget: float | None = DEFAULT_BUDGET
    """Maximum share of a step that the recorder may take on average: it then records detail in a part of the steps.
    None: in every step. $TRAINCOPE_BUDGET has precedence.
    """
    flops: float | None = None
    """Model FLOPs of one step of the whole job, if they cannot be counted. None: use the count."""
    agent: bool = True
    """If true, the first rank of a node starts the node's agent, unless $TRAINCOPE_AGENT is `off`."""
    messages: bool = True
    """If true, the message of an exception that ends the run is recorded, unless $TRAINCOPE_MESSAGES is `off`."""
    memory_peaks: bool = False
    """If true, the peak counter of torch's allocator is reset at each reading of memory, so that phases and steps have
    a peak of their own. The training must not use `torch.cuda.max_memory_allocated()` then. $TRAINCOPE_MEMORY_PEAKS has
    precedence.
    """
    witness: bool = False
    """If true, each node's agent copies the last seconds of its ranks' records to another host. $TRAINCOPE_WITNESS has
    precedence. Rank 0 decides for the job.
    """
    corruption_check_steps: int | None = None
    """Every so many steps, parameters and optimizer state are checked for silent corruption. None: never.
    $TRAINCOPE_CORRUPTION_CHECK_STEPS has precedence. It must be the same on all ranks.
    """
    trace_non_finite: bool = False
    """If true, the first value of a step that is not finite is traced to its module. $TRAINCOPE_TRACE_NON_FINITE has
    precedence.
    """
    signal_stacks: bool = False
    """If true, the rank writes its stacks at signals: those that end it, crashes, and the one of
    `traincope hang --stacks=signal`. $TRAINCOPE_SIGNAL_STACKS has precedence.
    """
    local: str = Local.AUTO
    """`auto`: record on the node if the run directory is on a network file system, and let the agent ship the records
    there. `on`: always. `off`: never. $TRAINCOPE_LOCAL has precedence.
    """
    ship: str | None = None
    """URL below which the agents ship the run, e.g. `s3://bucket/runs`. $TRAINCOPE_SHIP has precedence; `off`: none."""


SITE_KEYS = frozenset(each.name for each in fields(Options)) - {"out", "run_id", "flops", "axes"}
"""Options that a site may set for all runs. The others belong to one run."""
SWITCHES = frozenset(each.name for each in fields(Options) if each.type is bool)
"""Options that are true or false."""
TEXTS = frozenset({"local", "ship"})
"""Options that are text. The others of a site are numbers."""
EVERY_STEP = "none"
"""The budget without a limit, in a variable and in TOML."""


def with_site(given: Mapping[str, Any]) -> Options:
    """Return the given options, and the site's defaults for the others. A default that cannot be used is reported."""
    values, problems = site_options(site_file())
    for problem in problems:
        logger.warning("%s", problem)
    return Options(**{**values, **given})


def site_options(path: Path | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Options of the site's file, and one sentence for each that cannot be used. Raises nothing."""
    try:
        values = read_site_file(path)
    except ConfigError as error:
        return {}, (str(error),)
    unknown = sorted(values.keys() - SITE_KEYS)
    problems = tuple(f"{path}: {name!r} is not an option that a site can set: ignored" for name in unknown)
    known = {name: value for name, value in values.items() if name in SITE_KEYS}
    if known.get("budget") == EVERY_STEP:
        known["budget"] = None
    wrong = {name for name, value in known.items() if not _has_type_of_option(name, value)}
    problems += tuple(
        f"{path}: {name} must be {_type_of_option(name)}, not {known[name]!r}: ignored" for name in sorted(wrong)
    )
    return {name: value for name, value in known.items() if name not in wrong}, problems


def _type_of_option(name: str) -> str:
    return "true or false" if name in SWITCHES else "text" if name in TEXTS else "a number"


def _has_type_of_option(name: str, value: object) -> bool:
    if name in TEXTS:
        return isinstance(value, str)
    if name in SWITCHES:
        return isinstance(value, bool)
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def resolved_agent(options: Options) -> bool:
    """Return whether to start the agent. The environment can only switch it off."""
    return bool(options.agent) and not _is_off(AGENT_VARIABLE)


def resolved_messages(options: Options) -> bool:
    """Return whether to record messages of exceptions. The environment can only switch it off."""
    return bool(options.messages) and not _is_off(MESSAGES_VARIABLE)


def resolved_witness(options: Options) -> bool:
    """Return whether agents of different hosts keep copies for each other. The environment has precedence."""
    return _switch(WITNESS_VARIABLE, given=options.witness)


def resolved_memory_peaks(options: Options) -> bool:
    """Return whether to reset the allocator's peak counter. The environment has precedence."""
    return _switch(MEMORY_PEAKS_VARIABLE, given=options.memory_peaks)


def resolved_trace_non_finite(options: Options) -> bool:
    """Return whether to trace values that are not finite. The environment has precedence."""
    return _switch(NON_FINITE_VARIABLE, given=options.trace_non_finite)


def resolved_signal_stacks(options: Options) -> bool:
    """Return whether to write stacks at signals. The environment has precedence."""
    return _switch(SIGNAL_STACKS_VARIABLE, given=options.signal_stacks)


def _switch(variable: str, *, given: bool) -> bool:
    """Return the value of a variable that is on or off, or the given one if it is not set."""
    override = os.environ.get(variable, "").lower()
    if override and not is_on(override) and override not in OFF:
        logger.warning("%s must be on or off, not %r: ignored", variable, override)
    return is_on(override) or (bool(given) and override not in OFF)


def is_on(value: str) -> bool:
    """Return whether an environment variable has the value `on`."""
    return value.lower() in ON


def _is_off(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in OFF


def resolved_level(options: Options) -> int:
    """Return the level. The environment has precedence: a restart can record less or more without a change of code."""
    override = os.environ.get(LEVEL_VARIABLE, "")
    if override.isdecimal():
        return int(override)
    if type(options.level) is int and options.level >= 0:
        return options.level
    logger.warning("level must be an integer from 0, not %r: using %d", options.level, DEFAULT_LEVEL)
    return DEFAULT_LEVEL


def resolved_disk_budget(options: Options) -> int:
    """Return the disk budget per writing thread, in bytes."""
    if _is_finite_amount(options.disk_budget):
        return int(options.disk_budget)
    logger.warning("disk_budget must be a number of bytes, not %r: using %d", options.disk_budget, DEFAULT_DISK_BUDGET)
    return DEFAULT_DISK_BUDGET


def resolved_budget(options: Options) -> float | None:
    """Return the recorder's share of a step. None: every step is recorded in detail."""
    override = os.environ.get(BUDGET_VARIABLE, "").lower()
    if override:
        try:
            budget = None if override == EVERY_STEP else float(override)
        except ValueError:
            budget = math.nan
        if budget is None or _is_finite_amount(budget):
            return budget
        logger.warning("%s must be a share of the step or none, not %r: ignored", BUDGET_VARIABLE, override)
    if options.budget is None or _is_finite_amount(options.budget):
        return options.budget
    logger.warning("budget must be a share of the step, not %r: using %g", options.budget, DEFAULT_BUDGET)
    return DEFAULT_BUDGET


def resolved_flops(options: Options) -> float | None:
    """Return the model FLOPs of one step of the whole job. None: not given."""
    if options.flops is None or (_is_finite_amount(options.flops) and options.flops > 0):
        return options.flops
    logger.warning("flops must be a positive number, not %r: ignored", options.flops)
    return None


def resolved_module_depth(options: Options) -> int | None:
    """Return the number of levels below the root, at least 1. None: not given."""
    depth = options.module_depth
    if depth is None or (type(depth) is int and depth >= 1):
        return depth
    logger.warning("module_depth must be an integer from 1, not %r: the model's blocks get spans", depth)
    return None


def resolved_corruption_check_steps(options: Options) -> int | None:
    """Return the steps from one check of the training's state to the next. None: no checks."""
    override = os.environ.get(CORRUPTION_CHECK_VARIABLE, "").lower()
    if override in OFF:
        return None
    if override.isdecimal():
        return int(override)
    if override:
        logger.warning("%s must be a number of steps or off, not %r: ignored", CORRUPTION_CHECK_VARIABLE, override)
    steps = options.corruption_check_steps
    if steps is None or (type(steps) is int and steps >= 1):
        return steps
    logger.warning("corruption_check_steps must be an integer from 1, not %r: nothing is checked", steps)
    return None


def resolved_local(options: Options) -> Local:
    """Return where ranks record. The environment has precedence."""
    override = os.environ.get(LOCAL_VARIABLE, "").lower()
    for source, value in ((LOCAL_VARIABLE, override), ("local", str(options.local).lower())):
        word = {"true": "on", "1": "on", "false": "off", "0": "off"}.get(value, value)
        if word in list(Local):
            return Local(word)
        if word:
            logger.warning("%s must be auto, on or off, not %r: ignored", source, value)
    return Local.AUTO


def resolved_ship(options: Options) -> str | None:
    """Return the URL below which the run is shipped; None without one. The environment has precedence."""
    override = os.environ.get(SHIP_VARIABLE, "")
    url = override or options.ship
    if url is None or url.lower() in OFF:
        return None
    try:
        complete = url_of(url) if isinstance(url, str) else None
        if complete is None:
            raise UsageError("this is not a URL such as s3://bucket/runs")
        check_url(complete)
    except UsageError as error:
        logger.warning("%s: nothing is shipped: %s", SHIP_VARIABLE if override else "ship", error)
        return None
    return complete


def resolved_axes(options: Options) -> dict[str, str]:
    """Return the given axes whose names are plain words."""
    axes = options.axes
    if axes is None:
        return {}
    if not isinstance(axes, Mapping):
        logger.warning("axes must map the name or description of a process group to its axis: ignored")
        return {}
    valid_axes = {name: axis for name, axis in axes.items() if _is_plain_word(name) and _is_plain_word(axis)}
    if len(valid_axes) < len(axes):
        logger.warning(
            "axes of process groups must be plain words: %d of %d are ignored", len(axes) - len(valid_axes), len(axes)
        )
    return valid_axes


def workflow_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of `WORKFLOW_VARIABLES` that the environment gives."""
    return {setting: value for setting, name in WORKFLOW_VARIABLES.items() if (value := environment.get(name, ""))}


def _is_plain_word(value: object) -> bool:
    return isinstance(value, str) and value.strip() == value != ""


def _is_finite_amount(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf
