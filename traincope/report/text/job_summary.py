"""A job summary as text: what it stands on, verdict, and where the time of the newest steps went."""

from rich.console import Console

from traincope.lines import Trimmed, indented, table, text
from traincope.report.document.job_summary import SummaryDocument
from traincope.report.sections.verdict import verdict
from traincope.report.text.section import on_console
from traincope.units import count, duration, share

MAX_PROBLEMS = 5


def render_summary(document: SummaryDocument, console: Console) -> None:
    """Print a job summary."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in document["mesh_axes"].items() if size > 1)
    ranks = count(document["world_size"], "rank")
    console.print(text(f"{ranks}{f' ({mesh})' if mesh else ''}: {document['run_id']}", style="bold"))
    console.print(text(f"{stands_on(document)} `--detail all` reads every event."))
    console.print()
    for renderable in on_console(verdict(document["verdict"], cost=None), document):
        console.print(Trimmed(renderable), end="")
    if document["mean_step_ns"]:
        console.print()
        console.print(text(f"WHERE THE TIME WENT  mean step {duration(document['mean_step_ns'])}", style="bold"))
    if document["terms_ns"]:
        rows = table("term", "share", "ms per step")
        total_ns = sum(document["terms_ns"].values())
        for term, ns in document["terms_ns"].items():
            rows.add_row(text(f"    {term}"), share(ns / total_ns), f"{ns / 1e6:.2f}")
        console.print(Trimmed(rows), end="")
        console.print(text("    a transfer contains the waits for ranks of other hosts", style="dim"))
    if document["compared_steps"] < document["compared_steps_needed"]:
        console.print()
        steps, needed = document["compared_steps"], document["compared_steps_needed"]
        console.print(text(f"too few steps to name a straggler: {steps:,} of {needed:,}"))
    if document["problems"]:
        console.print()
        console.print(text("PROBLEMS", style="bold"))
        console.print(Trimmed(indented(map(text, document["problems"][:MAX_PROBLEMS]))), end="")
        more = len(document["problems"]) - MAX_PROBLEMS
        if more > 0:
            console.print(text(f"    and {count(more, 'more problem')}; --format json lists all"))


def stands_on(document: SummaryDocument) -> str:
    """A sentence that says what the summary was computed from."""
    rows = "no row of a step"
    if document["first_step"] is not None:
        steps = f"steps {document['first_step']:,}-{document['last_step']:,}"
        rows = f"{count(document['rows'], 'row')} of {steps}, the newest ones of each rank"
    return f"This stands on {rows}, and on each rank's last records."
