"""Which ranks counted the same collectives: those whose collectives were watched in the same way.

Where one rank's were seen from Python alone, or somebody's kernel hid some, its count is not that of the others:
equal counts are then not the same collective. Messages all ranks see alike.
"""

from collections.abc import Mapping

PROBE = "collectives"
AS_USUAL = ""
FROM_PYTHON = "from Python"


def watched(probes: Mapping[str, str]) -> str:
    """How a rank's collectives were, by the states of its probes; equal for ranks that counted the same ones."""
    state = probes.get(PROBE, "on")
    if state == "on" or state.startswith("off:"):
        return AS_USUAL
    return FROM_PYTHON if state.startswith("absent") else state
