"""A job summary as text: what it stands on, verdict, and where the time of the newest steps went."""

from rich.console import Console

from traincope.lines import text
from traincope.report.document.job_summary import SummaryDocument
from traincope.report.sections.job_summary import job_summary, stands_on
from traincope.report.text.section import on_console, print_sections
from traincope.units import count


def render_summary(document: SummaryDocument, console: Console) -> None:
    """Print a job summary."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in document["mesh_axes"].items() if size > 1)
    ranks = count(document["world_size"], "rank")
    title = text(f"{ranks}{f' ({mesh})' if mesh else ''}: {document['run_id']}", style="bold")
    head = (title, text(f"{stands_on(document)} `--detail all` reads every event."))
    print_sections((head, *(on_console(section, document) for section in job_summary(document))), console)
