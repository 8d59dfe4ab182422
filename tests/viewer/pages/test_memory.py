"""The memory page and the HTML report's section, of a real run and of an imported snapshot."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import traincope
from tests.ingest.test_memory_snapshots import TWO_GPUS, written
from tests.viewer.library.reading import shelf
from traincope.analysis.analyze import analyze
from traincope.ingest import import_snapshots
from traincope.report.document.document import to_document
from traincope.report.html.section import on_page
from traincope.report.sections.memory import memory
from traincope.report.sections.source import Source
from traincope.timeline import open_run
from traincope.viewer.pages import MEMORY
from traincope.viewer.pages.page import Asked
from traincope.viewer.view import View

RECORDED = ["use of the memory, where most of it is in use", "16.2 KiB", "32.5 KiB"]
"""Heading, and bytes of 64 x 64 + 64 weights and of AdamW's state for them, with two counts of its steps."""
IMPORTED = ["/job/model.py:10 in forward", "model", "8.0 MiB", "/job/train.py:40 in main", "optimizer", "4.0 MiB"]


def recorded(run: Path) -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    with traincope.run(run, agent=False, budget=None) as recording:
        for _ in range(4):
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.step()


def imported(run: Path) -> None:
    import_snapshots([written(run.with_suffix(".pickle"), TWO_GPUS)], run)


@pytest.mark.parametrize(("make", "cells"), [(recorded, RECORDED), (imported, IMPORTED)], ids=["recorded", "imported"])
def test_the_page_and_the_report_show_uses_and_call_sites(make: object, cells: list[str], tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "run")
    library = shelf(tmp_path / "run", cache=tmp_path / "cache")
    asked = Asked(view=View(page="memory"), opened=library[0], library=library, theme="light")
    parts = [
        child.children for part in MEMORY.render(asked) for child in part._traverse() if hasattr(child, "children")
    ]
    shown = " ".join(str(part) for part in parts).lower()
    assert [cell for cell in cells if cell.lower() not in shown] == []

    analysis = analyze(open_run(tmp_path / "run"))
    document = to_document(analysis)
    page = "".join(on_page(memory(Source(analysis=analysis, document=document)), document).html)
    texts = re.sub(r"<[^>]*>", "|", page).split("|")
    assert [cell for cell in cells[1:] if cell not in texts] == []
