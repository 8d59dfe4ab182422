"""The report as text: faults, verdict, evidence, and the limits of the record, in this order.

The console decides colour and width. Without colour, in a pipe and in 80 columns the words are the same.
"""

from collections.abc import Iterator

from rich.console import Console, RenderableType

from traincope.analysis import Analysis
from traincope.lines import text
from traincope.report.document.costs import with_energy_price
from traincope.report.document.document import to_document
from traincope.report.schema import Document
from traincope.report.sections.communication import communication
from traincope.report.sections.critical_path import critical_path
from traincope.report.sections.energy import energy
from traincope.report.sections.experts import experts
from traincope.report.sections.faults import faults, real_faults
from traincope.report.sections.goodput import goodput
from traincope.report.sections.head import facts
from traincope.report.sections.kernels import kernels
from traincope.report.sections.ledger import ledger
from traincope.report.sections.losses import losses
from traincope.report.sections.memory import memory
from traincope.report.sections.pipeline import pipeline
from traincope.report.sections.ranks import ranks
from traincope.report.sections.recording import recording
from traincope.report.sections.reliability import is_logbook, reliability
from traincope.report.sections.rollouts import rollouts
from traincope.report.sections.sampled_stacks import sampled_stacks
from traincope.report.sections.slowdown import slowdown
from traincope.report.sections.source import Source
from traincope.report.sections.utilization import utilization
from traincope.report.sections.verdict import running, verdict_of
from traincope.report.text.section import on_console, print_sections
from traincope.units import CURRENCY

OF_STEPS = (energy, experts, rollouts, goodput, critical_path, pipeline, communication, ranks, sampled_stacks, slowdown)
"""Sections that follow the ledger."""


def render(
    analysis: Analysis,
    console: Console,
    *,
    price_per_gpu_hour: float | None = None,
    price_per_kwh: float | None = None,
    currency: str = CURRENCY,
) -> None:
    """Write the report of `analysis` to `console`."""
    analysis = with_energy_price(analysis, price_per_kwh=price_per_kwh, currency=currency)
    document = to_document(analysis, price_per_gpu_hour=price_per_gpu_hour, currency=currency)
    render_document(document, analysis, console)


def render_document(document: Document, analysis: Analysis, console: Console) -> None:
    """Write the report to `console`; `document` is that of `analysis`. Sections without evidence are left out, except
    the verdict.
    """
    print_sections(_sections(document, analysis), console)


def _sections(document: Document, analysis: Analysis) -> Iterator[Iterator[RenderableType]]:
    yield _head(document)
    source = Source(analysis=analysis, document=document)
    if real_faults(document):
        yield on_console(faults(source), document)
    yield on_console(verdict_of(source), document)
    if document["ledger"] is not None:
        yield from _ledger_sections(source)
    elif not document["run"]["imported"]:
        yield on_console(ledger(source), document)
    job = analysis.reliability
    if job is not None and (job.num_interruptions or job.rolling or is_logbook(document)):
        yield on_console(reliability(source), document)
    if analysis.gpu_partition or document["kernels"] is not None:
        yield on_console(kernels(source), document)
    if analysis.memory or analysis.memory_snapshots:
        yield on_console(memory(source), document)
    yield on_console(recording(document), document)


def _ledger_sections(source: Source) -> Iterator[Iterator[RenderableType]]:
    analysis, document = source.analysis, source.document
    yield on_console(ledger(source), document)
    lost = losses(source)
    if lost.missing is None:
        yield on_console(lost, document)
    yield on_console(utilization(document), document)
    for make in OF_STEPS:
        section = make(source)
        if section.missing is None or (make is critical_path and analysis.critical_path is not None):
            yield on_console(section, document)


def _head(document: Document) -> Iterator[RenderableType]:
    yield text(document["run"]["id"], style="bold")
    if (going_on := running(document["verdict"])) is not None:
        yield text(going_on, style="bold")
    yield text(", ".join(facts(document)))
