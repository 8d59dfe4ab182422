"""An opened run in a notebook: a page without a style sheet."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.browser.browser import Visit
from tests.report.example import analysis
from traincope import open_run
from traincope.analysis.context import Context
from traincope.report.document.document import to_document
from traincope.report.html.brief import BAR_REM, brief
from traincope.report.sections.source import Source

Go = Callable[..., Visit]
SAMPLE = Path(__file__).parents[2] / "sample_runs" / "demo-3d"
HOSTILE = "</div><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\x1b[2J"
REM_PX = 16


def cell(folder: Path, html: str) -> str:
    """Write a page with this output of a cell; return its address."""
    page = folder / "cell.html"
    page.write_text(f'<!doctype html><meta charset="utf-8"><title>cell</title><main>{html}</main><p id=after>after</p>')
    return page.as_uri()


def test_bars_are_as_long_as_the_shares_of_the_terms(visit: Go, tmp_path: Path) -> None:
    run = open_run(SAMPLE)
    loaded = visit(cell(tmp_path, run._repr_html_() or ""))
    assert loaded.complaints == []
    assert loaded.page.locator("main ol li").count() == len(run.verdict)
    ledger = run.document["ledger"]
    assert ledger is not None
    shown = {term: ratio for term, ratio in ledger["waterfall"].items() if ratio}
    names = loaded.page.locator("main tr:has(div) > td:first-child").all_text_contents()
    assert names == [*shown, "step"]
    boxes = [bar.bounding_box() for bar in loaded.page.locator("main tr:has(div) > td:last-child > div").all()[:-1]]
    widths = [0.0 if box is None else box["width"] for box in boxes]
    expected = [BAR_REM * REM_PX * ratio / max(shown.values()) for ratio in shown.values()]
    assert all(abs(width - length) <= 1 for width, length in zip(widths, expected, strict=True))


def test_texts_of_a_run_are_text(visit: Go, tmp_path: Path) -> None:
    plain = analysis()
    run = replace(plain.timeline.run, info=replace(plain.timeline.run.info, id=HOSTILE))
    result = replace(
        plain,
        context=Context(replace(plain.timeline, run=run)),
        verdict=tuple(replace(row, evidence=HOSTILE, advice=HOSTILE) for row in plain.verdict),
    )
    document = to_document(result)
    assert document["ledger"] is not None
    document["ledger"]["waterfall"] = {HOSTILE: 1.0}
    document["ledger"]["terms"] = {HOSTILE: document["ledger"]["wall_ns"]}
    loaded = visit(cell(tmp_path, brief(Source(analysis=result, document=document))))
    assert loaded.complaints == []
    assert len(loaded.requests) == 1
    assert loaded.page.evaluate("() => window.hacked") is None
    assert loaded.page.locator("main script, main img").count() == 0
    text = loaded.page.inner_text("main")
    assert text.count("<script>window.hacked=1</script>") == 2 * len(document["verdict"]) + 2
    assert "\\x1b[2J" in text
    assert loaded.page.locator("body > #after").count() == 1
