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
from traincope.analysis import Estimate
from traincope.analysis.attribution.terms import sums_of_terms
from traincope.timeline import Timeline

LAYOUTS = {"ddp": 2, "fsdp": 3, "pipeline": 2}
"""Layout -> ranks."""
STEPS, DRAWS, HALVINGS, SEED = 640, 100, 2, 7
REQUIRED = 0.9
ROUNDING_NS = 1.0
"""The terms of a fully recorded run are whole ns."""


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
        for term, estimate in (run.estimates | run.sums | of_path).items():
            if estimate.low is not None:
                stated[term].append(estimate)
    for term, share in shares.items():
        intervals = stated[term]
        slack = ROUNDING_NS / ledger.wall_ns
        yield Coverage(
            term=term,
            truth_ratio=share,
            stated=len(intervals),
            contained=sum((e.low or 0) - slack <= share <= (e.high or 0) + slack for e in intervals),
            mean_width=sum((e.high or 0) - (e.low or 0) for e in intervals) / max(len(intervals), 1),
        )


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
