"""Utilization of hand-made traces with shapes: the GPU does 1,000 FLOPs per ns, and each step lasts 100 ns."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.ingest.test_public_traces import TRACES
from tests.ingest.writing import complete, kineto
from tests.timeline.device.imported import Program, run_of
from tests.timeline.traces import trace
from traincope.analysis import Analysis, analyze
from traincope.analysis.efficiency.utilization import Utilization
from traincope.events import Work
from traincope.ingest import import_traces
from traincope.timeline import Traces, build_timeline, open_run

PEAK = {"peak_flops": 1_000e9}
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
COMPILED = "autograd::engine::evaluate_function: CompiledFunctionBackward"


def one_step(*, backward: str = BACKWARD, repeated: float = 0.0) -> Program:
    """A step of 100 ns: 10,000 FLOPs forward and 20,000 backward, which also repeats some of forward's."""
    program = Program()
    program.step(0, 0, 100)
    program.range("## forward ##", 0, 10)
    program.product(2, flops=10_000)
    program.range(backward, 20, 60)
    program.product(22, flops=20_000)
    if repeated:
        program.operator("aten::linear", 30, 40, sequence=9)
        program.product(32, flops=repeated)
    program.kernel(90, 91, 99, name="elementwise")
    return program


def utilization_of(program: Program) -> Utilization:
    one_trace = trace(*program.rows)
    timeline = build_timeline(run_of(one_trace, settings=PEAK))
    return analyze(replace(timeline, traces=Traces(ranks={0: (one_trace,)}))).utilization


def test_shapes_give_both_utilizations() -> None:
    result = utilization_of(one_step())
    assert (result.ratios.mfu, result.ratios.hfu) == (0.3, 0.3)


def test_recomputation_is_in_the_hfu_only() -> None:
    result = utilization_of(one_step(repeated=10_000))
    assert (result.ratios.mfu, result.ratios.hfu) == (0.3, 0.4)


def test_a_traced_part_gives_no_utilization_of_the_job() -> None:
    result = utilization_of(one_step())
    assert (result.ratios.mfu_job, result.job_reason) == (None, "the traces contain only a part of the job")
    assert analysis_of(one_step()).goodput is None


def test_fused_attention_repeats_a_fifth_of_its_backward_and_skips_half_under_a_causal_mask() -> None:
    program = one_step()
    program.range("## forward ##", 70, 73)
    program.product(70, flops=8_000, work=Work.CAUSAL_ATTENTION)
    program.range(BACKWARD, 80, 83)
    program.product(80, flops=20_000, work=Work.CAUSAL_ATTENTION_AGAIN)
    result = utilization_of(program)
    assert result.ratios.hfu == pytest.approx(0.3 + (8_000 + 20_000) / 2 / 100_000)
    assert result.ratios.mfu == pytest.approx(0.3 + (8_000 + 16_000) / 2 / 100_000)
    assert result.ratios.mfu_paper == pytest.approx(0.3 + (8_000 + 16_000) / 100_000)


def test_evaluation_is_excluded() -> None:
    program = one_step()
    program.range("## evaluation ##", 70, 80)
    program.product(72, flops=50_000)
    # 5 ns of the kernel are not part of the step, nor are the idle ones before it.
    used = utilization_of(program)
    (wall_ns,) = analysis_of(program).ledger.ranks[0].wall_ns.tolist()
    assert used.ratios.mfu == pytest.approx(30_000 / (1_000 * wall_ns))


def analysis_of(program: Program) -> Analysis:
    return analyze(build_timeline(run_of(trace(*program.rows), settings=PEAK)))


@pytest.mark.parametrize(
    ("program", "sign"),
    [
        (one_step(backward=COMPILED), "a compiled backward may contain recomputation"),
        (one_step(backward="## backward ##", repeated=0.0), None),
    ],
)
def test_a_compiled_backward_leaves_only_the_hfu(program: Program, sign: str | None) -> None:
    result = utilization_of(program)
    assert result.ratios.hfu == 0.3
    assert (result.ratios.mfu is None) == (sign is not None)
    assert sign is None or str(result.reason).startswith(sign)


def test_a_backward_of_more_than_twice_the_forward_recomputes() -> None:
    program = one_step()
    program.range(BACKWARD, 70, 73)
    program.product(70, flops=1_000)
    result = utilization_of(program)
    assert (result.ratios.mfu, result.ratios.hfu) == (None, 0.31)
    assert str(result.reason).startswith("backward has more than twice the FLOPs of forward")


