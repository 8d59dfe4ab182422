"""python -m tests.truth.windows.coverage: intervals of 100 thinned copies of real runs against the full runs.

Each layout is recorded in full and thinned by drawn run ids. Prints, per term, its share in the full run, in how many
draws an interval is stated, and in how many of these it contains the full run's share. Exits with 1 below 90 of 100.
"""

import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import traincope
from tests.distributed.ranks.pool import Pool
from tests.truth.windows.thinning import thin
from tests.truth.windows.varied import train
from traincope.analysis import Analysis, Estimate, RunEstimates
from traincope.analysis.attribution.terms import COMPUTE, sums_of_terms
from traincope.timeline import Timeline

LAYOUTS = {"ddp": 2, "fsdp": 3, "pipeline": 2}
"""Layout -> ranks."""
STEPS, DRAWS, HALVINGS, SEED = 640, 100, 2, 7
REQUIRED = 0.9
ROUNDING_NS = 1.0
"""The terms of a fully recorded run are whole ns."""
ROUNDING = 1e-9
"""Relative error of sums of floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Intervals of one term over all draws."""

    term: str
    truth_ratio: float
    stated: int
    contained: int
    mean_width: float

    @property
    def holds(self) -> bool:
        return self.contained >= REQUIRED * self.stated


def coverages(full: Timeline, *, draws: int = DRAWS, halvings: int = HALVINGS) -> Iterator[Coverage]:
    """Thin the run `draws` times, and compare each term's interval with its share in the full run."""
    analysis = traincope.analyze(full)
    ledger, path = analysis.ledger, analysis.critical_path
    assert path is not None
    shares = {term: share for term in ledger.order if (share := ledger.share(term)) is not None}
    shares |= {name: sum(shares[term] for term in terms) for name, terms in sums_of_terms(ledger.order).items()}
    shares |= {f"path: {term}": ns / path.wall_ns for term, ns in path.terms().items()}
    shares |= dict(_operation_truths(analysis)) | dict(_bubble_truths(analysis))
    shares |= dict(_rank_truths(analysis))
    stated: Mapping[str, list[Estimate]] = defaultdict(list)
    for draw in range(draws):
        thinned = traincope.analyze(thin(full, run_id=f"draw {draw}", halvings=halvings))
        run, thin_path = thinned.ledger.run, thinned.critical_path
        assert run is not None
        assert thin_path is not None
        assert thin_path.run is not None
        assert thin_path.run.wall_ns == path.wall_ns
        of_path = {f"path: {term}": estimate for term, estimate in thin_path.run.estimates.items()}
        assert sum(ns or 0 for ns in run.terms.values()) == run.wall_ns == ledger.wall_ns
        assert thinned.run_estimates is not None
        others = dict(_of_operations(thinned.run_estimates)) | dict(_of_bubble(thinned.run_estimates))
        others |= dict(_of_ranks(thinned.run_estimates))
        for term, estimate in (run.estimates | run.sums | of_path | others).items():
            if estimate.low is not None:
                stated[term].append(estimate)
    for term, share in shares.items():
        intervals = stated[term]
        slack = max(ROUNDING_NS / ledger.wall_ns, ROUNDING * share)
        yield Coverage(
            term=term,
            truth_ratio=share,
            stated=len(intervals),
            contained=sum((e.low or 0) - slack <= share <= (e.high or 0) + slack for e in intervals),
            mean_width=sum((e.high or 0) - (e.low or 0) for e in intervals) / max(len(intervals), 1),
        )


def _operation_truths(full: Analysis) -> Iterator[tuple[str, float]]:
    """Means per rank and step, and shares of step time, like `OperationEstimates`."""
    wall_ns, rank_steps = full.ledger.wall_ns, full.ledger.rank_steps
    for row in full.comm:
        name = f"{row.operation} on {row.axis}"
        yield f"{name}: count", row.count / rank_steps
        yield f"{name}: bytes", row.num_bytes / rank_steps
        yield f"{name}: transfer", row.transfer_ns / wall_ns
        yield f"{name}: wait", row.wait_ns / wall_ns
        yield f"{name}: exposed", row.exposed_ns / wall_ns


def _of_operations(run: RunEstimates) -> Iterator[tuple[str, Estimate]]:
    for (axis, operation), of in run.operations.items():
        name = f"{operation} on {axis}"
        yield from ((f"{name}: count", of.count), (f"{name}: bytes", of.num_bytes), (f"{name}: transfer", of.transfer))
        yield from ((f"{name}: wait", of.wait), (f"{name}: exposed", of.exposed))


def _bubble_truths(full: Analysis) -> Iterator[tuple[str, float]]:
    if full.bubble is not None:
        for part, ratio in (full.bubble.parts | {"bubble": full.bubble.fraction_ratio}).items():
            yield f"pipeline: {part}", ratio
        for stage in full.bubble.stages:
            parts = {"schedule": stage.schedule_ns, "imbalance": stage.imbalance_ns, "jitter": stage.jitter_ns}
            yield from ((f"stage {stage.stage}: {part}", ns / stage.wall_ns) for part, ns in parts.items())
            yield f"stage {stage.stage}: bubble", stage.fraction_ratio


def _of_bubble(run: RunEstimates) -> Iterator[tuple[str, Estimate]]:
    yield from ((f"pipeline: {part}", estimate) for part, estimate in run.bubble.items())
    for stage, parts in run.stages.items():
        yield from ((f"stage {stage}: {part}", estimate) for part, estimate in parts.items())


def _rank_truths(full: Analysis) -> Iterator[tuple[str, float]]:
    sums = sums_of_terms(full.ledger.order)
    exposed = [term for name, terms in sums.items() if name != "bubble" for term in terms]
    for rank in full.ledger.ranks:
        name, wall_ns = f"rank {rank.rank}", rank.total_wall_ns
        for part, terms in (("compute", COMPUTE), ("exposed", exposed), ("bubble", sums.get("bubble", ()))):
            yield f"{name}: {part}", sum(rank.total(term) or 0 for term in terms) / wall_ns


def _of_ranks(run: RunEstimates) -> Iterator[tuple[str, Estimate]]:
    for rank, of in run.ranks.items():
        yield from ((f"rank {rank}: compute", of.compute), (f"rank {rank}: exposed", of.exposed))
        yield f"rank {rank}: bubble", of.bubble


def recorded(layout: str, directory: Path) -> Timeline:
    pool = Pool(LAYOUTS[layout])
    try:
        pool.run(train, str(directory), layout, STEPS, SEED, timeout_seconds=600.0)
    finally:
        pool.stop()
    return traincope.open_run(directory)


def main(directory: Path) -> int:
    missed = 0
    print(f"{DRAWS} draws of one block in {2**HALVINGS}, {STEPS} steps")
    print(f"{'layout':10}{'term':34}{'full run':>10}{'stated':>8}{'contain':>9}{'mean width':>12}")
    for layout in LAYOUTS:
        where = directory / layout
        full = traincope.open_run(where) if where.exists() else recorded(layout, where)
        for row in coverages(full):
            missed += not row.holds
            ratios = f"{row.truth_ratio:10.2%}{row.stated:8}{row.contained:9}{row.mean_width:12.2%}"
            print(f"{layout:10}{row.term:34}{ratios}{'' if row.holds else '  missed'}", flush=True)
    print(f"{missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
