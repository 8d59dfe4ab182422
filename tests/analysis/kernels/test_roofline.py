"""Rooflines of a virtual H100, computed by hand: 989.4 TFLOP/s in bfloat16, 3,352 GB/s."""

from pathlib import Path

import numpy as np
import pytest

from tests.analysis.kernels.traced import traced
from tests.timeline.traces import kernel as kernel_row
from tests.timeline.traces import launch as launch_row
from tests.timeline.traces import operator as operator_row
from tests.timeline.traces import trace
from tests.virtual_gpu.actions import Action, Program, forward, kernel, operator, step, tensors
from tests.virtual_gpu.kineto import write_traces
from traincope.analysis.kernels.kernels import Kernels, kernels
from traincope.analysis.kernels.roofline import Bound, Roofline
from traincope.ingest import import_traces, read_kineto
from traincope.timeline import open_run
from traincope.timeline.device.products import launching_mover
from traincope.timeline.intervals.painting import ABSENT

QWEN = Path(__file__).parents[4] / "shared" / "traces" / "h100_qwen_single.json.gz"

BFLOAT16 = "c10::BFloat16"
LARGE = operator(kernel(4), name="aten::mm", inputs=tensors((1024, 1024), (1024, 1024), dtype=BFLOAT16))
"""2 x 1024^3 FLOPs: 2.1705 us at peak. Three matrices of 2 MiB: 1.8769 us at the memory's bandwidth."""
LARGE_FLOPS, LARGE_BYTES = 2 * 1024**3, 3 * 2 * 1024**2
THIN = operator(kernel(20), name="aten::mm", inputs=tensors((8, 4096), (4096, 4096), dtype=BFLOAT16))
"""2 x 8 x 4096^2 FLOPs: 0.271 us. A matrix of 32 MiB and two of 64 KiB: 10.0494 us."""
THIN_FLOPS, THIN_BYTES = 2 * 8 * 4096**2, 2 * (4096**2 + 2 * 8 * 4096)
ADD = operator(
    kernel(5, name="vectorized_elementwise_kernel"),
    name="aten::add",
    inputs=tensors((1024, 1024), (1024, 1024), dtype="float"),
)
"""Reads 8 MiB and writes 4 MiB: 3.7539 us."""


def analysed(*body: Action, folder: Path) -> Kernels:
    program = Program(ranks=((step(1, forward(*body)),),))
    import_traces(write_traces(program, folder / "traces"), folder / "run")
    result = kernels(open_run(folder / "run"))
    assert result is not None
    return result


def rooflines(result: Kernels) -> dict[str, Roofline]:
    return {entry.name: entry.roofline for entry in result.classes if entry.roofline is not None}


def test_a_large_product_is_bound_by_compute(tmp_path: Path) -> None:
    roofline = rooflines(analysed(LARGE, folder=tmp_path))["gemm"]
    assert roofline == Roofline(
        operators=1,
        took_ns=4_000,
        num_bytes=LARGE_BYTES,
        memory_ns=pytest.approx(1e9 * LARGE_BYTES / 3352e9),
        product_ns=4_000,
        product_bytes=LARGE_BYTES,
        product_flops=LARGE_FLOPS,
        compute_ns=pytest.approx(2_170.5, abs=0.05),
        memory_bound_ns=0,
    )
    assert (roofline.bound, roofline.intensity) == (Bound.COMPUTE, pytest.approx(LARGE_FLOPS / LARGE_BYTES))
    assert (roofline.compute_ratio, roofline.memory_ratio) == pytest.approx((2.1705 / 4, 1.8769 / 4), abs=1e-4)


def test_a_thin_product_is_bound_by_memory(tmp_path: Path) -> None:
    roofline = rooflines(analysed(THIN, folder=tmp_path))["gemm"]
    assert (roofline.bound, roofline.num_bytes, roofline.flops) == (Bound.MEMORY, THIN_BYTES, THIN_FLOPS)
    assert roofline.memory_ratio == pytest.approx(10.0494 / 20, abs=1e-5)


