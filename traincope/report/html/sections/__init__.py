"""Sections of the page from top to bottom: a new section is one file here and one line in ALL."""

from collections.abc import Callable

from traincope.report.html.section import Section, on_page
from traincope.report.html.sections.explained import explained
from traincope.report.sections import section as data
from traincope.report.sections.clocks import clocks
from traincope.report.sections.communication import communication
from traincope.report.sections.critical_path import critical_path
from traincope.report.sections.energy import energy
from traincope.report.sections.experts import experts
from traincope.report.sections.faults import faults
from traincope.report.sections.goodput import goodput
from traincope.report.sections.hangs import hangs
from traincope.report.sections.hardware import hardware
from traincope.report.sections.kernels import kernels
from traincope.report.sections.ledger import WITHIN, ledger
from traincope.report.sections.logged import logged
from traincope.report.sections.memory import memory
from traincope.report.sections.pipeline import pipeline
from traincope.report.sections.ranks import ranks
from traincope.report.sections.recording import recording
from traincope.report.sections.reliability import reliability
from traincope.report.sections.sampled_stacks import sampled_stacks
from traincope.report.sections.slowdown import slowdown
from traincope.report.sections.source import Source
from traincope.report.sections.utilization import utilization
from traincope.report.sections.verdict import verdict


def _of(make: Callable[[Source], data.Section]) -> Callable[[Source], Section]:
    """The part of the page that shows a section of data."""
    return lambda source: on_page(make(source), source.document)


def _verdict(source: Source) -> Section:
    document, ledger = source.document, source.document["ledger"]
    return on_page(verdict(document["verdict"], cost=None if ledger is None else ledger["cost"]), document)


def _ledger(source: Source) -> Section:
    within = (make(source) for make in (*WITHIN, lambda source: utilization(source.document)))
    return on_page(ledger(source), source.document, within=within)


ALL: tuple[Callable[[Source], Section], ...] = (
    _verdict,
    _ledger,
    _of(communication),
    _of(critical_path),
    _of(pipeline),
    _of(ranks),
    _of(sampled_stacks),
    _of(clocks),
    _of(slowdown),
    _of(hangs),
    _of(faults),
    _of(memory),
    _of(hardware),
    _of(energy),
    _of(kernels),
    _of(experts),
    _of(logged),
    _of(goodput),
    _of(reliability),
    _of(lambda source: recording(source.document)),
    explained,
)
