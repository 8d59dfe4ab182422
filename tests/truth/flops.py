"""python -m tests.truth.flops [NAME ...]: FLOPs that real ranks count, in every layout of the engine, beside formulas.

Of each layout sums over its ranks: `model`, what was counted without what was computed twice or in vain, with
causal attention halved and not; `recomputed`; and `redundant`, what the report says ran beyond model and recomputation.
An error is a share of the model's FLOPs.
"""

import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console
from rich.table import Table

import traincope
from tests.distributed.pool import Pool
from tests.distributed.sweep import configuration, write_text
from tests.distributed.sweep_layouts import LAYOUTS, Tables, mixture, of, packed
from traincope.analysis import Analysis
from traincope.analysis.counted import counted_flops
from traincope.analysis.experts import rows_then
from traincope.cli.worker import document_values, expert_values, settings
from traincope.engine.batches import training_batches
from traincope.engine.config import Config, ExpertsConfig, ParallelConfig, TrainConfig
from traincope.engine.corpus import read_corpus
from traincope.engine.shape import amounts, transformer
from traincope.engine.trainer import Trainer
from traincope.plan.flops import TRAINING, attention_forward, blocks_forward
from traincope.plan.rates import model_rates

ALLOWED = 0.01
STEPS = 3
COUNTED_STEP = 1
"""The second."""
PEAK = 1e12
"""Any will do: no time is judged here."""


def recomputing(tables: Tables, mode: str) -> Tables:
    return {**tables, "train": TrainConfig(steps=STEPS, batch=16, recompute=mode)}  # type: ignore[arg-type]


