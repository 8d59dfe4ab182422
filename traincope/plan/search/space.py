"""All layouts of a model on a number of ranks, and the rules that reject some.

Some layouts are built only if they are wanted:

- ZeRO's stage 0 holds more than stage 1 and sends as many bytes in rings. A tree of many nodes can still reduce its
  gradients sooner than stage 1's two rings. With a pipeline, FSDP keeps weights and gradients for the whole step, which
  is stage 1.
- GPipe has 1F1B's bubble and holds more; `naive` has a larger bubble. DualPipeV's bubble has no formula.
- With flash attention selective recomputation keeps the same bytes as none.
- Recomputation only costs time, so it is tried where none does not fit.
- Replicas of FSDP's shards (HSDP), and ZeRO++'s copies of weights (hpZ), are one for each link domain, so that gathers
  stay within it. ZeRO++'s other two parts round numbers, so they are tried only if that is wanted.
- Offload only costs time, so `search` tries it where nothing fits without it.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from traincope.errors import UsageError
from traincope.plan.layout.layout import Layout, Place
from traincope.plan.model.transformer import Transformer
from traincope.plan.pipeline.orders import SCHEDULES

AXES = ("dp", "tp", "pp", "cp", "ep")
MAX_CHUNKS = 8
"""Most stages of a pipeline rank."""
SEARCHED = ("1f1b", "zb-1p", "zb-v")
"""Schedules; 1F1B with several stages per rank is interleaved."""
MAX_SPLIT_SEQUENCE = 64
"""Largest cp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Conditions on the layouts. None: any value."""

    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    zero: int | None = None
    schedule: str | None = None
    micro_batch: int | None = None
    quantized: bool = False
    """Also layouts with ZeRO++'s quantized weights and gradients."""
    offload: Place | None = None
    """Only layouts with optimizer state, or also weights, in this place."""
    engine: bool = False
    """Only layouts that `traincope train` has."""

    def sizes(self, axis: str, choices: Iterator[int]) -> Iterator[int]:
        """Sizes of an axis: the wanted one, even if it is impossible, or all choices."""
        wanted: int | None = getattr(self, axis)
        return choices if wanted is None else iter((wanted,))