def test_the_bound_of_a_class_is_that_of_most_of_its_time(tmp_path: Path) -> None:
    """Five large products take as long as a thin one, and six take longer."""
    result = {}
    for count in (5, 6):
        result[count] = rooflines(analysed(THIN, *[LARGE] * count, folder=tmp_path / str(count)))["gemm"]
    assert {count: (each.memory_bound_ns, each.took_ns, each.bound) for count, each in result.items()} == {
        5: (20_000, 40_000, Bound.MEMORY),
        6: (20_000, 44_000, Bound.COMPUTE),
    }


def test_memory_bounds_an_operator_without_products(tmp_path: Path) -> None:
    roofline = rooflines(analysed(ADD, folder=tmp_path))["elementwise"]
    assert (roofline.num_bytes, roofline.bound) == (12 * 1024**2, Bound.MEMORY)
    assert {roofline.flops, roofline.flops_per_second, roofline.compute_ratio, roofline.intensity} == {None}
    assert roofline.bytes_per_second == pytest.approx(12 * 1024**2 / 5e-6)
    assert roofline.memory_ratio == pytest.approx(3.7539 / 5, abs=1e-5)


def test_a_class_without_recorded_shapes_says_why(tmp_path: Path) -> None:
    (entry,) = analysed(operator(kernel(4), name="aten::mm"), folder=tmp_path).classes
    assert entry.roofline is None
    assert entry.roofline_reason == (
        "the traces contain no shapes with strides; profile with record_shapes=True, on a newer torch"
    )


@pytest.mark.skipif(not QWEN.is_file(), reason=f"the public trace {QWEN} is absent")
def test_operators_of_a_real_h100_are_nearly_as_fast_as_its_memory_but_no_faster() -> None:
    """24 layers of Qwen1.5-0.5B. The largest operators move 101 and 151 MB, more than the L2 cache of 50 MB holds.

    If bytes were counted twice, they would exceed the data sheet; with a missed half, they would be slow.
    """
    qwen = read_kineto(QWEN)
    rows = np.flatnonzero(qwen.of_category("kernel"))
    operator = launching_mover(qwen, rows)
    took_ns = np.bincount(operator[operator != ABSENT], weights=qwen.duration_ns[rows[operator != ABSENT]])
    known = np.flatnonzero(took_ns)
    num_bytes = qwen.read_bytes[known] + qwen.written_bytes[known]
    ratio = num_bytes / 3.352 / 1e3 / took_ns[known]
    assert len(known) == 977
    assert ratio.max() < 1
    large = num_bytes > 100e6
    assert {qwen.names[code] for code in qwen.name[known[large]].tolist()} == {"aten::mul", "aten::silu"}
    assert 0.75 < ratio[large].min() < ratio[large].max() < 0.9


def product(at: int, *, flops: float, moved: tuple[int, int]) -> list[object]:
    operator = operator_row("aten::mm", at, at + 20, flops=flops, dtype="bfloat16", moved=moved)
    return [operator, launch_row(at + 10, at)]


def test_all_kernels_of_an_operator_are_its_time() -> None:
    """A product of 30 ns in two kernels belongs to the class of the longer one."""
    rows = [
        *product(100, flops=989_400.0, moved=(3_000, 352)),
        kernel_row("gemm", 300, 320, of=100),
        kernel_row("reduce_functor", 320, 330, of=100),
    ]
    result = kernels(traced(trace(*rows), device="NVIDIA H100 80GB HBM3"))
    assert result is not None
    assert {name: (each.took_ns, each.compute_ns, each.memory_ns) for name, each in rooflines(result).items()} == {
        "gemm": (30, pytest.approx(1.0), pytest.approx(1.0))
    }


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (None, "the memory bandwidth of this device is unknown"),
        ("A100-80GB", "the memory bandwidth of A100-80GB is unknown"),
        ("Tesla V100-SXM2-32GB", "no operator with known bytes and peak launched its kernels"),
    ],
)
def test_without_a_peak_there_is_no_roofline(device: str | None, reason: str) -> None:
    """A V100 has no rate for bfloat16."""
    rows = [*product(100, flops=1e6, moved=(1, 1)), kernel_row("gemm", 300, 310, of=100)]
    result = kernels(traced(trace(*rows), device=device))
    assert result is not None
    (entry,) = result.classes
    assert entry.roofline is None
    assert entry.roofline_reason is not None
    assert entry.roofline_reason.startswith(reason)