def test_products_outside_of_all_phases_leave_only_the_hfu() -> None:
    program = one_step()
    program.product(70, flops=1_000)
    result = utilization_of(program)
    assert (result.ratios.mfu, result.ratios.hfu) == (None, 0.31)
    assert str(result.reason).startswith("3.2 % of the FLOPs are launched outside of forward and backward")


def test_a_product_without_shapes_leaves_nothing() -> None:
    program = one_step()
    program.kernel(70, 71, 80, name="cutlass_gemm")
    result = utilization_of(program)
    assert (result.ratios.mfu, result.ratios.hfu) == (None, None)
    assert str(result.reason).startswith(
        "kernels with 33.3 % of the compute time have unknown FLOPs, such as cutlass_gemm;"
    )


def test_without_shapes_the_reason_names_the_setting() -> None:
    program = Program()
    program.step(0, 0, 100)
    program.kernel(1, 2, 50)
    assert "record_shapes=True" in str(utilization_of(program).reason)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("matmul_k(float*)", "kernels with 100.0 % of the compute time have unknown FLOPs, such as matmul_k(float*);"),
        ("void at::native::vectorized_elementwise_kernel<4>", "no operator of the traces is a product whose FLOPs"),
    ],
)
def test_shapes_that_give_no_flops_are_not_called_missing(kernel: str, reason: str, tmp_path: Path) -> None:
    """The operator of a custom kernel has shapes, and no formula."""
    shapes = {"Input Dims": [[1000, 1000], []], "Input type": ["float", "Scalar"], "Input Strides": [[1000, 1], []]}
    events = [
        complete("ProfilerStep#1", "0", "100", cat="user_annotation", pid=1, tid=1),
        complete("mine::matmul", "1", "5", cat="cpu_op", pid=1, tid=1, **shapes),
        complete("cudaLaunchKernel", "2", "1", cat="cuda_runtime", pid=1, tid=1, correlation=1),
        complete(kernel, "5", "90", correlation=1),
    ]
    (tmp_path / "trace.json").write_text(kineto(events))
    import_traces([tmp_path / "trace.json"], tmp_path / "run")
    assert str(analyze(open_run(tmp_path / "run")).utilization.reason).startswith(reason)


def test_a_product_that_launched_no_kernel_did_not_run() -> None:
    """A CUDA graph captures it."""
    program = one_step()
    program.rows = [row for row in program.rows if row.start_ns not in (22, 23, 24)]
    assert utilization_of(program).ratios.hfu == 0.1


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"the public GPU traces are not in {TRACES}")
class TestRealTraces:
    def test_resnet_18_on_an_mi300(self, tmp_path: Path) -> None:
        """1.814 GMAC per image forward (He et al. 2015), 10 images; backward twice that without the gradient of the
        image; 19 of 20 convolutions run again."""
        import_traces([TRACES / "mi300_resnet_recompute_rank0_of_8.json.gz"], tmp_path / "run")
        used = analyze(open_run(tmp_path / "run")).utilization
        first = 2 * 10 * 112 * 112 * 64 * 3 * 7 * 7
        forward = 10 * 2 * 1_814_073_344
        assert used.work.model == 3 * forward - first
        assert used.work.recomputed == forward - first - 2 * 10 * 512 * 1000
        assert used.ratios.mfu is not None
        assert used.ratios.hfu is not None
        assert used.ratios.hfu / used.ratios.mfu == pytest.approx(
            (used.work.model + used.work.recomputed) / used.work.model
        )

    def test_qwen_on_an_h100(self, tmp_path: Path) -> None:
        """Forward of Qwen1.5-0.5B on 16 sequences of 559 tokens, in no phase: 24 blocks of 4 h^2 + 3 h x 2,816 weights,
        and causal attention. The logits are of the last tokens only."""
        import_traces([TRACES / "h100_qwen_single.json.gz"], tmp_path / "run")
        used = analyze(open_run(tmp_path / "run")).utilization
        blocks = 2 * 16 * 559 * 24 * (4 * 1024**2 + 3 * 1024 * 2816)
        attention = 24 * 4 * 16 * 559**2 * 1024 / 2
        assert used.work.executed == pytest.approx(blocks + attention, rel=1e-3)
        assert (used.ratios.mfu, used.ratios.hfu) == (None, pytest.approx(0.1655, abs=1e-4))
