"""Chains of unfused kernels in traces of a virtual H100, computed by hand."""

from pathlib import Path

import pytest

from tests.virtual_gpu.actions import (
    US,
    Action,
    Inputs,
    Program,
    Synchronize,
    backward,
    evaluate,
    forward,
    kernel,
    operator,
    optimizer,
    step,
    tensors,
)
from tests.virtual_gpu.kineto import write_traces
from traincope.analysis.analyze import Analysis, analyze
from traincope.analysis.kernels.unfused import Chain, Saving, Unfused
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.analysis.verdict.losses.term_causes import term_causes
from traincope.ingest import import_traces
from traincope.timeline import open_run

MIB = 1024**2
ONE = tensors((1024, 1024), dtype="float")
TWO = tensors((1024, 1024), (1024, 1024), dtype="float")
"""Tensors of 4 MiB."""


def pointwise(name: str, us: int, inputs: Inputs | None = None, *, kernel_name: str = "elementwise_kernel") -> Action:
    return operator(kernel(us, name=kernel_name), name=name, inputs=inputs)


MUL, ADD, RELU = pointwise("aten::mul", 10, TWO), pointwise("aten::add", 6, TWO), pointwise("aten::relu", 4, ONE)
GEMM = operator(kernel(50), name="aten::mm")


def analysed(*body: Action, folder: Path) -> Analysis:
    program = Program(ranks=((step(1, *body),),))
    import_traces(write_traces(program, folder / "traces"), folder / "run")
    return analyze(open_run(folder / "run"))


def chains(*body: Action, folder: Path) -> Unfused:
    result = analysed(*body, folder=folder).unfused
    assert result is not None
    return result


def findings(*body: Action, folder: Path) -> list[Finding]:
    verdict = analysed(*body, folder=folder).verdict
    return [finding for finding in verdict if finding.kind is FindingKind.UNFUSED_KERNELS]


def test_a_chain_and_what_its_fusion_saves_at_most(tmp_path: Path) -> None:
    """The operators move 12, 12 and 8 MiB. One kernel still reads 8 MiB and writes 4 MiB, in 3,754 ns at 3,352 GB/s."""
    saving = Saving(num_bytes=20 * MIB, ns=20 * US - 3_754)
    result = chains(forward(GEMM, MUL, ADD, RELU, GEMM), folder=tmp_path)
    assert result.chains == (
        Chain(
            operators=("aten::mul", "aten::add", "aten::relu"),
            phase="forward",
            count=1,
            num_kernels=3,
            total_ns=20 * US,
            saving=saving,
            reason=None,
        ),
    )
    assert (result.in_steps_ns, result.rated_ns, result.saving) == (20 * US, 20 * US, saving)
    assert (result.saved_in_steps_ns, result.saved_by_phase) == (saving.ns, {"forward": saving.ns})


def test_the_saving_is_a_slice_of_its_phase_in_the_ledger_of_the_trace(tmp_path: Path) -> None:
    """At most what fusion saves, in the time of forward and backward; nothing of it in any other term."""
    saved_ns = 20 * US - 3_754
    sliced = term_causes(analysed(forward(GEMM, MUL, ADD, RELU, GEMM), folder=tmp_path))
    causes = [(each.terms, cause) for each in sliced for cause in each.causes]
    fused = [(terms, cause.subject, cause.ns) for terms, cause in causes if cause.kind == "unfused_kernels"]
    assert fused == [(("forward", "backward"), "forward", saved_ns)]


def test_equal_chains_are_one_entry(tmp_path: Path) -> None:
    result = chains(forward(MUL, ADD, GEMM, MUL, ADD, GEMM, ADD, RELU), folder=tmp_path)
    assert [(chain.operators, chain.count, chain.num_kernels, chain.total_ns) for chain in result.chains] == [
        (("aten::mul", "aten::add"), 2, 4, 32 * US),
        (("aten::add", "aten::relu"), 1, 2, 10 * US),
    ]
    assert (result.count, result.num_kernels, result.total_ns) == (3, 6, 42 * US)


@pytest.mark.parametrize(
    "body",
    [
        (forward(MUL, GEMM, ADD),),
        (forward(MUL, Synchronize(), ADD),),
        (forward(MUL), backward(evaluate("AddBackward0", ADD))),
        (forward(MUL), optimizer(ADD)),
        (forward(MUL, operator(kernel(6, stream=20, name="elementwise_kernel"), name="aten::add")),),
        (forward(MUL, pointwise("triton", 6, kernel_name="triton_poi_fused_add_0")),),
        (forward(MUL, GEMM),),
    ],
    ids=["another kernel", "a wait", "autograd's thread", "another phase", "another stream", "compiled", "alone"],
)
def test_nothing_else_is_a_chain(body: tuple[Action, ...], tmp_path: Path) -> None:
    assert chains(*body, folder=tmp_path).count == 0


def test_without_bytes_the_saving_is_unknown(tmp_path: Path) -> None:
    result = chains(forward(MUL, pointwise("aten::my_op", 6)), folder=tmp_path)
    (chain,) = result.chains
    assert (chain.total_ns, chain.saving, result.saving, result.rated_ns) == (16 * US, None, None, 0)
    assert chain.reason == ("the bytes of an operator are unknown; profile with record_shapes=True, on a newer torch")


def test_a_large_saving_is_a_finding_with_the_remedy(tmp_path: Path) -> None:
    """The step is 53 us: 3 until the first kernel, 30 + 20."""
    gemm = operator(kernel(30), name="aten::mm")
    (finding,) = findings(forward(gemm, MUL, ADD, RELU), folder=tmp_path)
    assert finding.estimated_gain_ratio == pytest.approx(16_246 / 53_000)
    assert finding.evidence == (
        "37.7 % of step time is in 1 chain of pointwise and normalisation kernels; the most in forward: aten::mul, "
        "aten::add, aten::relu (1 chain)"
    )
    assert finding.advice == (
        "Compile this code with torch.compile, or call a fused kernel for it: this saves at most 30.7 % of step time."
    )


def test_unknown_savings_are_advised_without_a_gain(tmp_path: Path) -> None:
    unknown = [pointwise("aten::my_op", 10)] * 2
    (finding,) = findings(forward(GEMM), optimizer(*unknown), folder=tmp_path)
    assert finding.estimated_gain_ratio is None
    assert finding.advice == "Give the optimizer fused=True, or foreach=True where it has no fused kernel."


def test_small_savings_are_no_finding(tmp_path: Path) -> None:
    """At most 2 of 505 us."""
    gemm = operator(kernel(500), name="aten::mm")
    assert (
        findings(forward(gemm, pointwise("aten::mul", 1, ONE), pointwise("aten::relu", 1, ONE)), folder=tmp_path) == []
    )
