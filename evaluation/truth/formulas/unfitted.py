"""Published trainings whose step is predicted with the shipped constants, and on which no constant is fitted."""

from collections.abc import Iterator
from dataclasses import replace

from evaluation.truth.formulas.peaks import BF16, LARGE
from evaluation.truth.formulas.trainings import (
    DGX_H100,
    FLASH,
    FP16,
    FULL_2021,
    JEAN_ZAY,
    SELENE,
    Training,
)
from traincope.plan.layout.families import AMPERE, HOPPER
from traincope.plan.layout.layout import Layout, Overlap
from traincope.plan.model.transformer import Transformer

VOCABULARY = 250_880
BLOOM_SEARCH, ORDERED = "BLOOM's search 2022", "Megatron-LM's tests 2025"


def unfitted() -> Iterator[Training]:
    yield from bloom_search()
    yield from megatron_tests()


def bloom_search() -> Iterator[Training]:
    """bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md: layouts on 384 A100 that were tried for
    BLOOM, from 25 February 2022 on, when the network was repaired. Each is the second step of a run.

    Until the 26th in fp16 with ZeRO's stage 1. From the 28th on with BLOOM's optimizer for bf16 (`cast_sums`).
    """
    for hidden, layers, heads, bf16, rows in (
        (
            14336,
            72,
            64,
            False,
            (
                (8, 6, 8, 4, 2048, 114.11),
                (8, 12, 4, 4, 2048, 117.07),
                (8, 12, 4, 2, 2048, 128.82),
                (8, 8, 6, 4, 2016, 113.16),
                (8, 4, 12, 2, 2016, 125.52),
                (8, 4, 12, 4, 2016, 114.81),
                (8, 2, 24, 1, 2016, 145.45),
                (8, 2, 24, 2, 2016, 136.13),
                (4, 12, 8, 4, 2048, 111.89),
                (4, 12, 8, 2, 2048, 110.48),
                (4, 6, 16, 4, 2048, 117.11),
                (4, 6, 16, 2, 2048, 111.71),
                (2, 12, 16, 2, 2048, 112.50),
                (2, 24, 8, 1, 2048, 119.53),
                (2, 24, 8, 2, 2048, 122.75),
                (4, 24, 4, 1, 2048, 130.60),
            ),
        ),
        (13312, 84, 64, False, ((4, 12, 8, 2, 2048, 103.82), (4, 12, 8, 4, 2048, 113.21), (8, 6, 8, 2, 2048, 129.61))),
        (12288, 106, 64, True, ((4, 12, 8, 2, 2048, 116.54),)),
        (12288, 106, 96, True, ((4, 12, 8, 2, 2048, 118.79), (4, 12, 8, 4, 2048, 120.34))),
        (12288, 100, 64, True, ((8, 6, 8, 2, 2048, 139.72), (8, 6, 8, 4, 2048, 120.96))),
        (13312, 82, 64, True, ((8, 12, 4, 4, 2048, 111.79), (4, 12, 8, 2, 2048, 104.45), (4, 12, 8, 4, 2048, 104.82))),
        (14336, 70, 64, True, ((8, 12, 4, 2, 2048, 121.63), (4, 12, 8, 2, 2048, 102.03), (4, 12, 8, 4, 2048, 102.27))),
        (14336, 70, 112, True, ((4, 12, 8, 2, 2048, 104.50),)),
        (14336, 70, 128, True, ((4, 12, 8, 2, 2048, 105.89),)),
    ):
        shape = Transformer(
            layers=layers, hidden=hidden, heads=heads, vocabulary=VOCABULARY, sequence=2048, biases=True
        )
        for tp, pp, dp, micro, batch, seconds in rows:
            layout = Layout(
                dp=dp,
                tp=tp,
                pp=pp,
                zero=1,
                micro_batch=micro,
                microbatches=batch // dp // micro,
                sequence_parallel=False,
                scatter_gather=True,
                overlap=Overlap.NONE,
                fused_sums=False,
                cast_sums=bf16,
            )
            model = f"{hidden} x {layers}, {heads} heads"
            yield Training(
                source=BLOOM_SEARCH,
                name=f"{model}: tp {tp} pp {pp} dp {dp}, microbatches of {micro}",
                model=model,
                seconds=seconds,
                shape=shape,
                layouts=(layout,),
                policy=replace(FULL_2021, score_biases=True),
                machine=JEAN_ZAY,
                precision=BF16 if bf16 else FP16,
                family=AMPERE,
                set=f"BLOOM's search, {model}",
            )


def megatron_tests() -> Iterator[Training]:
    """NVIDIA/Megatron-LM, tests/functional_tests/test_cases/gpt/gpt3_7b_tp4_pp1_memory_speed and
    gpt3_7b_tp1_pp4_memory_speed: median step, with --deterministic-mode and dropout, on 8 GPUs.

    Commits: on A100 57a0267 and 72a2714; on H100 acb150e and d3fbbca.
    """
    layouts = (
        Layout(dp=2, tp=4, zero=1, micro_batch=2, microbatches=2, sequence_parallel=False, fused_sums=False),
        Layout(dp=2, pp=4, zero=1, schedule="interleaved", virtual=8, microbatches=4, fused_sums=False),
    )
    for gpu, node, family, times in (
        ("A100", SELENE, AMPERE, (2.587, 2.942)),
        ("H100", DGX_H100, HOPPER, (1.101, 1.182)),
    ):
        for layout, seconds in zip(layouts, times, strict=True):
            yield Training(
                source=ORDERED,
                name=f"7B, {gpu}, tp {layout.tp} pp {layout.pp}",
                model="7B",
                seconds=seconds,
                shape=replace(LARGE, vocabulary=131_584, biases=True),
                layouts=(layout,),
                policy=replace(FLASH, dropout=True, ordered=True),
                machine=node,
                precision=BF16,
                family=family,
            )