SHARED = {**of(fsdp=2, ep=2), "experts": ExpertsConfig(number=8, top_k=2, ffn=32, shared=True)}
RECOMPUTED: Mapping[str, Tables] = {
    "fsdp 2, pointwise": recomputing(of(fsdp=2), "pointwise"),
    "fsdp 2, selective": recomputing(of(fsdp=2), "selective"),
    "fsdp 2, full": recomputing(of(fsdp=2), "full"),
    "tp 2, full": recomputing(of(tp=2), "full"),
    "tp 2, pointwise": recomputing(of(tp=2), "pointwise"),
    "tp 2, selective": recomputing(of(tp=2), "selective"),
    "cp 2 ring, full": recomputing(of(cp=2), "full"),
    "cp 2 ring, pointwise": recomputing(of(cp=2), "pointwise"),
    "cp 2 ring, selective": recomputing(of(cp=2), "selective"),
    "cp 2 ulysses, full": recomputing(of(cp=2, cp_method="ulysses"), "full"),
    "cp 2 ulysses, selective": recomputing(of(cp=2, cp_method="ulysses"), "selective"),
    "pp 2 1f1b, full": recomputing(of(pp=2, microbatches=4), "full"),
    "pp 2 1f1b, selective": recomputing(of(pp=2, microbatches=4), "selective"),
    "fsdp 2, ep 2, full": recomputing(mixture(fsdp=2, ep=2), "full"),
    "fsdp 2, ep 2, shared expert, full": recomputing(SHARED, "full"),
    "fsdp 2, ep 2, with a capacity, pointwise": recomputing(mixture(fsdp=2, ep=2, capacity_factor=1.0), "pointwise"),
    "fsdp 2, ep 2, with a capacity, selective": recomputing(mixture(fsdp=2, ep=2, capacity_factor=1.0), "selective"),
}
PACKED: Mapping[str, Tables] = {
    "ddp 2, packed": packed(of(dp=2)),
    "fsdp 2, packed, full": packed(recomputing(of(fsdp=2), "full")),
    "tp 2, packed": packed(of(tp=2)),
    "tp 2, packed, selective": packed(recomputing(of(tp=2), "selective")),
    "pp 2 1f1b, packed, selective": packed(recomputing(of(pp=2, microbatches=4), "selective")),
    "pp 2 zb-v, packed": packed(of(pp=2, schedule="zb-v", microbatches=4)),
    "fsdp 2, ep 2, packed": packed(mixture(fsdp=2, ep=2)),
}
TWO_RANKS: Mapping[str, Tables] = {
    "ddp 2": of(dp=2),
    "tp 2 without sequence parallelism": of(tp=2, sequence_parallel=False),
    "cp 2 ring": of(cp=2),
    "pp 2 zb-v": of(pp=2, schedule="zb-v", microbatches=4),
    "ddp 2 in bf16": {**of(dp=2), "train": TrainConfig(steps=STEPS, batch=16, precision="bf16")},
}
EVERY: Mapping[str, Tables] = {**TWO_RANKS, **RECOMPUTED, **PACKED, **LAYOUTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    layout: str
    what: str
    truth: float
    measured: float
    model: float
    """FLOPs of a step by formula."""

    @property
    def error(self) -> float:
        return (self.measured - self.truth) / self.model

    @property
    def holds(self) -> bool:
        return abs(self.error) <= ALLOWED


def train(config: Config, directory: str) -> None:
    """One rank, recorded as `traincope train` records it."""
    with traincope.run(directory, throttle=None) as run:
        run.describe(**settings(config), peak_flops=PEAK)
        trainer = Trainer(config, device=torch.device("cpu"))
        for result in trainer.steps():
            run.log(**document_values(config, result), **expert_values(trainer, config, result))
            run.step()


def measure(pool: Pool, config: Config, directory: Path) -> Analysis:
    pool.run(train, config, str(directory), timeout_seconds=300.0)
    return traincope.analyze(traincope.open_run(directory))


def rows(layout: str, config: Config, analysis: Analysis) -> tuple[Row, ...]:
    """Truth is from shapes and the text, but for what a capacity lets through: that is up to the router, and logged.

    What was counted is of the second step; of what the report splits, of all steps but the first, the mean.
    """
    shape, work = transformer(config), analysis.utilization.work
    second, *others = squared_lengths(config)[1:]
    attention, usual = attention_of(config, [second]), attention_of(config, [second, *others])
    went = replace(amounts(config), squared_lengths=second)
    if analysis.experts is not None:
        went = replace(went, routed_tokens=_rows_of_the_second(config, analysis.experts.rows, analysis))
    model = model_rates(shape).flops(went, causal_half=True)
    in_vain = (_rows_there(config, taken=went.routed_tokens) - went.routed_tokens) * model_rates(
        shape
    ).routed_token + routed_again(config)
    pairs = {
        "model": (model, _counted_model(analysis, causal_half=True) - in_vain),
        "not halved": (model + masked(config, attention), _counted_model(analysis, causal_half=False) - in_vain),
        "recomputed": (recomputed(config, usual), work.recomputed),
        "redundant": (scores_again(usual) + in_vain, work.redundant),
    }
    return tuple(
        Row(layout=layout, what=what, truth=truth, measured=math.nan if measured is None else measured, model=model)
        for what, (truth, measured) in pairs.items()
    )


def squared_lengths(config: Config) -> tuple[int, ...]:
    """Of the documents of every step's batch, as one process reads it; of whole sequences, where none ends."""
    end = config.data.end_of_document
    if end is None:
        return (config.train.batch * config.model.sequence**2,) * config.train.steps
    batches = training_batches(replace(config, parallel=ParallelConfig()), read_corpus(config.data), replica=0)
    return tuple(sum(_squares(tokens[:-1], end=end) for tokens in batch.tolist()) for batch in batches)


def _squares(tokens: list[int], *, end: int) -> int:
    """Document by document, each with the token that ends it."""
    lengths = [0]
    for token in tokens:
        lengths[-1] += 1
        if token == end:
            lengths.append(0)
    return sum(length**2 for length in lengths)


def attention_of(config: Config, squares: Sequence[int]) -> float:
    """One forward's, halved: the mean of steps whose documents' squared lengths sum to `squares`."""
    shape, batch = transformer(config), config.train.batch
    return fmean(attention_forward(shape, batch=batch, causal_half=True, squared_lengths=each) for each in squares)


def masked(config: Config, attention: float) -> float:
    """The half of the attention that a causal mask leaves out, of all that kernels are called with.

    Between two ranks of a ring no score is computed in vain: only each rank's own triangle has another half, so the
    count without halving is (n + 1) / 2n of the whole square, with n ranks.
    """
    half, parallel = TRAINING * attention, config.parallel
    return half / parallel.cp if parallel.cp_method == "ring" else half


def recomputed(config: Config, attention: float) -> float:
    """Pointwise recomputation keeps every product, selective repeats attention, full each block.

    Selective is a third of what Korthikanti's equation 8 adds, which counts attention's backward again too.
    Full stops once it has all that backward reads: before a last product, whose output that does not (those of experts
    are weighted, so they are not last).
    """
    if config.train.recompute != "full":
        return attention if config.train.recompute == "selective" else 0.0
    shape, batch, model = transformer(config), config.train.batch, config.model
    ends_in_product = config.experts is None or config.experts.shared
    last = 2 * config.tokens_per_step * model.layers * model.hidden * model.ffn if ends_in_product else 0
    return blocks_forward(shape, batch=batch) + attention - last


def routed_again(config: Config) -> float:
    """Every rank of `tp` routes the whole sequences: a product, and two in backward, that one of them needs.

    A product alone does not tell that others do the same; what the training told of its model does.
    """
    experts = config.experts
    if experts is None:
        return 0.0
    once = 2 * config.tokens_per_step * config.model.hidden * experts.number * config.model.layers
    return TRAINING * once * (config.parallel.tp - 1)


def scores_again(attention: float) -> float:
    """Fused attention's backward computes the scores once more: one of forward's two products, half of it masked.

    FlashAttention (Dao et al. 2022, arXiv:2205.14135), algorithm 4.
    """
    return attention / 2


def _rows_of_the_second(config: Config, usual: float, analysis: Analysis) -> float:
    """That were taken. Where some are empty, all that are there are multiplied in every step."""
    return usual if config.parallel.cp == 1 else rows_then(analysis.timeline, steps={COUNTED_STEP}) or math.nan


def _rows_there(config: Config, *, taken: float) -> float:
    """Of all experts, taken or empty, which none is where sequences are cut."""
    experts, model = config.experts, config.model
    capacity = None if experts is None else experts.capacity(model.sequence)
    if experts is None or capacity is None or config.parallel.cp > 1:
        return taken
    return model.layers * experts.number * config.train.batch * capacity


def _counted_model(analysis: Analysis, *, causal_half: bool) -> float:
    """By counting alone, whatever the training told."""
    counted = [counted_flops(rank) for rank in analysis.timeline.ranks]
    return sum(math.nan if each is None else sum(each.model(causal_half=causal_half).values()) for each in counted)


# -- the table ------------------------------------------------------------------------------------


def main(names: list[str]) -> int:
    """Of the layouts whose names contain any of `names`, all without one."""
    chosen = {name: tables for name, tables in EVERY.items() if not names or any(part in name for part in names)}
    table = Table(title="FLOPs of a step, summed over ranks: truth | measured | error", box=None)
    for head in ("layout", "what", "truth", "measured", "error"):
        table.add_column(head, justify="left" if head in ("layout", "what") else "right", no_wrap=True)
    missed, largest = 0, 0.0
    for row in measured_rows(chosen):
        missed, largest = missed + (not row.holds), max(largest, abs(row.error))
        cells = row.layout, row.what, f"{row.truth:,.0f}", f"{row.measured:,.0f}", f"{row.error:+.2%}"
        table.add_row(*cells, style=None if row.holds else "bold red")
    Console(width=120).print(table)
    found = f"off by {largest:.2%} of the model's FLOPs at most, {ALLOWED:.0%} allowed"
    print(f"{len(chosen)} layouts; {found}; {missed} missed")
    return int(missed > 0)


def measured_rows(layouts: Mapping[str, Tables]) -> Iterator[Row]:
    """By size, one pool at a time; each layout starts on a mesh of its own."""
    with tempfile.TemporaryDirectory() as directory:
        text = write_text(Path(directory))
        configs = {name: configuration(text, tables) for name, tables in layouts.items()}
        pool = Pool(0)
        for name, config in sorted(configs.items(), key=lambda item: item[1].parallel.world_size):
            if pool.size != config.parallel.world_size:
                pool.stop()
                pool = Pool(config.parallel.world_size)
            print(name, file=sys.stderr)
            yield from rows(name, config, measure(pool, config, Path(directory) / name))
        pool.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
