"""Figures of GPUs, kernels and experts."""

import numpy as np
import pytest

from traincope.analysis import ClassTime, ExpertLoads, GpuPartition, Kernels, LayerLoad
from traincope.analysis.kernels.kernel_classes import Family
from traincope.analysis.kernels.kernels import Source
from traincope.figures.efficiency.experts import expert_load
from traincope.figures.efficiency.gpus import gpu_shares
from traincope.figures.efficiency.kernels import kernel_classes


def gpu(rank: int, compute: int) -> GpuPartition:
    """A GPU with 100 ns: `compute`, 10 exposed communication, 5 exposed memory, the rest idle."""
    return GpuPartition(
        rank=rank,
        device="0",
        num_traces=1,
        num_compute=1,
        num_communication=1,
        num_memory=1,
        span_ns=100,
        compute_ns=compute,
        communication_ns=30,
        exposed_communication_ns=10,
        exposed_memory_ns=5,
    )


def test_a_gpus_shares_sum_to_its_time() -> None:
    figure = gpu_shares([gpu(0, 60), gpu(1, 80)])
    shares = {trace.name: list(trace.x) for trace in figure.data}
    assert shares == {
        "compute": [0.6, 0.8],
        "exposed communication": [0.1, 0.1],
        "exposed memory": [0.05, 0.05],
        "idle": [0.25, 0.05],
    }
    assert list(figure.layout.yaxis.ticktext) == ["rank 0, GPU 0", "rank 1, GPU 0"]


def test_of_many_gpus_the_least_busy_are_shown() -> None:
    figure = gpu_shares([gpu(rank, rank % 80) for rank in range(160)])
    assert [data[0] for data in figure.data[0].customdata][:3] == ["rank 0, GPU 0", "rank 1, GPU 0", "rank 2, GPU 0"]
    assert max(figure.data[0].x) == 0.31
    assert len(figure.data[0].x) == 64


def test_classes_of_kernels_by_share_of_all_kernels_time() -> None:
    classes = (
        ClassTime(name="gemm", family=Family.COMPUTE, count=3, total_ns=750, fused_ns=0, rated=None),
        ClassTime(name="<i>", family=Family.UNKNOWN, count=1, total_ns=250, fused_ns=0, rated=None),
    )
    kernels = Kernels(
        source=Source.DEVICE, ranks=(0,), steps=(), num_traces=1, classes=classes, longest=(), overlap=None
    )
    figure = kernel_classes(kernels)
    assert list(figure.data[0].x) == [0.75, 0.25]
    assert list(figure.data[0].text) == ["75.0 %", "25.0 %"]
    assert list(figure.layout.yaxis.ticktext) == ["gemm", "&lt;i&gt;"]


def test_experts_over_the_mean_of_their_layer() -> None:
    """Layer 2 has 30 and 10 rows: 1.5 and 0.5 times 20; layer 5 has three experts without rows."""
    layers = (LayerLoad(layer=2, tokens=(30.0, 10.0)), LayerLoad(layer=5, tokens=(0.0, 0.0, 0.0)))
    figure = expert_load(ExpertLoads(layers=layers, padding=0.0, dropped=0.0))
    (cells,) = figure.data
    assert np.array_equal(cells.z, [[1.5, 0.5, np.nan], [1.0, 1.0, 1.0]], equal_nan=True)
    assert list(figure.layout.yaxis.ticktext) == ["layer 2", "layer 5"]
    assert cells.customdata[0][0] == "30 rows"
    assert (cells.zmin, cells.zmax) == pytest.approx((0.5, 1.5))
