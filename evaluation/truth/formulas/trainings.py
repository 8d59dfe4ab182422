"""Published trainings with the time of their step, table by table.

Attention counts whole where scores are kept in memory, as in the papers of 2021 and 2022, and half with flash
attention, which skips what a causal mask hides. A setting that a source leaves open is the fastest of the prediction.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from evaluation.truth.formulas.models import LLAMA3_405B, gpt, llama2, llama3, mpt, nemotron4
from evaluation.truth.formulas.published import A100, H100
from traincope.plan.hardware import find_hardware
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.families import AMPERE, HOPPER, Family
from traincope.plan.layout.layout import Layout, Overlap
from traincope.plan.layout.machine import Machine
from traincope.plan.model.flops import Recompute, step_flops
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer
from traincope.plan.search.clusters import NETWORK_LATENCY_SECONDS, NODE_LATENCY_SECONDS

GIB = 1 << 30
MIXED = Precision()
FP16 = Precision(weights="fp16", gradients="fp16", activations="fp16")
FULL = ActivationPolicy(recompute=Recompute.FULL, early_stop=False)
FULL_2021 = replace(FULL, two_pass_norms=True)
SELECTIVE = ActivationPolicy(recompute=Recompute.SELECTIVE)
FLASH = ActivationPolicy(flash=True, dropout=False)
TRITON = ActivationPolicy(flash=True, triton=True, dropout=False, two_pass_norms=True)
BLOOM = "BLOOM 2022"
LLM_FOUNDRY = Path(__file__).with_name("llm_foundry.csv")


def machine(device: str, peak: float, *, node: float, network: float, gib: int = 80) -> Machine:
    spec = find_hardware(device)
    assert spec is not None
    return Machine(
        peak_flops=peak,
        memory_bytes=gib * GIB,
        node_bytes_per_second=node,
        network_bytes_per_second=network,
        memory_bytes_per_second=spec.bytes_per_second,
        node_latency_seconds=NODE_LATENCY_SECONDS,
        network_latency_seconds=NETWORK_LATENCY_SECONDS,
    )


SELENE = machine("NVIDIA A100-SXM4-80GB", A100, node=300e9, network=25e9)
"""DGX A100: eight links of 200 Gbit/s per node (Narayanan et al. 2021, section 5)."""
JEAN_ZAY = replace(
    machine("NVIDIA A100-SXM4-80GB", A100, node=300e9, network=4 * 12.5e9 / 8),
    blocking_launches=True,
    ring_bytes_per_second=40.5e9 / 8,
)
"""Four Omni-Path links of 100 Gbit/s per node of eight (BLOOM's README, train/tr11-176B-ml). A ring over four nodes
takes one of them, and reaches 40.5 Gbit/s (bigscience-workshop/bigscience, experiments/bandwidth/
all_reduce_bench-a100-n4.txt). CUDA_LAUNCH_BLOCKING=1 (tr11-176B-ml.slurm, chronicles-prequel.md)."""
VELA = machine("NVIDIA A100-SXM4-80GB", A100, node=300e9, network=50e9 / 8)
"""400 Gbit/s per node of eight (PyTorch blog of 13 March 2024, "Maximizing training throughput using PyTorch FSDP")."""
DGX_H100 = machine("NVIDIA H100 80GB HBM3", H100, node=450e9, network=50e9)
"""400 Gbit/s per GPU. So has Meta's Grand Teton (Llama Team 2024, section 3.3.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A published training with the time of its step."""

    source: str
    name: str
    model: str
    """Size of the model, with which its group is left out."""
    seconds: float
    """Published, or from the published MFU or rate."""
    shape: Transformer
    layouts: tuple[Layout, ...]
    """Possible layouts: several if the source leaves a setting open."""
    policy: ActivationPolicy
    machine: Machine
    family: Family
    precision: Precision = MIXED
    whole: Transformer | None = None
    """The model, if `shape` has only some of its layers."""
    set: str | None = None
    """Name of the set of layouts of one model on one cluster that it belongs to."""

    @property
    def causal_half(self) -> bool:
        return self.policy.flash

    @property
    def parameters(self) -> int:
        """Parameters of the whole model, of which some rows train only some layers."""
        return (self.whole or self.shape).parameters

    @property
    def gpus(self) -> int:
        return self.layouts[0].ranks


def trainings() -> Iterator[Training]:
    """All rows of the published tables."""
    yield from megatron()
    yield from korthikanti()
    yield from bloom()
    yield from llama()
    yield from llm_foundry()
    yield from torchtitan()
    yield from fms_fsdp()
    yield from dgx_cloud()


def of_mfu(shape: Transformer, layout: Layout, *, mfu: float, peak: float, half: bool) -> float:
    """Step time with this MFU."""
    return step_flops(shape, batch=layout.batch, causal_half=half).model / (layout.ranks * peak * mfu)


def megatron() -> Iterator[Training]:
    """Narayanan et al. 2021, arXiv:2104.04473, table 1. Its rates count recomputation; MFU is the model's part.

    Settings: NVIDIA/Megatron-LM, examples/sc21, run_table_1.sh and CONFIG.sh. Without a pipeline, torch's DDP reduces
    gradients next to backward.
    """
    for billions, heads, hidden, layers, tp, pp, dp, batch, micro, virtual, tflops in (
        (1.7, 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
        (3.6, 32, 3072, 30, 2, 1, 32, 512, 16, 1, 138),
        (7.5, 32, 4096, 36, 4, 1, 32, 512, 16, 1, 142),
        (18.4, 48, 6144, 40, 8, 1, 32, 1024, 8, 1, 135),
        (39.1, 64, 8192, 48, 8, 2, 32, 1536, 4, 1, 138),
        (76.1, 80, 10240, 60, 8, 4, 32, 1792, 2, 3, 140),
        (145.6, 96, 12288, 80, 8, 8, 24, 2304, 2, 2, 148),
        (310.1, 128, 16384, 96, 8, 16, 15, 2160, 1, 2, 155),
        (529.6, 128, 20480, 105, 8, 35, 9, 2520, 1, 3, 163),
        (1008.0, 160, 25600, 128, 8, 64, 6, 3072, 1, 1, 163),
    ):
        shape = gpt(layers, hidden, heads)
        step = step_flops(shape, batch=1, recompute=Recompute.FULL)
        layout = Layout(
            dp=dp,
            tp=tp,
            pp=pp,
            virtual=virtual,
            micro_batch=micro,
            microbatches=batch // dp // micro,
            sequence_parallel=False,
            scatter_gather=True,
            overlap=Overlap.NONE if pp > 1 else Overlap.DATA,
            fused_sums=False,
        )
        mfu = tflops * 1e12 / A100 * step.model / step.hardware
        yield Training(
            source="Megatron 2021",
            name=f"{billions:g}B, full",
            model=f"{billions:g}B",
            seconds=of_mfu(shape, layout, mfu=mfu, peak=A100, half=False),
            shape=shape,
            layouts=(layout,),
            policy=FULL_2021,
            machine=SELENE,
            precision=FP16,
            family=AMPERE,
        )


def korthikanti() -> Iterator[Training]:
    """Korthikanti et al. 2022, arXiv:2205.05198, table 5: full recomputation, and selective with sequence parallelism.

    The time of the first is printed; for the second it follows from the printed MFU.
    """
    for name, heads, hidden, layers, pp, virtual, gpus, batch, micro, full_seconds, mfu in (
        ("22B", 64, 6144, 48, 1, 1, 8, 4, 4, 1.42, 41.5),
        ("175B", 96, 12288, 96, 8, 3, 64, 64, 1, 18.13, 51.4),
        ("530B", 128, 20480, 105, 35, 3, 280, 280, 1, 49.05, 56.0),
        ("1T", 160, 25600, 128, 64, 1, 512, 512, 1, 94.42, 56.3),
    ):
        shape = gpt(layers, hidden, heads)
        for policy, parallel in ((FULL, False), (SELECTIVE, True)):
            layout = Layout(
                tp=8,
                pp=pp,
                virtual=virtual,
                micro_batch=micro,
                microbatches=batch // micro,
                sequence_parallel=parallel,
                scatter_gather=not parallel,
            )
            assert layout.ranks == gpus
            by_mfu = of_mfu(shape, layout, mfu=mfu / 100, peak=A100, half=False)
            yield Training(
                source="Korthikanti 2022",
                name=f"{name}, {policy.recompute}",
                model=name,
                seconds=by_mfu if parallel else full_seconds,
                shape=shape,
                layouts=(layout,),
                policy=policy,
                machine=SELENE,
                family=AMPERE,
                set=f"Korthikanti {name}",
            )


def bloom() -> Iterator[Training]:
    """BLOOM-176B, bigscience-workshop/bigscience, train/tr11-176B-ml: README.md and tr11-176B-ml.slurm; 105.2 s."""
    yield Training(
        source=BLOOM,
        name="176B, full",
        model="176B",
        seconds=105.2,
        shape=Transformer(layers=70, hidden=14336, heads=112, vocabulary=250_880, sequence=2048, biases=True),
        layouts=(
            Layout(
                dp=8,
                tp=4,
                pp=12,
                zero=1,
                micro_batch=2,
                microbatches=128,
                sequence_parallel=False,
                scatter_gather=True,
                overlap=Overlap.NONE,
                cast_sums=True,
            ),
        ),
        policy=replace(FULL_2021, score_biases=True),
        machine=JEAN_ZAY,
        precision=Precision(gradients="fp32"),
        family=AMPERE,
    )


def llama() -> Iterator[Training]:
    """Llama Team 2024, arXiv:2407.21783, table 4. The paper leaves open the stages per rank of its pipeline."""
    for gpus, cp, dp, sequence, microbatches, percent in (
        (8192, 1, 64, 8192, 32, 43),
        (16384, 1, 128, 8192, 16, 41),
        (16384, 16, 8, 131_072, 16, 38),
    ):
        shape = replace(LLAMA3_405B, sequence=sequence)
        layouts = tuple(
            Layout(
                dp=dp,
                tp=8,
                pp=16,
                cp=cp,
                zero=1,
                virtual=virtual,
                microbatches=microbatches,
                # The paper describes no overlap of tp.
                overlap=Overlap.DATA,
            )
            for virtual in (1, 2, 4, 8)
        )
        yield Training(
            source="Llama 3 2024",
            name=f"405B, {gpus} GPUs, cp {cp}",
            model="405B",
            seconds=of_mfu(shape, layouts[0], mfu=percent / 100, peak=H100, half=True),
            shape=shape,
            layouts=layouts,
            policy=FLASH,
            machine=DGX_H100,
            family=HOPPER,
        )


def llm_foundry(path: Path = LLM_FOUNDRY) -> Iterator[Training]:
    """Rows of mosaicml/llm-foundry, scripts/train/benchmarking/README.md: MPT with FSDP and attention in Triton.

    The table's flash attention is the kernel of 2022 in Triton, with positions as biases (ALiBi).
    """
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        gpus, h100 = int(row["gpus"]), row["gpu"] == "h100"
        sequence = int(row["seq"])
        layout = Layout(
            dp=gpus,
            zero=3 if row["sharding"] == "FULL_SHARD" else 2,
            micro_batch=int(row["micro_batch"]),
            microbatches=int(row["accumulation"]),
        )
        yield Training(
            source="llm-foundry 2023",
            name=f"{row['model']}, {gpus} {row['gpu'].upper()}, {sequence} tokens, {row['recompute']}",
            model=row["model"],
            seconds=float(row["step_seconds"]),
            shape=mpt(int(row["layers"]), int(row["hidden"]), int(row["heads"]), int(row["vocab"]), sequence=sequence),
            layouts=(layout,),
            policy=TRITON.with_recompute(Recompute(row["recompute"])),
            machine=DGX_H100 if h100 else SELENE,
            family=HOPPER if h100 else AMPERE,
            set=f"llm-foundry, {row['model']} on {row['gpu'].upper()}, {sequence} tokens",
        )


def torchtitan() -> Iterator[Training]:
    """pytorch/torchtitan, docs/performance.md at commit 0413364: FSDP2 on 64 A100. Selective recomputation, which keeps
    every second product, has no formula.
    """
    for model, shape, micro, recompute, tokens_per_second in (
        ("13B", llama2("13b", sequence=4096), 2, Recompute.NONE, 2162),
        ("70B", llama2("70b", sequence=4096), 2, Recompute.FULL, 353),
        ("70B", llama3("70b", sequence=8192), 1, Recompute.FULL, 331),
    ):
        yield Training(
            source="torchtitan 2024",
            name=f"{model}, {shape.sequence} tokens, {recompute}",
            model=model,
            seconds=micro * shape.sequence / tokens_per_second,
            shape=shape,
            layouts=(Layout(dp=64, zero=3, micro_batch=micro),),
            policy=FLASH.with_recompute(recompute),
            machine=SELENE,
            family=AMPERE,
        )


def fms_fsdp() -> Iterator[Training]:
    """foundation-model-stack/fms-fsdp, README.md at commit 0d31998: Llama 2 with 4,096 tokens on 128 A100."""
    for model, replicas, recompute, micro, tokens_per_second in (
        ("7b", 16, Recompute.NONE, 2, 3760),
        ("13b", 16, Recompute.NONE, 1, 1700),
        ("34b", 1, Recompute.FULL, 8, 772),
        ("70b", 1, Recompute.FULL, 6, 380),
    ):
        shape = llama2(model, sequence=4096)
        yield Training(
            source="fms-fsdp 2024",
            name=f"{model.upper()}, {'HSDP' if replicas > 1 else 'FSDP'}, {recompute}",
            model=model.upper(),
            seconds=micro * shape.sequence / tokens_per_second,
            shape=shape,
            layouts=(Layout(dp=128, replicas=replicas, zero=3, micro_batch=micro),),
            policy=FLASH.with_recompute(recompute),
            machine=VELA,
            family=AMPERE,
        )


def dgx_cloud() -> Iterator[Training]:
    """NVIDIA/dgxc-benchmarking at commits 143b90d and 0b71cfd: NeMo 24.09 to 24.12 in bf16 on DGX H100.

    llama3.1/README_8b.md, README_70b.md and README_405b.md, nemotron/README_15b.md and README_340b.md, and
    nemo_megatron/README_175b.md. 405B with fewer layers is a model of its own.
    """
    llama8, llama70 = llama3("8b", sequence=8192), llama3("70b", sequence=8192)
    # The recipe of 405B takes the vocabulary of GPT-2, padded for 8 ranks.
    llama405 = replace(LLAMA3_405B, vocabulary=51_200)
    for gpus, seconds in ((8, 12.91), (16, 13.0), (32, 13.05), (64, 13.08), (128, 13.1)):
        layout = Layout(dp=gpus // 2, cp=2, zero=1, microbatches=32)
        yield _dgx_cloud("8B", llama8, layout, seconds)
    for gpus, seconds in ((64, 14.72), (128, 14.73), (256, 14.8), (512, 14.89), (1024, 14.92), (2048, 14.98)):
        layout = Layout(dp=gpus // 32, tp=4, pp=4, cp=2, zero=1, virtual=5, microbatches=64)
        yield _dgx_cloud("70B", llama70, layout, seconds)
    for gpus, layers, pp, seconds in (
        (32, 7, 1, 8.85),
        (96, 21, 3, 8.75),
        (192, 42, 3, 16.93),
        (576, 126, 9, 17.2),
        (1152, 126, 9, 17.52),
        (2304, 126, 9, 17.62),
    ):
        layout = Layout(dp=gpus // (16 * pp), tp=8, pp=pp, cp=2, zero=1, virtual=7 if pp > 1 else None, microbatches=63)
        model = "405B" if layers == 126 else f"405B, {layers} layers"
        yield replace(_dgx_cloud(model, replace(llama405, layers=layers), layout, seconds), whole=llama405)
    for gpus, seconds in (
        (16, 2.812),
        (32, 2.824),
        (64, 2.845),
        (128, 2.859),
        (256, 2.852),
        (512, 2.875),
        (1024, 2.895),
        (2048, 2.887),
    ):
        layout = Layout(dp=gpus // 4, tp=4, zero=1, micro_batch=4, microbatches=4)
        yield _dgx_cloud("15B", nemotron4(32, 6144, 48), layout, seconds)
    for gpus, seconds in ((128, 4.61), (256, 4.67), (512, 4.7), (1024, 4.73), (2048, 4.84)):
        layout = Layout(dp=gpus // 64, tp=8, pp=8, zero=1, virtual=12, microbatches=16)
        yield _dgx_cloud("340B", nemotron4(96, 18432, 96), layout, seconds)
    for gpus, seconds in ((128, 8.309), (256, 8.408), (512, 8.42), (1024, 8.453), (2048, 8.49)):
        layout = Layout(dp=gpus // 32, tp=4, pp=8, zero=1, virtual=12, microbatches=64)
        # Transformer Engine sums the gradients of biases in its products.
        yield _dgx_cloud("175B", replace(gpt(96, 12288, 96), biases=False), layout, seconds)


def _dgx_cloud(model: str, shape: Transformer, layout: Layout, seconds: float) -> Training:
    return Training(
        source="DGX Cloud 2024",
        name=f"{model}, {layout.ranks} GPUs",
        model=model.split(",")[0],
        seconds=seconds,
        shape=shape,
        layouts=(replace(layout, overlap=Overlap.ALL),),
        policy=FLASH,
        machine=DGX_H100,
        family=HOPPER,
    )
