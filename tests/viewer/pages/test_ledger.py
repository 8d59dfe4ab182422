"""The ledger page."""

from pathlib import Path

import pytest
import torch

import traincope
from tests.viewer.library.reading import shelf
from traincope.events import BLOCK_STEPS
from traincope.record.session import sampling
from traincope.report.sections.section import Table
from traincope.report.sections.terms import causes
from traincope.viewer.library.library import Library
from traincope.viewer.pages.ledger import PAGE
from traincope.viewer.pages.page import Asked
from traincope.viewer.view import View

SAMPLE = Path(__file__).parents[3] / "sample_runs" / "demo"


def test_terms_that_no_probe_measures_are_named_below_the_numbers(tmp_path: Path) -> None:
    library: Library = shelf(SAMPLE, cache=tmp_path / "cache")
    asked = Asked(view=View(page="ledger"), opened=library[0], library=library, theme="light")
    texts = [child.children for part in PAGE.render(asked) for child in part._traverse() if hasattr(child, "children")]
    (table,) = causes(asked.source).parts
    assert isinstance(table, Table)
    named = [row[1] for row in table.rows]
    assert len(named) > 5
    assert all(any(text == cause for text in texts) for cause in named)
    assert ["not measured, so part of unattributed: exposed_memory, compile, sync, launch_gap, kernel_wait"] in texts


def test_a_run_in_windows_says_how_many_steps_its_terms_are_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINCOPE_BUDGET", "")
    monkeypatch.setattr(sampling, "needed_halvings", lambda *_, **__: 2)
    monkeypatch.setattr(sampling, "FIRST_BLOCKS", 0)
    model = torch.nn.Linear(8, 8)
    with traincope.run(tmp_path / "run", agent=False) as run:
        for _ in range(16 * BLOCK_STEPS):
            model(torch.ones(2, 8)).sum().backward()
            run.step()
    library: Library = shelf(tmp_path / "run", cache=tmp_path / "cache")
    asked = Asked(view=View(page="ledger"), opened=library[0], library=library, theme="light")
    texts = [child.children for part in PAGE.render(asked) for child in part._traverse() if hasattr(child, "children")]
    (steps,) = (text for text in texts if isinstance(text, str) and text.endswith(f" of {16 * BLOCK_STEPS - 1} steps"))
    assert 0 < int(steps.partition(" over 1 rank and ")[2].split()[0]) < 8 * BLOCK_STEPS
