"""Tables of kernels on the hardware page and in the HTML report, of one traced program."""

import re
from pathlib import Path

from tests.viewer.library.reading import shelf
from tests.viewer.texts import texts
from tests.virtual_gpu.actions import Program, forward, kernel, operator, step, tensors
from tests.virtual_gpu.kineto import write_traces
from traincope.ingest import import_traces
from traincope.report.html.section import on_page
from traincope.report.sections.kernels import kernels
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


def test_the_page_and_the_report_have_rooflines_queues_and_chains(tmp_path: Path) -> None:
    program = Program(ranks=((step(1, forward(*BODY)),),))
    import_traces(write_traces(program, tmp_path / "traces"), tmp_path / "run")
    library = shelf(tmp_path / "run", cache=tmp_path / "cache")
    asked = Asked(view=View(page="hardware"), opened=library[0], library=library, theme="light")
    page = on_page(kernels(asked.source), asked.document).html
    for shown in (texts(HARDWARE.render(asked)), re.sub(r"<[^>]*>", "|", page).split("|")):
        assert [cell for cell in CELLS if cell not in shown] == []
