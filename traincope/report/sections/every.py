"""The sections of a report in the order of its page: a new section is one file here and one line in EVERY."""

from collections.abc import Callable, Mapping

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
from traincope.report.sections.ledger import ledger
from traincope.report.sections.logged import logged
from traincope.report.sections.memory import memory
from traincope.report.sections.pipeline import pipeline
from traincope.report.sections.ranks import ranks
from traincope.report.sections.recording import recording
from traincope.report.sections.reliability import reliability
from traincope.report.sections.rollouts import rollouts
from traincope.report.sections.sampled_stacks import sampled_stacks
from traincope.report.sections.section import Section
from traincope.report.sections.slowdown import slowdown
from traincope.report.sections.source import Source
from traincope.report.sections.utilization import utilization
from traincope.report.sections.verdict import verdict_of

EVERY: Mapping[str, Callable[[Source], Section]] = {
    "verdict": verdict_of,
    "ledger": ledger,
    "utilization": lambda source: utilization(source.document),
    "comm": communication,
    "critical_path": critical_path,
    "bubble": pipeline,
    "stragglers": ranks,
    "sampled_stacks": sampled_stacks,
    "clock": clocks,
    "slowdown": slowdown,
    "hangs": hangs,
    "faults": faults,
    "memory": memory,
    "hardware": hardware,
    "energy": energy,
    "kernels": kernels,
    "experts": experts,
    "rollouts": rollouts,
    "logged": logged,
    "goodput": goodput,
    "reliability": reliability,
    "recorder": lambda source: recording(source.document),
}
"""Key of the document, or a name where none is what the section shows -> the function that makes the section."""
