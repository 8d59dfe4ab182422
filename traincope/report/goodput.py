"""What share of the job's time its lasting steps were, and what the rest was."""

from collections.abc import Iterator

from rich.text import Text

from traincope.report.plain import text
from traincope.report.schema import Goodput
from traincope.units import count, duration, share

LEAST = 1000


def goodput(job: Goodput) -> Iterator[Text]:
    """One line; parts of less than a thousandth are in JSON alone."""
    facts = [f"{share(job['productive_ratio'])} of {duration(job['elapsed_ns'])} was steps that last"]
    if job["productive_ratio"] is None:
        took = f"{count(job['steps_done'], 'step')} took {duration(job['steps_ns'])} of {duration(job['elapsed_ns'])}"
        facts = [f"unknown: {job['reason']}", took]
    parts = {
        "startup": job["startup_ns"],
        "restarts": job["restart_ns"],
        "checkpoint stalls": job["checkpoint_stall_ns"],
        "evaluation": job["evaluation_ns"],
        f"{count(job['steps_lost'], 'lost step')}": job["lost_ns"],
        "outside of complete steps": job["other_ns"],
    }
    facts += [f"{what} {duration(ns)}" for what, ns in parts.items() if ns and ns * LEAST >= job["elapsed_ns"]]
    yield Text("GOODPUT", style="bold").append_text(text(f"  {'; '.join(facts)}", style="not bold"))
