"""Sections of the page from top to bottom: a new section is one file here and one line in ALL."""

from collections.abc import Callable

from traincope.report.html.section import Section
from traincope.report.html.sections.communication import communication
from traincope.report.html.sections.critical_path import critical_path
from traincope.report.html.sections.experts import experts
from traincope.report.html.sections.explained import explained
from traincope.report.html.sections.faults import faults
from traincope.report.html.sections.goodput import goodput
from traincope.report.html.sections.hardware import hardware
from traincope.report.html.sections.kernels import kernels
from traincope.report.html.sections.ledger import ledger
from traincope.report.html.sections.logged import logged
from traincope.report.html.sections.memory import memory
from traincope.report.html.sections.pipeline import pipeline
from traincope.report.html.sections.ranks import ranks
from traincope.report.html.sections.recording import recording
from traincope.report.html.sections.reliability import reliability
from traincope.report.html.sections.slowdown import slowdown
from traincope.report.html.sections.verdict import verdict
from traincope.report.html.source import Source

ALL: tuple[Callable[[Source], Section], ...] = (
    verdict,
    ledger,
    communication,
    critical_path,
    pipeline,
    ranks,
    slowdown,
    faults,
    memory,
    hardware,
    kernels,
    experts,
    logged,
    goodput,
    reliability,
    recording,
    explained,
)
