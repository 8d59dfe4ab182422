"""A job summary as text: what it stands on, verdict, and where the time of the newest steps went."""

from rich.console import Console

from traincope.lines import Trimmed, text
from traincope.report.document.job_summary import SummaryDocument
from traincope.report.sections.job_summary import job_summary, stands_on
from traincope.report.text.section import on_console
from traincope.units import count


def render_summary(document: SummaryDocument, console: Console) -> None:
    """Print a job summary."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in document["mesh_axes"].items() if size > 1)
    ranks = count(document["world_size"], "rank")
    console.print(text(f"{ranks}{f' ({mesh})' if mesh else ''}: {document['run_id']}", style="bold"))
    console.print(text(f"{stands_on(document)} `--detail all` reads every event."))
    for section in job_summary(document):
        console.print()
        for renderable in on_console(section, document):
            console.print(Trimmed(renderable), end="")
