"""Faults to inject, as the text `NAME@rank=1,step=20,phase=forward,seconds=0.05`, and the truth about their injection.

Several injections are joined by `+`; the first is the cause of what follows.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from traincope.errors import UsageError
from traincope.private_files import private

FAULT_VARIABLE = "TRAINCOPE_FAULT"
TRUTH_VARIABLE = "TRAINCOPE_FAULT_TRUTH"
"""Path of a file to which every injecting rank appends one line of JSON."""


class Moment(StrEnum):
    """A place in a step, right before the work of that name."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    END = "end"
    """After the optimizer."""


class Shape(StrEnum):
    """How a slowness goes on after its first step."""

    CONSTANT = "constant"
    GROWING = "growing"
    PERIODIC = "periodic"
    ONCE = "once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One fault to inject."""

    name: str
    rank: int = 1
    step: int = 10
    """First step that it touches; steps count from 0."""
    phase: Moment = Moment.FORWARD
    """The place in the step where the rank is slow or stops."""
    seconds: float = 0.05
    """Length of one delay."""
    shape: Shape = Shape.CONSTANT


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Truth about one rank's injection: the answer that an analysis must find."""

    fault: str
    culprits: tuple[int, ...]
    """Empty: no rank is to blame."""
    rank: int
    """The rank that writes this."""
    step: int
    phase: str
    at_wall_ns: int


def parse_injections(text: str, *, known: Iterable[str]) -> tuple[Injection, ...]:
    """Parse injections joined by `+`. Raises UsageError that says what is wrong."""
    names = frozenset(known)
    return tuple(_parse(part, known=names) for part in text.split("+"))


def _parse(text: str, *, known: frozenset[str]) -> Injection:
    name, _, rest = text.strip().partition("@")
    if name not in known:
        raise UsageError(f"unknown fault {name!r}; known are {', '.join(sorted(known))}")
    values: dict[str, object] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = (word.strip() for word in part.partition("="))
        convert = CONVERTERS.get(key)
        if convert is None:
            raise UsageError(f"unknown setting {key!r} of a fault; known are {', '.join(CONVERTERS)}")
        try:
            values[key] = convert(value)
        except ValueError:
            raise UsageError(f"{key}={value} of the fault {name} is not valid") from None
    injection = Injection(name=name, **values)  # type: ignore[arg-type]
    if injection.rank < 0 or injection.step < 1 or injection.seconds < 0:
        raise UsageError(f"the fault {name} needs a rank from 0, a step from 1, and seconds of at least 0")
    return injection


CONVERTERS = {"rank": int, "step": int, "phase": Moment, "seconds": float, "shape": Shape}


def write_truth(truth: Truth) -> None:
    """Append the truth to the file that the environment names. It is on disk before the fault acts."""
    path = os.environ.get(TRUTH_VARIABLE)
    if path:
        with open(path, "a", opener=private) as file:
            file.write(json.dumps(asdict(truth)) + "\n")
            file.flush()
            os.fsync(file.fileno())


def truth_now(injection: Injection, *, culprits: tuple[int, ...], rank: int, step: int) -> Truth:
    """The truth of an injection that acts now."""
    return Truth(
        fault=injection.name,
        culprits=culprits,
        rank=rank,
        step=step,
        phase=injection.phase,
        at_wall_ns=time.time_ns(),
    )


def read_truths(path: Path) -> tuple[Truth, ...]:
    """Read all truths so far, in the order in which they were written."""
    lines = path.read_text().splitlines() if path.exists() else []
    return tuple(Truth(**{**values, "culprits": tuple(values["culprits"])}) for values in map(json.loads, lines))
