"""The pages, one file each, and their registry: a new page is one file and one line here."""

from traincope.report.sections.critical_path import critical_path
from traincope.report.sections.memory import memory
from traincope.report.sections.pipeline import pipeline
from traincope.viewer.pages import (
    communication,
    compare,
    explained,
    faults,
    hardware,
    layout,
    ledger,
    plan,
    ranks,
    timeline,
    verdict,
    workflow,
)
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.sections import page as page_of

MEMORY = page_of("memory", "Memory", memory)
PIPELINE = page_of("pipeline", "Pipeline", pipeline)
CRITICAL_PATH = page_of("critical-path", "Critical path", critical_path)

TABS: tuple[tuple[str, tuple[Page, ...]], ...] = (
    ("Verdict", (verdict.PAGE, explained.PAGE)),
    ("Ledger", (ledger.PAGE, CRITICAL_PATH)),
    ("Timeline", (timeline.PAGE,)),
    ("Ranks", (ranks.PAGE, workflow.PAGE)),
    ("Communication and pipeline", (communication.PAGE, PIPELINE)),
    ("Faults", (faults.PAGE,)),
    ("Memory and hardware", (MEMORY, hardware.PAGE)),
    ("Plan and compare", (plan.PAGE, layout.PAGE, compare.PAGE)),
)
"""The tabs in order, each with its pages; a tab opens its first."""
PAGES: tuple[Page, ...] = tuple(page for _, pages in TABS for page in pages)
"""All pages in order; an address without a page opens the first."""
OF_A_LOGBOOK = (verdict.PAGE, explained.PAGE, faults.PAGE, plan.PAGE, layout.PAGE, compare.PAGE)
"""Pages that have something to show of an imported list of runs."""
WITHOUT_A_RUN = (plan.PAGE, layout.PAGE, explained.PAGE)
"""Pages that need no run, the first one first."""

__all__ = ["OF_A_LOGBOOK", "PAGES", "TABS", "WITHOUT_A_RUN", "Asked", "Needs", "Page"]
