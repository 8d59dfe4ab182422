"""The pages, one file each, and their registry: a new page is one file and one line here."""

from traincope.report.sections.clocks import clocks
from traincope.report.sections.critical_path import critical_path
from traincope.report.sections.energy import energy
from traincope.report.sections.experts import experts
from traincope.report.sections.faults import faults
from traincope.report.sections.goodput import goodput
from traincope.report.sections.hangs import hangs
from traincope.report.sections.hardware import hardware
from traincope.report.sections.kernels import kernels
from traincope.report.sections.logged import logged
from traincope.report.sections.memory import memory
from traincope.report.sections.pipeline import pipeline
from traincope.report.sections.ranks import ranks
from traincope.report.sections.reliability import reliability
from traincope.report.sections.rollouts import rollouts
from traincope.report.sections.sampled_stacks import sampled_stacks
from traincope.viewer.pages import (
    communication,
    compare,
    explained,
    layout,
    ledger,
    plan,
    timeline,
    verdict,
    workflow,
)
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.sections import page as page_of

FAULTS = page_of("faults", "Faults", hangs, faults, goodput, reliability, logged)
MEMORY = page_of("memory", "Memory", memory)
HARDWARE = page_of("hardware", "Hardware", hardware, energy, kernels)
RANKS = page_of("ranks", "Ranks", ranks, sampled_stacks, experts, rollouts, clocks)
PIPELINE = page_of("pipeline", "Pipeline", pipeline)
CRITICAL_PATH = page_of("critical-path", "Critical path", critical_path)

TABS: tuple[tuple[str, tuple[Page, ...]], ...] = (
    ("Verdict", (verdict.PAGE, explained.PAGE)),
    ("Ledger", (ledger.PAGE, CRITICAL_PATH)),
    ("Timeline", (timeline.PAGE,)),
    ("Ranks", (RANKS, workflow.PAGE)),
    ("Communication and pipeline", (communication.PAGE, PIPELINE)),
    ("Faults", (FAULTS,)),
    ("Memory and hardware", (MEMORY, HARDWARE)),
    ("Plan and compare", (plan.PAGE, layout.PAGE, compare.PAGE)),
)
"""The tabs in order, each with its pages; a tab opens its first."""
PAGES: tuple[Page, ...] = tuple(page for _, pages in TABS for page in pages)
"""All pages in order; an address without a page opens the first."""
OF_A_LOGBOOK = (verdict.PAGE, explained.PAGE, FAULTS, plan.PAGE, layout.PAGE, compare.PAGE)
"""Pages that have something to show of an imported list of runs."""
WITHOUT_A_RUN = (plan.PAGE, layout.PAGE, explained.PAGE)
"""Pages that need no run, the first one first."""

__all__ = ["OF_A_LOGBOOK", "PAGES", "TABS", "WITHOUT_A_RUN", "Asked", "Needs", "Page"]
