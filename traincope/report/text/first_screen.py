"""The first screen: verdict, waterfall and five numbers in 100 columns and 45 rows.

This module only chooses rows. The full report prints every row.
"""

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from traincope.analysis import Analysis, Sampling
from traincope.lines import text
from traincope.palette import SEVERE
from traincope.report.document.document import to_document
from traincope.report.schema import Document, Fault
from traincope.report.sections.faults import job_ns, real_faults, step_of
from traincope.report.sections.ledger import summary
from traincope.report.sections.verdict import verdict
from traincope.report.text.section import on_console, print_sections
from traincope.units import count, duration, numbers, share

MAX_FINDINGS = 3
MAX_FAULTS = 2


def render_first_screen(analysis: Analysis, console: Console) -> None:
    """Write the first screen of `analysis` to `console`."""
    document = to_document(analysis)
    print_sections(_sections(document, analysis), console)


def _sections(document: Document, analysis: Analysis) -> Iterator[Iterator[RenderableType]]:
    run = document["run"]
    mesh = " x ".join(f"{axis} {size}" for axis, size in run["mesh_axes"].items() if size > 1)
    yield iter([text(f"{count(run['world_size'], 'rank')}{f' ({mesh})' if mesh else ''}: {run['id']}", style="bold")])
    yield _verdict(document, analysis)
    if document["ledger"] is not None:
        yield on_console(summary(document), document)
    yield iter([text(_number_line(document, analysis), style="bold"), *map(text, sampled(document, analysis.sampling))])


def fault_lines(faults: Sequence[Fault], *, since_ns: int) -> Iterator[RenderableType]:
    for fault in faults[:MAX_FAULTS]:
        where = numbers(fault["ranks"], "rank") if fault["ranks"] else "the job"
        when = f"{duration(fault['at_ns'] - since_ns)} after the first record"
        when = f"step {step_of(fault)}, {when}" if step_of(fault) else when
        line = Text("    fault  ", style=f"bold {SEVERE}").append_text(
            text(f"{where}, {when}: {fault['what']}", style="not bold")
        )
        line.no_wrap, line.overflow = True, "ellipsis"
        yield line
    if len(faults) > MAX_FAULTS:
        yield text(f"    and {count(len(faults) - MAX_FAULTS, 'more fault')}", style="dim")


def _verdict(document: Document, analysis: Analysis) -> Iterator[RenderableType]:
    """Faults, then findings."""
    ledger, findings, faults = document["ledger"], document["verdict"], real_faults(document)
    cost = None if ledger is None else ledger["cost"]
    shown = MAX_FINDINGS - (len(faults) >= MAX_FAULTS)  # the lines of two faults take the room of a finding
    lines = on_console(verdict(findings[:shown], cost=cost, faults=document["faults"]), document)
    yield next(lines)
    yield from fault_lines(faults, since_ns=job_ns(analysis)[0])
    yield from lines
    if len(findings) > shown:
        yield text(f"    and {count(len(findings) - shown, 'more finding')} in the full report", style="dim")


def _number_line(document: Document, analysis: Analysis) -> str:
    return "    ".join(f"{name} {value}" for name, value in five_numbers(document, analysis))


def five_numbers(document: Document, analysis: Analysis) -> Iterator[tuple[str, str]]:
    """The five numbers; "unknown" for a number without evidence."""
    used, job = analysis.utilization, analysis.goodput
    speed = used.tokens_per_second
    mean_ns = document["run"]["mean_step_ns"]
    yield "mean step", "unknown" if mean_ns is None else duration(mean_ns)
    yield "tokens/s", "unknown" if speed is None else f"{speed:,.0f}"
    yield "MFU", _known(used.ratios.mfu)
    yield "goodput", _known(None if job is None else job.productive_ratio)
    yield "recorder overhead", _known(document["recorder"]["overhead_ratio"])


def sampled(document: Document, sampling: Sampling) -> Iterator[str]:
    """The steps that the numbers stand on, if these are not all."""
    if document["recorder"]["unwatched_steps"] and sampling.sampled_steps:
        yield f"recorded in detail: {sampling.sampled_steps:,} of {count(sampling.steps, 'step')}"


def _known(ratio: float | None) -> str:
    return "unknown" if ratio is None else share(ratio)
