"""The pages, one file each, and their registry: a new page is one file and one line here."""

from traincope.viewer.pages import (
    communication,
    compare,
    critical_path,
    explained,
    faults,
    hardware,
    layout,
    ledger,
    memory,
    pipeline,
    plan,
    ranks,
    timeline,
    verdict,
    workflow,
)
from traincope.viewer.pages.page import Asked, Needs, Page

PAGES: tuple[Page, ...] = (
    verdict.PAGE,
    ledger.PAGE,
    timeline.PAGE,
    pipeline.PAGE,
    communication.PAGE,
    critical_path.PAGE,
    ranks.PAGE,
    faults.PAGE,
    memory.PAGE,
    hardware.PAGE,
    compare.PAGE,
    workflow.PAGE,
    plan.PAGE,
    layout.PAGE,
    explained.PAGE,
)
"""Pages in the order of the tabs; an address without a page opens the first."""

__all__ = ["PAGES", "Asked", "Needs", "Page"]
