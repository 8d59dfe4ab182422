"""Ways to record collectives. Counts of two ranks compare only if both record collectives in the same way.

A rank that sees collectives only from Python, or to which a foreign kernel hides some, counts differently: equal counts
are then not the same collective. Point-to-point messages are recorded alike by all ranks.
"""

from collections.abc import Mapping

PROBE = "collectives"
DISPATCHER = ""
PYTHON_ONLY = "from Python"


def observation(probes: Mapping[str, str]) -> str:
    """Return how a rank records collectives, by its probes' states. Equal results mean comparable counts."""
    state = probes.get(PROBE, "on")
    if state == "on" or state.startswith("off:"):
        return DISPATCHER
    return PYTHON_ONLY if state.startswith("absent") else state
