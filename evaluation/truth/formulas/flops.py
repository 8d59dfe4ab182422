"""python -m evaluation.truth.formulas.flops [NAME ...]: FLOPs counted by real ranks in every layout, and formulas.

Sums over the ranks of a layout: `model`, counted FLOPs without repeated or unnecessary ones, with causal attention
halved and in full; `recomputed`; and `redundant`, all executed FLOPs beyond model and recomputed in the report. An
error is a share of the model's FLOPs.
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
from tests.distributed.ranks.pool import Pool
from tests.distributed.sweep.layouts import LAYOUTS, Tables, layout, mixture, packed
from tests.distributed.sweep.sweep import configuration, write_text
from traincope.analysis import Analysis
from traincope.analysis.efficiency.counted_flops import counted_flops
from traincope.analysis.efficiency.experts import mean_rows_multiplied
from traincope.cli.launch.worker import document_values, expert_values, settings
from traincope.engine.batches import training_batches
from traincope.engine.config import Config, ExpertsConfig, ParallelConfig, TrainConfig
from traincope.engine.corpus import read_corpus
from traincope.engine.model.shape import max_amounts, transformer
from traincope.engine.trainer import Trainer
from traincope.plan.model.flops import TRAINING, attention_forward, blocks_forward
from traincope.plan.model.rates import model_rates

ALLOWED = 0.01
STEPS = 3
COUNTED_STEP = 1
"""The second."""
PEAK = 1e12
"""Any value works, because no time is judged."""


def recomputing(tables: Tables, mode: str, *, layers: int | None = None) -> Tables:
    train = TrainConfig(steps=STEPS, batch=16, recompute=mode, recompute_layers=layers)  # type: ignore[arg-type]
    return {**tables, "train": train}


SHARED = {**layout(fsdp=2, ep=2), "experts": ExpertsConfig(number=8, top_k=2, ffn=32, shared=True)}
RECOMPUTED: Mapping[str, Tables] = {
    "fsdp 2, pointwise": recomputing(layout(fsdp=2), "pointwise"),
    "fsdp 2, selective": recomputing(layout(fsdp=2), "selective"),
    "fsdp 2, full": recomputing(layout(fsdp=2), "full"),
    "tp 2, full": recomputing(layout(tp=2), "full"),
    "tp 2, pointwise": recomputing(layout(tp=2), "pointwise"),
    "tp 2, selective": recomputing(layout(tp=2), "selective"),
    "cp 2 ring, full": recomputing(layout(cp=2), "full"),
    "cp 2 ring, pointwise": recomputing(layout(cp=2), "pointwise"),
    "cp 2 ring, selective": recomputing(layout(cp=2), "selective"),
    "cp 2 ulysses, full": recomputing(layout(cp=2, cp_method="ulysses"), "full"),
    "cp 2 ulysses, selective": recomputing(layout(cp=2, cp_method="ulysses"), "selective"),
    "pp 2 1f1b, full": recomputing(layout(pp=2, microbatches=4), "full"),
    "pp 2 1f1b, selective": recomputing(layout(pp=2, microbatches=4), "selective"),
    "pp 2 1f1b, full in 3 layers of a stage": recomputing(layout(pp=2, microbatches=4), "full", layers=3),
    "pp 2 zb-1p, full": recomputing(layout(pp=2, schedule="zb-1p", microbatches=4), "full"),
    "pp 2 zb-v, full": recomputing(layout(pp=2, schedule="zb-v", microbatches=4), "full"),
    "pp 2 zb-v, pointwise": recomputing(layout(pp=2, schedule="zb-v", microbatches=4), "pointwise"),
    "pp 2 zb-v, selective in 1 layer of a stage": recomputing(
        layout(pp=2, schedule="zb-v", microbatches=4), "selective", layers=1
    ),
    "pp 2 dualpipev, full": recomputing(layout(pp=2, schedule="dualpipev", microbatches=4), "full"),
    "fsdp 2, ep 2, full": recomputing(mixture(fsdp=2, ep=2), "full"),
    "fsdp 2, ep 2, shared expert, full": recomputing(SHARED, "full"),
    "fsdp 2, ep 2, with a capacity, pointwise": recomputing(mixture(fsdp=2, ep=2, capacity_factor=1.0), "pointwise"),
    "fsdp 2, ep 2, with a capacity, selective": recomputing(mixture(fsdp=2, ep=2, capacity_factor=1.0), "selective"),
}
PACKED: Mapping[str, Tables] = {
    "ddp 2, packed": packed(layout(dp=2)),
    "fsdp 2, packed, full": packed(recomputing(layout(fsdp=2), "full")),
    "tp 2, packed": packed(layout(tp=2)),
    "tp 2, packed, selective": packed(recomputing(layout(tp=2), "selective")),
    "pp 2 1f1b, packed, selective": packed(recomputing(layout(pp=2, microbatches=4), "selective")),
    "pp 2 zb-v, packed": packed(layout(pp=2, schedule="zb-v", microbatches=4)),
    "fsdp 2, ep 2, packed": packed(mixture(fsdp=2, ep=2)),
}
TWO_RANKS: Mapping[str, Tables] = {
    "ddp 2": layout(dp=2),
    "tp 2 without sequence parallelism": layout(tp=2, sequence_parallel=False),
    "cp 2 ring": layout(cp=2),
    "pp 2 zb-v": layout(pp=2, schedule="zb-v", microbatches=4),
    "ddp 2 in bf16": {**layout(dp=2), "train": TrainConfig(steps=STEPS, batch=16, precision="bf16")},
}
EVERY: Mapping[str, Tables] = {**TWO_RANKS, **RECOMPUTED, **PACKED, **LAYOUTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    layout: str
    quantity: str
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
    """Train one rank, recorded like `traincope train`."""
    with traincope.run(directory, budget=None) as run:
        run.describe(**settings(config), peak_flops=PEAK)
        trainer = Trainer(config, device=torch.device("cpu"))
        for result in trainer.steps():
            run.log(**document_values(config, result), **expert_values(trainer, config, result))
            run.step()


def measure(pool: Pool, config: Config, directory: Path) -> Analysis:
    pool.run(train, config, str(directory), timeout_seconds=300.0)
    return traincope.analyze(traincope.open_run(directory))


def rows(layout: str, config: Config, analysis: Analysis) -> tuple[Row, ...]:
    """Rows of a layout. Truth comes from shapes and the text, except tokens dropped by a capacity, which the router
    logs.

    Counts are of the second step. The parts in the report are means over all steps except the first.
    """
    shape, work = transformer(config), analysis.utilization.work
    second, *others = squared_lengths(config)[1:]
    attention, usual = attention_of(config, [second]), attention_of(config, [second, *others])
    went = replace(max_amounts(config), squared_lengths=second)
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
        Row(
            layout=layout,
            quantity=quantity,
            truth=truth,
            measured=math.nan if measured is None else measured,
            model=model,
        )
        for quantity, (truth, measured) in pairs.items()
    )


def squared_lengths(config: Config) -> tuple[int, ...]:
    """Squared lengths of the documents in every step's batch, as one process reads it; of whole sequences if
    documents do not end.
    """
    end = config.data.end_of_document
    if end is None:
        return (config.train.batch * config.model.sequence**2,) * config.train.steps
    batches = training_batches(replace(config, parallel=ParallelConfig()), read_corpus(config.data), replica=0)
    return tuple(sum(_squares(tokens[:-1], end=end) for tokens in batch.tolist()) for batch in batches)


def _squares(tokens: list[int], *, end: int) -> int:
    """Squared lengths, document by document, each with its end token."""
    lengths = [0]
    for token in tokens:
        lengths[-1] += 1
        if token == end:
            lengths.append(0)
    return sum(length**2 for length in lengths)


def attention_of(config: Config, squares: Sequence[int]) -> float:
    """FLOPs of one forward's attention, halved: mean of steps whose documents' squared lengths sum to `squares`."""
    shape, batch = transformer(config), config.train.batch
    return fmean(attention_forward(shape, batch=batch, causal_half=True, squared_lengths=each) for each in squares)


def masked(config: Config, attention: float) -> float:
    """Attention FLOPs that a causal mask leaves out, of all that the kernels execute.

    Between two ranks of a ring no score is computed unnecessarily: only each rank's own triangle has a masked half, so
    with n ranks the unhalved count is (n + 1) / 2n of the whole square.
    """
    half, parallel = TRAINING * attention, config.parallel
    return half / parallel.cp if parallel.cp_method == "ring" else half


def recomputed(config: Config, attention: float) -> float:
    """Recomputed FLOPs: pointwise keeps every product, selective repeats attention, full repeats each block.

    Selective is a third of the addition in Korthikanti's equation 8, which counts attention's backward again too. Full
    stops when it has all inputs of backward: before a last product whose output backward does not need (those of
    experts are weighted, so they are not last).
    """
    train, model = config.train, config.model
    layers = sum(min(train.recompute_layers or len(stage), len(stage)) for stage in config.stage_layers)
    if train.recompute != "full":
        return attention * layers / model.layers if train.recompute == "selective" else 0.0
    ends_in_product = config.experts is None or config.experts.shared
    last = 2 * config.tokens_per_step * model.layers * model.hidden * model.ffn if ends_in_product else 0
    return (blocks_forward(transformer(config), batch=train.batch) + attention - last) * layers / model.layers


def routed_again(config: Config) -> float:
    """Redundant FLOPs of routing: every rank of `tp` routes the whole sequences, one product and two in backward.

    The product alone does not show that others do the same; the declared model FLOPs do.
    """
    experts = config.experts
    if experts is None:
        return 0.0
    once = 2 * config.tokens_per_step * config.model.hidden * experts.number * config.model.layers
    return TRAINING * once * (config.parallel.tp - 1)


def scores_again(attention: float) -> float:
    """Scores that fused attention's backward computes again: one of forward's two products, half of it masked.

    FlashAttention (Dao et al. 2022, arXiv:2205.14135), algorithm 4.
    """
    return attention / 2


def _rows_of_the_second(config: Config, usual: float, analysis: Analysis) -> float:
    """Rows of experts in the second step. If some are empty, every step multiplies all existing rows."""
    return (
        usual if config.parallel.cp == 1 else mean_rows_multiplied(analysis.timeline, steps={COUNTED_STEP}) or math.nan
    )


def _rows_there(config: Config, *, taken: float) -> float:
    """Rows of all experts, used or empty; none if sequences are cut."""
    experts, model = config.experts, config.model
    capacity = None if experts is None else experts.capacity(model.sequence)
    if experts is None or capacity is None or config.parallel.cp > 1:
        return taken
    return model.layers * experts.number * config.train.batch * capacity


def _counted_model(analysis: Analysis, *, causal_half: bool) -> float:
    """Model FLOPs from counting alone, without declared settings."""
    counted = [counted_flops(rank) for rank in analysis.timeline.ranks]
    return sum(math.nan if each is None else sum(each.model(causal_half=causal_half).values()) for each in counted)


# -- the table ------------------------------------------------------------------------------------


def main(names: list[str]) -> int:
    """Measure and print the layouts whose names contain one of `names`; all without names."""
    chosen = {name: tables for name, tables in EVERY.items() if not names or any(part in name for part in names)}
    table = Table(title="FLOPs of a step, summed over ranks: truth | measured | error", box=None)
    for head in ("layout", "what", "truth", "measured", "error"):
        table.add_column(head, justify="left" if head in ("layout", "what") else "right", no_wrap=True)
    missed, largest = 0, 0.0
    for row in measured_rows(chosen):
        missed, largest = missed + (not row.holds), max(largest, abs(row.error))
        cells = row.layout, row.quantity, f"{row.truth:,.0f}", f"{row.measured:,.0f}", f"{row.error:+.2%}"
        table.add_row(*cells, style=None if row.holds else "bold red")
    Console(width=120).print(table)
    summary = f"off by {largest:.2%} of the model's FLOPs at most, {ALLOWED:.0%} allowed"
    print(f"{len(chosen)} layouts; {summary}; {missed} missed")
    return int(missed > 0)


def measured_rows(layouts: Mapping[str, Tables]) -> Iterator[Row]:
    """Layouts by size, one pool at a time; each layout starts on a new mesh."""
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
