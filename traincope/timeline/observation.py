"""Ways to record collectives. Counts of two ranks compare only if both record collectives in the same way.

A rank that sees collectives only from Python, or to which a foreign kernel hides some, counts differently: equal counts
are then not the same collective. Point-to-point messages are recorded alike by all ranks.

The native recorder and the Python hooks count alike. Only ends differ: Python sees some of them at the wait.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum


class Recorder(StrEnum):
    """Recorders of the collectives of a run's ranks."""

    NATIVE = "native"
    PYTHON = "Python"
    BOTH = "both"
    """The native recorder on some ranks, the Python hooks on others."""


PROBE, NATIVE_PROBE, ON = "collectives", "native", "on"
DISPATCHER = ""
PYTHON_ONLY = "from Python"


def observation(probes: Mapping[str, str]) -> str:
    """Return how a rank records collectives, by its probes' states. Equal results mean comparable counts."""
    state = probes.get(PROBE, ON)
    if state == ON or state.startswith("off:"):
        return DISPATCHER
    return PYTHON_ONLY if state.startswith("absent") else state


def why_not_native(state: str) -> str | None:
    """Return why the Python hooks record, by the state of NATIVE_PROBE; None for the native recorder."""
    return None if state == ON else state.removeprefix("off: ")


def recorded_by(states: Iterable[str]) -> Recorder | None:
    """Return what recorded the ranks with these states of NATIVE_PROBE. None: unknown, as in older runs."""
    kinds = {Recorder.NATIVE if why_not_native(state) is None else Recorder.PYTHON for state in states}
    return Recorder.BOTH if len(kinds) > 1 else next(iter(kinds), None)
