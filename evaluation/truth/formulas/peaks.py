"""python -m evaluation.truth.formulas.peaks: peaks of memory that others publish, and those of `plan`.

Allocated bytes are those of NVIDIA/Megatron-LM, tests/functional_tests/test_cases/gpt: `mem-max-allocated-bytes` of the
golden values of a test, in steps whose optimizer has its states, with the settings of its model_config.yaml. The last
rank logs them. Reserved bytes are those of pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md. They
include what the allocator keeps free, so they are not scored, but no plan may exceed them.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from evaluation.truth.formulas.models import LLAMA3_405B, llama3
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.memory import memory
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer
from traincope.plan.search.clusters import ACCELERATORS, GIB

MEDIAN, MOST = 0.015, 0.05
"""Errors that are wanted."""
SET_WORKSPACES = 2 * 8 * 4096 * 1024
"""CUBLAS_WORKSPACE_CONFIG=:4096:8 for the threads of forward and of backward."""
BF16, FP16 = Precision(gradients="fp32"), Precision(weights="fp16", gradients="fp16", activations="fp16")
SHARDED = Precision(weights="fp32", gradients="fp32")
UNFUSED, FLASH = ActivationPolicy(), ActivationPolicy(flash=True)
FULL = ActivationPolicy(flash=True, dropout=False, recompute=Recompute.FULL)
SMALL = Transformer(layers=12, hidden=512, heads=8, vocabulary=50_257, sequence=1024, positions=1024)
LARGE = Transformer(
    layers=32, hidden=4096, heads=32, kv_heads=8, vocabulary=131_073, sequence=8192, positions=8192, untied=True
)
PADDED_TO = 128
"""Megatron-LM pads a rank's part of the vocabulary to a multiple."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Peak of the last rank of the pipeline, in bytes."""

    name: str
    published: int
    planned: int

    @property
    def error(self) -> float:
        return self.planned / self.published - 1

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.published / 1e9:.3f} GB published, {self.planned / 1e9:.3f} planned, {self.error:+.1%}"
        )


def rows() -> Iterator[Row]:
    """Yield the tests of Megatron-LM, all on 8 GPUs."""
    local, te = "gpt3_345m_nightly_dgx_a100_1N8G_mcore", "gpt3_mcore_te"
    optimizer = "dist_optimizer_overlap_grad_reduce_param_gather"
    yield _row(f"{local}_tp1_pp1_{optimizer}", 4_735_983_616, Layout(dp=8, zero=1))
    yield _row(f"{local}_tp1_pp1_resume_torch_dist_{optimizer}", 4_607_767_040, Layout(dp=8, zero=1), precision=FP16)
    yield _row(f"{local}_tp1_pp2_resume_torch_dist", 3_544_935_936, Layout(dp=4, pp=2), precision=FP16)
    yield _row(f"{local}_tp1_pp4", 2_748_673_024, Layout(dp=2, pp=4))
    yield _row(f"{local}_tp4_pp1_resume_torch", 1_596_305_920, Layout(dp=2, tp=4), precision=FP16)
    yield _row(f"{te}_tp4_pp1_{optimizer}", 1_513_530_880, Layout(dp=2, tp=4, zero=1))
    yield _row(f"{te}_tp2_pp2", 1_902_255_104, Layout(dp=2, tp=2, pp=2))
    interleaved = Layout(dp=2, pp=4, schedule="interleaved", virtual=3, microbatches=4)
    yield _row(f"{te}_tp1_pp4_vp1", 4_119_165_440, interleaved)
    split = Layout(tp=2, pp=2, cp=2, sequence_parallel=True)
    yield _row(
        f"{te}_tp2_pp2_cp2",
        857_134_592,
        split,
        policy=replace(FLASH, dropout=False),
        workspace_bytes=ACCELERATORS["a100"].workspace_bytes,
    )
    whole = Layout(dp=2, tp=4, zero=1, micro_batch=2)
    interleaved = Layout(dp=2, pp=4, zero=1, schedule="interleaved", virtual=8, micro_batch=1, microbatches=4)
    for gpu, tp4, pp4 in (("A100", 58_188_115_968, 60_489_064_448), ("H100", 57_143_791_616, 60_518_293_504)):
        # On A100 this is FlashAttention 2; on H100 Transformer Engine prefers cuDNN.
        policy = replace(FLASH, copies_output=gpu == "A100")
        yield _row(f"gpt3_7b_tp4_pp1_memory_speed, {gpu}", tp4, whole, shape=LARGE, policy=policy)
        yield _row(f"gpt3_7b_tp1_pp4_memory_speed, {gpu}", pp4, interleaved, shape=LARGE, policy=FLASH)


def _row(
    name: str,
    published: int,
    layout: Layout,
    *,
    shape: Transformer = SMALL,
    precision: Precision = BF16,
    policy: ActivationPolicy = UNFUSED,
    workspace_bytes: int = SET_WORKSPACES,
) -> Row:
    multiple = PADDED_TO * layout.tp
    shape = replace(shape, vocabulary=-(-shape.vocabulary // multiple) * multiple)
    if shape.layers == SMALL.layers:
        layout = replace(layout, micro_batch=4, microbatches=8 // layout.dp)
    if not layout.cp > 1:
        layout = replace(layout, sequence_parallel=False)
    held = memory(shape, layout=layout, precision=precision, policy=policy, workspace_bytes=workspace_bytes)
    return Row(name=name, published=published, planned=held[-1].total)


def reserved_rows() -> Iterator[Row]:
    """Yield torchtitan's trainings with full recomputation, the largest rank of each."""
    for gib, cp in ((83.9, 1), (84.2, 2), (84.0, 4), (84.5, 8)):
        sequence = 32_768 * cp
        layout = Layout(dp=8 // cp, cp=cp, zero=3)
        yield _reserved(f"8B, {sequence:,} tokens", gib, llama3("8b", sequence=sequence), layout)
    layout = Layout(dp=32, tp=8, zero=3, micro_batch=16)
    yield _reserved("70B, tp 8", 71.9, llama3("70b", sequence=8192), layout)
    layout = Layout(dp=8, tp=8, pp=8, zero=1, microbatches=32)
    yield _reserved("405B, tp 8, pp 8", 82.5, LLAMA3_405B, layout)


def _reserved(name: str, gib: float, shape: Transformer, layout: Layout) -> Row:
    workspace = ACCELERATORS["h100"].workspace_bytes
    held = memory(shape, layout=layout, precision=SHARDED, policy=FULL, workspace_bytes=workspace)
    return Row(name=f"torchtitan, {name}", published=int(gib * GIB), planned=max(rank.total for rank in held))


def main() -> int:
    found, reserved = list(rows()), list(reserved_rows())
    for row in found:
        print(row)
    print("reserved, not scored:")
    for row in reserved:
        print(row)
    errors = [abs(row.error) for row in found]
    print(
        f"{len(found)} peaks; off by {median(errors):.1%} in the median ({MEDIAN:.1%} wanted), {max(errors):.1%} at "
        f"most ({MOST:.0%} wanted)"
    )
    return int(median(errors) > MEDIAN or max(errors) > MOST or any(row.error > 0 for row in reserved))


if __name__ == "__main__":
    sys.exit(main())
