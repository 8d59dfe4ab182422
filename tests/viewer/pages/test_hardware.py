"""Tables of kernels on the hardware page and in the HTML report, of one traced program."""

import re
from pathlib import Path

import pytest

from tests.viewer.library.reading import shelf
from tests.virtual_gpu.actions import Program, forward, kernel, operator, step, tensors
from tests.virtual_gpu.kineto import write_traces
from traincope.analysis.analyze import analyze
from traincope.ingest import import_traces
from traincope.report.document.document import to_document
from traincope.report.html.section import on_page
from traincope.report.sections.kernels import kernels
from traincope.report.sections.source import Source
from traincope.timeline import open_run
from traincope.viewer.pages import HARDWARE
from traincope.viewer.pages.page import Asked
from traincope.viewer.view import View

MATRICES = tensors((1024, 1024), (1024, 1024), dtype="c10::BFloat16")
BODY = (
    operator(kernel(4), name="aten::mm", inputs=MATRICES),
    operator(kernel(4, name="elementwise_kernel"), name="aten::mul", inputs=MATRICES),
    operator(kernel(4, name="elementwise_kernel"), name="aten::add", inputs=MATRICES),
)
"""A product at 54.3 % of an H100's peak, which moves 1,573 GB/s, and a chain that moves as much."""
CELLS = [
    *("gemm", "54.3 %", "1573", "46.9 %", "341.3", "compute"),
    *("elementwise", "7 (compute)", "forward", "aten::mul, aten::add (x 1)"),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    program = Program(ranks=((step(1, forward(*BODY)),),))
    import_traces(write_traces(program, tmp_path / "traces"), tmp_path / "run")
    return tmp_path / "run"


def test_the_page_has_rooflines_queues_and_chains(run: Path, tmp_path: Path) -> None:
    library = shelf(run, cache=tmp_path / "cache")
    asked = Asked(view=View(page="hardware"), opened=library[0], library=library, theme="light")
    texts = [
        child.children for part in HARDWARE.render(asked) for child in part._traverse() if hasattr(child, "children")
    ]
    assert [cell for cell in CELLS if cell not in texts] == []


def test_the_html_report_has_the_same(run: Path) -> None:
    analysis = analyze(open_run(run))
    document = to_document(analysis)
    page = on_page(kernels(Source(analysis=analysis, document=document)), document).html
    texts = re.sub(r"<[^>]*>", "|", page).split("|")
    assert [cell for cell in CELLS if cell not in texts] == []
