"""python -m tests.truth.flops [NAME ...]: FLOPs that real ranks count, in every layout of the engine, beside formulas.

Of each layout sums over its ranks: `model`, what was counted without what was computed twice or in vain, with
causal attention halved and not; `recomputed`; and `redundant`, what the report says ran beyond model and recomputation.
An error is a share of the model's FLOPs.
"""

import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import traincope
from tests.distributed.pool import Pool
from tests.distributed.sweep import configuration, write_text
from tests.distributed.sweep_layouts import LAYOUTS, Tables, mixture, of
from traincope.analysis import Analysis
from traincope.analysis.counted import counted_flops
from traincope.cli.worker import expert_values, settings
from traincope.engine.config import Config, ExpertsConfig, TrainConfig
from traincope.engine.shape import amounts, transformer
from traincope.engine.trainer import Trainer
from traincope.plan.flops import TRAINING, attention_forward, blocks_forward
from traincope.plan.rates import model_rates

ALLOWED = 0.01
STEPS = 3
"""The second is counted."""
PEAK = 1e12
"""Any will do: no time is judged here."""


def recomputing(tables: Tables, mode: str) -> Tables:
    return {**tables, "train": TrainConfig(steps=STEPS, batch=16, recompute=mode)}  # type: ignore[arg-type]


SHARED = {**of(fsdp=2, ep=2), "experts": ExpertsConfig(number=8, top_k=2, ffn=32, shared=True)}
RECOMPUTED: Mapping[str, Tables] = {
    "fsdp 2, selective": recomputing(of(fsdp=2), "selective"),
    "fsdp 2, full": recomputing(of(fsdp=2), "full"),
    "tp 2, full": recomputing(of(tp=2), "full"),
    "tp 2, selective": recomputing(of(tp=2), "selective"),
    "cp 2 ring, full": recomputing(of(cp=2), "full"),
    "cp 2 ring, selective": recomputing(of(cp=2), "selective"),
    "cp 2 ulysses, full": recomputing(of(cp=2, cp_method="ulysses"), "full"),
    "pp 2 1f1b, full": recomputing(of(pp=2, microbatches=4), "full"),
    "fsdp 2, ep 2, full": recomputing(mixture(fsdp=2, ep=2), "full"),
    "fsdp 2, ep 2, shared expert, full": recomputing(SHARED, "full"),
    "fsdp 2, ep 2, with a capacity, selective": recomputing(mixture(fsdp=2, ep=2, capacity_factor=1.0), "selective"),
}
TWO_RANKS: Mapping[str, Tables] = {
    "ddp 2": of(dp=2),
    "tp 2 without sequence parallelism": of(tp=2, sequence_parallel=False),
    "cp 2 ring": of(cp=2),
    "pp 2 zb-v": of(pp=2, schedule="zb-v", microbatches=4),
    "ddp 2 in bf16": {**of(dp=2), "train": TrainConfig(steps=STEPS, batch=16, precision="bf16")},
}
EVERY: Mapping[str, Tables] = {**TWO_RANKS, **RECOMPUTED, **LAYOUTS}


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
            run.log(**expert_values(trainer, config, result))
            run.step()


def measure(pool: Pool, config: Config, directory: Path) -> Analysis:
    pool.run(train, config, str(directory), timeout_seconds=300.0)
    return traincope.analyze(traincope.open_run(directory))


def rows(layout: str, config: Config, analysis: Analysis) -> tuple[Row, ...]:
    """Truth is from shapes, but for what a capacity lets through: that is up to the router, and what ranks logged."""
    shape, work = transformer(config), analysis.utilization.work
    went = amounts(config)
    if analysis.experts is not None:
        went = replace(went, routed_tokens=analysis.experts.rows)
    model = model_rates(shape).flops(went, causal_half=True)
    in_vain = (_rows_there(config) - went.routed_tokens) * model_rates(shape).routed_token + routed_again(config)
    pairs = {
        "model": (model, _counted_model(analysis, causal_half=True) - in_vain),
        "not halved": (model + masked(config), _counted_model(analysis, causal_half=False) - in_vain),
        "recomputed": (recomputed(config), work.recomputed),
        "redundant": (scores_again(config) + in_vain, work.redundant),
    }
    return tuple(
        Row(layout=layout, what=what, truth=truth, measured=math.nan if measured is None else measured, model=model)
        for what, (truth, measured) in pairs.items()
    )


def masked(config: Config) -> float:
    """The half of the attention that a causal mask leaves out, of all that kernels are called with.

    Between two ranks of a ring no score is computed in vain: only each rank's own triangle has another half, so the
    count without halving is (n + 1) / 2n of the whole square, with n ranks.
    """
    half = TRAINING * attention_forward(transformer(config), batch=config.train.batch, causal_half=True)
    parallel = config.parallel
    return half / parallel.cp if parallel.cp_method == "ring" else half


def recomputed(config: Config) -> float:
    """Selective recomputation here keeps every product, full repeats each block.

    It stops once it has all that backward reads: before a last product, whose output that does not (those of experts
    are weighted, so they are not last).
    """
    if config.train.recompute != "full":
        return 0.0
    shape, batch, model = transformer(config), config.train.batch, config.model
    ends_in_product = config.experts is None or config.experts.shared
    last = 2 * config.tokens_per_step * model.layers * model.hidden * model.ffn if ends_in_product else 0
    return blocks_forward(shape, batch=batch) + attention_forward(shape, batch=batch, causal_half=True) - last


def routed_again(config: Config) -> float:
    """Every rank of `tp` routes the whole sequences: a product, and two in backward, that one of them needs.

    A product alone does not tell that others do the same; what the training told of its model does.
    """
    experts = config.experts
    if experts is None:
        return 0.0
    once = 2 * config.tokens_per_step * config.model.hidden * experts.number * config.model.layers
    return TRAINING * once * (config.parallel.tp - 1)


def scores_again(config: Config) -> float:
    """Fused attention's backward computes the scores once more: one of forward's two products, half of it masked.

    FlashAttention (Dao et al. 2022, arXiv:2205.14135), algorithm 4.
    """
    return attention_forward(transformer(config), batch=config.train.batch, causal_half=True) / 2


def _rows_there(config: Config) -> float:
    """Of all experts, taken or empty."""
    experts, model = config.experts, config.model
    capacity = None if experts is None else experts.capacity(model.sequence)
    if experts is None or capacity is None:
        return amounts(config).routed_tokens
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
