"""The counted steps of a ledger: their number, and how many of all steps they are."""

from traincope.report.schema import Ledger
from traincope.units import count


def counted_steps(ledger: Ledger) -> str:
    """The number of counted steps, e.g. "151 of 639 steps"; "639 steps" if all have detail."""
    counted, timed = max(rank["steps"] for rank in ledger["ranks"]), ledger["timed_steps"]
    return count(counted, "step") if counted == timed else f"{counted:,} of {count(timed, 'step')}"


def sampled(ledger: Ledger) -> str:
    """The number of counted steps behind a section, e.g. ", from 151 of 639 steps"; empty if all have detail."""
    steps = counted_steps(ledger)
    return f", from {steps}" if " of " in steps else ""
