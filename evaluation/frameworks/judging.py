"""The recording of a program, held to the truth about it: one row per quantity."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from evaluation.frameworks.training import Ended
from evaluation.frameworks.truth import Case, Traffic
from evaluation.truth.rows import Row
from traincope.analysis import Analysis, FaultKind
from traincope.analysis.attribution.terms import BUBBLE
from traincope.analysis.efficiency.counted_flops import counted_flops
from traincope.analysis.ledger.ledger import Ledger
from traincope.events import Kind, Phase
from traincope.timeline import RankTimeline, evaluations

ALLOWED = 0.01
"""Error of the FLOPs, as a share."""


def judge(case: Case, analysis: Analysis, *, bare: Ended, observed: Ended) -> Iterator[Row]:
    """Judge every quantity."""
    truth, ranks = case.truth, analysis.timeline.ranks

    def row(quantity: str, known: object, measured: object, *, holds: bool | None = None) -> Row:
        return Row(
            part=case.package,
            case=case.name,
            quantity=quantity,
            truth=str(known),
            measured=str(measured),
            holds=known == measured if holds is None else holds,
        )

    steps = sorted({len(rank.steps) for rank in ranks})
    yield row("ranks", case.ranks, len(ranks))
    yield row("steps", truth.steps, _one_or_all(steps))
    if truth.optimizer:
        updates = sorted({len(_updates(rank, truth.optimizer)) for rank in ranks})
        yield row("optimizer steps", truth.steps, _one_or_all(updates))
    mesh = {axis: size for axis, size in analysis.timeline.run.info.mesh.items() if size > 1}
    yield row("mesh", _axes(truth.mesh), _axes(mesh))
    counted = sum(rank.num_counted for rank in analysis.ledger.ranks)
    traffic = _expected(truth.traffic, truth.once, ranks=case.ranks, counted=counted)
    measured = {(each.axis, each.operation): (each.count, each.num_bytes or 0) for each in analysis.comm}
    yield row("collectives", _listed(traffic), _listed(measured))
    flops = _flops(ranks)
    close = flops == truth.flops or (
        flops is not None and truth.flops is not None and abs(flops / truth.flops - 1) <= ALLOWED
    )
    yield row("FLOPs", _number(truth.flops), _number(flops), holds=close)
    first = ranks[0]
    saves = first.main[(first.main["kind"] == Kind.PHASE) & (first.main["phase"] == Phase.CHECKPOINT_STALL)]
    for quantity, starts_ns, known in (
        ("evaluations", evaluations(first).starts_ns, truth.evaluated_after),
        ("checkpoints", saves["start_ns"], truth.saved_after),
    ):
        after = {_updates_before(first, truth.optimizer, at_ns) for at_ns in starts_ns.tolist()}
        yield row(quantity, _numbers(known), _numbers(after))
    found = [fault for fault in analysis.faults if fault.is_fault and fault.kind is not FaultKind.SLOW_STEP]
    faults = "; ".join(f"{fault.kind}: {fault.what}" for fault in found)
    yield row("faults", "none", faults or "none")
    yield row("ledger", "sums exactly", "sums exactly" if ledger_sums(analysis.ledger) else "does not sum")
    yield row("probes", "all on", _failed_probes(analysis) or "all on")
    yield row("losses", "identical", _losses(bare, observed))
    yield row("exit code", bare.exit_code, observed.exit_code)
    yield row("output", "unchanged", _changed(bare.lines, observed.lines))


def _one_or_all(values: list[int]) -> object:
    return values[0] if len(values) == 1 else values


def _updates(rank: RankTimeline, optimizer: str) -> NDArray[np.void]:
    """Return the records of the optimizer's steps."""
    phases = rank.of_kind(Kind.PHASE)
    named = [rank.name(int(number)) == optimizer for number in phases["name"]]
    return phases[(phases["phase"] == Phase.OPTIMIZER) & np.array(named, dtype=bool)]


def _updates_before(rank: RankTimeline, optimizer: str, at_ns: int) -> int:
    return int((_updates(rank, optimizer)["start_ns"] < at_ns).sum())


def _axes(mesh: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in mesh.items()) or "none"


def _expected(per_step: Traffic, once: Traffic, *, ranks: int, counted: int) -> Traffic:
    """Sum over ranks and counted steps."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for traffic, times in ((per_step, counted), (once, ranks)):
        for key, (count, num_bytes) in traffic.items():
            before = sums.get(key, (0, 0))
            sums[key] = before[0] + count * times, before[1] + num_bytes * times
    return sums


def _listed(traffic: Traffic) -> str:
    return "; ".join(
        f"{axis} {operation} {count:,} of {num_bytes:,} B"
        for (axis, operation), (count, num_bytes) in sorted(traffic.items())
    )


def _number(flops: float | None) -> str:
    return "not counted" if flops is None else f"{flops:,.0f}"


def _numbers(numbers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"


def _flops(ranks: tuple[RankTimeline, ...]) -> float | None:
    """FLOPs of one step, summed over ranks. None if a rank counted none."""
    counted = [counted_flops(rank) for rank in ranks]
    if any(each is None for each in counted):
        return None
    return sum(sum(each.model(causal_half=False).values()) for each in counted if each is not None)


def ledger_sums(ledger: Ledger) -> bool:
    """Return whether the terms of every rank and step sum to its wall time, and no measured time is negative."""
    for rank in ledger.ranks:
        known = {term: ns for term, ns in rank.terms.items() if ns is not None}
        total = sum(known.values(), np.zeros_like(rank.wall_ns))
        negative = any((ns < 0).any() for term, ns in known.items() if term not in BUBBLE)
        if negative or not np.array_equal(total, rank.wall_ns):
            return False
    return bool(ledger.ranks)


def _failed_probes(analysis: Analysis) -> str:
    states = {state for rank in analysis.timeline.run.ranks for state in rank.info.probes.values()}
    return "; ".join(sorted(state for state in states if "fail" in state or "absent" in state or "missed" in state))


def _losses(bare: Ended, observed: Ended) -> str:
    if not bare.losses:
        return "none were written"
    return "identical" if bare.losses == observed.losses else "differ"


def _changed(bare: Counter[str], observed: Counter[str]) -> str:
    added, missing = observed - bare, bare - observed
    parts = [f"new: {line}" for line in added] + [f"missing: {line}" for line in missing]
    return "; ".join(parts)[:300] or "unchanged"