@dataclass(frozen=True, slots=True)
class Rejections:
    """Reasons for which layouts are impossible, with the number of layouts."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str, number: int = 1) -> None:
        self.counts[reason] += number

    @property
    def most_common(self) -> Mapping[str, int]:
        return dict(self.counts.most_common())


def meshes(
    shape: Transformer, *, ranks: int, domain: int, wanted: Wanted, rejections: Rejections
) -> Iterator[Mapping[str, int]]:
    """Yield the sizes of all axes. Their product is `ranks`, except for ep, which takes its ranks out of dp x cp."""
    for tp in wanted.sizes("tp", _divisors(ranks)):
        if ranks % tp:
            rejections.add(f"tp {tp} does not divide the {ranks} GPUs")
            continue
        if tp > domain and wanted.tp is None:
            rejections.add(f"tp is wider than the link domain of {domain} GPUs")
            continue
        for pp in wanted.sizes("pp", _divisors(ranks // tp)):
            if pp > shape.layers:
                rejections.add(f"pp has more ranks than the model has layers, {shape.layers}")
                continue
            if (ranks // tp) % pp:
                rejections.add(f"tp x pp = {tp * pp} does not divide the {ranks} GPUs")
                continue
            yield from _replicas(shape, tp=tp, pp=pp, rest=ranks // tp // pp, wanted=wanted, rejections=rejections)


def _replicas(
    shape: Transformer, *, tp: int, pp: int, rest: int, wanted: Wanted, rejections: Rejections
) -> Iterator[Mapping[str, int]]:
    for cp in wanted.sizes("cp", _divisors(rest)):
        if cp > MAX_SPLIT_SEQUENCE and wanted.cp is None:
            rejections.add(f"cp is larger than {MAX_SPLIT_SEQUENCE}")
            continue
        if rest % cp or (wanted.dp is not None and rest // cp != wanted.dp):
            rejections.add("the axes do not fill the GPUs exactly")
            continue
        for ep in wanted.sizes("ep", _divisors(rest) if shape.experts else iter((1,))):
            yield {"dp": rest // cp, "tp": tp, "pp": pp, "cp": cp, "ep": ep}


def layouts(
    shape: Transformer,
    mesh: Mapping[str, int],
    *,
    batch: int,
    wanted: Wanted,
    rejections: Rejections,
    domain: int | None = None,
) -> Iterator[tuple[Layout, ...]]:
    """Yield layouts of a mesh that differ in the sequences of a microbatch only, fewest first.

    More sequences need more memory, so a layout after one that does not fit does not fit either. `domain`: GPUs of a
    link domain; None: without replicas of shards.
    """
    if batch % mesh["dp"]:
        rejections.add(f"the batch of {batch} sequences does not divide over dp")
        return
    sequences = batch // mesh["dp"]
    for sharing in _shardings(mesh, wanted, domain):
        for schedule, virtual in _schedules(shape, mesh["pp"], wanted):
            built = []
            for micro_batch in wanted.sizes("micro_batch", _powers(sequences)):
                if sequences % micro_batch:
                    rejections.add(f"microbatches of {micro_batch} sequences do not divide a data rank's {sequences}")
                    continue
                try:
                    layout = Layout(
                        dp=mesh["dp"],
                        tp=mesh["tp"],
                        pp=mesh["pp"],
                        cp=mesh["cp"],
                        ep=mesh["ep"],
                        **sharing,
                        schedule=schedule,
                        virtual=virtual,
                        microbatches=sequences // micro_batch,
                        micro_batch=micro_batch,
                    )
                    layout.check(shape)
                except UsageError as error:
                    rejections.add(re.sub(r"\b\d+\b", "n", str(error)))
                    continue
                built.append(layout)
            if built:
                yield tuple(built)


class Sharing(TypedDict, total=False):
    """Settings of a layout by which data ranks share its state."""

    zero: int
    replicas: int
    node_ranks: int
    quantize_weights: bool
    quantize_gradients: bool
    optimizer_place: Place
    parameters_place: Place


def _shardings(mesh: Mapping[str, int], wanted: Wanted, domain: int | None) -> Iterator[Sharing]:
    for zero in _zeros(mesh, wanted):
        for sharing in _of_stage(zero, mesh, wanted, domain):
            yield from _placed(sharing, wanted.offload)


def _of_stage(zero: int, mesh: Mapping[str, int], wanted: Wanted, domain: int | None) -> Iterator[Sharing]:
    """Yield a stage of ZeRO: with one replica, with one for each link domain, and with ZeRO++."""
    yield {"zero": zero}
    if zero < 2 or mesh["pp"] * mesh["ep"] > 1:
        return
    if wanted.quantized and mesh["dp"] * mesh["cp"] > 1:
        yield {"zero": zero, "quantize_weights": True, "quantize_gradients": True}
    if domain is None or zero < 3:
        return
    shards, rest = divmod(domain, mesh["tp"] * mesh["cp"])
    if rest or not 1 < shards < mesh["dp"] or mesh["dp"] % shards:
        return
    yield {"zero": zero, "replicas": mesh["dp"] // shards}
    node_ranks = shards * mesh["cp"]
    yield {"zero": zero, "node_ranks": node_ranks}
    if wanted.quantized:
        yield {"zero": zero, "node_ranks": node_ranks, "quantize_weights": True, "quantize_gradients": True}


def _placed(sharing: Sharing, place: Place | None) -> Iterator[Sharing]:
    """Yield the sharing with state in a place outside the device."""
    if place is None:
        yield sharing
        return
    yield {**sharing, "optimizer_place": place}
    if sharing["zero"] == 3:
        # The engine's CPU updates weights that lie in its memory without being told to.
        optimizer = Place.DEVICE if place is Place.CPU else place
        yield {**sharing, "parameters_place": place, "optimizer_place": optimizer}


def _zeros(mesh: Mapping[str, int], wanted: Wanted) -> tuple[int, ...]:
    if wanted.zero is not None:
        return (wanted.zero,)
    if mesh["pp"] > 1:
        return (1,)
    shared = mesh["tp"] * mesh["cp"] * mesh["ep"] > 1 and mesh["dp"] * mesh["cp"] > 1
    return (2, 3) if wanted.engine and shared else (1, 2, 3)


def _schedules(shape: Transformer, pp: int, wanted: Wanted) -> Iterator[tuple[str, int | None]]:
    """Yield schedules with their stages per rank."""
    if pp == 1:
        yield "1f1b", None
        return
    for name in SEARCHED if wanted.schedule is None else (wanted.schedule,):
        if name not in ("1f1b", "interleaved"):
            yield name, None
            continue
        chunks = SCHEDULES[name].min_chunks
        while chunks <= min(MAX_CHUNKS, max(shape.layers // pp, 1)):
            yield name, chunks
            chunks *= 2


def _divisors(number: int) -> Iterator[int]:
    """Divisors, smallest first."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    yield from small
    yield from (number // each for each in reversed(small) if each * each != number)


def _powers(number: int) -> Iterator[int]:
    """Powers of two that divide a number, smallest first."""
    power = 1
    while number % power == 0:
        yield power
        power *= 2
