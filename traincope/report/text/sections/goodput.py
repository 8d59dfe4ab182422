"""Goodput: the productive share of the job's time, and the parts of the rest."""

from collections.abc import Iterator

from rich.text import Text

from traincope.report.schema import Goodput
from traincope.report.text.layout.lines import text
from traincope.units import count, duration, share

WHOLE_PER_PART = 1000
"""A part below 1/1000 of the job's time is not printed."""


def goodput(job: Goodput) -> Iterator[Text]:
    """One line. Parts below a thousandth of the elapsed time are only in JSON."""
    facts = [f"{share(job['productive_ratio'])} of {duration(job['elapsed_ns'])} was productive"]
    if job["productive_ratio"] is None:
        took = f"{count(job['steps_done'], 'step')} took {duration(job['steps_ns'])} of {duration(job['elapsed_ns'])}"
        facts = [f"unknown: {job['reason']}", took]
    parts = {
        "start-up": job["startup_ns"],
        "restarts": job["restart_ns"],
        "checkpoint stalls": job["checkpoint_stall_ns"],
        "evaluation": job["evaluation_ns"],
        f"{count(job['steps_lost'], 'lost step')}": job["lost_ns"],
        "outside complete steps": job["other_ns"],
    }
    facts += [f"{what} {duration(ns)}" for what, ns in parts.items() if ns and ns * WHOLE_PER_PART >= job["elapsed_ns"]]
    yield Text("GOODPUT", style="bold").append_text(text(f"  {'; '.join(facts)}", style="not bold"))
