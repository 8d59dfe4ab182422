"""python -m evaluation.truth.machines.clocks: true offsets of hosts' clocks, traincope's estimate, and its error bound.

200 simulated runs of 2 to 5 hosts (`hosts.py`). Each row is the host and time with the largest ratio of error to bound:
the offset of its wall clock from the first host's at the begin of the run, and the later drift of its monotonic clock.
An error above the bound is a failure.
"""

import sys
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from evaluation.truth.machines.hosts import Trial, make_trial
from traincope.timeline import RankClock, build_timeline

TRIALS = 200
INSTANTS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one host of a trial, at the time of its largest error relative to the bound."""

    host: int
    truth_ns: int
    measured_ns: int
    bound_ns: int | None
    """None: unknown."""

    @property
    def error_ns(self) -> int:
        return self.measured_ns - self.truth_ns

    @property
    def share(self) -> float:
        """Error divided by the bound."""
        return 0.0 if self.bound_ns is None else abs(self.error_ns) / self.bound_ns


def outcomes(trial: Trial) -> list[Outcome]:
    """One result per host, except the first, whose clock is the axis."""
    clocks = build_timeline(trial.run).clocks[:: trial.ranks_per_host]
    return [_outcome(trial, clocks, host) for host in range(1, len(trial.clocks))]


def _outcome(trial: Trial, clocks: tuple[RankClock, ...], host: int) -> Outcome:
    """Result of one host. The first host's wall clock is correct by definition, and its monotonic clock is the axis."""
    at = np.linspace(0, trial.length_ns, INSTANTS)
    local, first = trial.clocks[host].monotonic(at), trial.clocks[0].monotonic(at)
    wall = local + trial.clocks[host].wall_ns - trial.clocks[host].booted_ns
    truth, measured = clocks[0].on_axis(first) - wall, clocks[host].on_axis(local) - wall
    bounds = clocks[host].bounds_ns(measured + wall)
    if bounds is None:
        return Outcome(host=host, truth_ns=int(truth[0]), measured_ns=int(measured[0]), bound_ns=None)
    worst = int(np.argmax(np.abs(measured - truth) / bounds))
    return Outcome(host=host, truth_ns=int(truth[worst]), measured_ns=int(measured[worst]), bound_ns=int(bounds[worst]))


def main() -> int:
    rows = Table(title="Offset of clocks from the first host's: truth | measured | bound")
    for head in ("run", "hosts", "meet in", "drift ppm", "truth s", "measured s", "error us", "bound us"):
        rows.add_column(head, justify="left" if head == "meet in" else "right", no_wrap=True)
    shares, unknown = [], 0
    for seed in range(TRIALS):
        trial = make_trial(seed)
        results = outcomes(trial)
        unknown += sum(outcome.bound_ns is None for outcome in results)
        worst = max(results, key=lambda outcome: outcome.share)
        shares.append(worst.share)
        rows.add_row(*_cells(trial, worst))
    Console(width=120).print(rows)
    outside = sum(share > 1 for share in shares)
    print(
        f"{TRIALS} runs; the error took {max(shares):.0%} of the bound at most; {outside} outside it, {unknown} unknown"
    )
    return int(outside > 0 or unknown > 0)


def _cells(trial: Trial, worst: Outcome) -> tuple[str, ...]:
    drift = trial.clocks[0].drift - trial.clocks[worst.host].drift
    return (
        str(trial.seed),
        str(len(trial.clocks)),
        "messages" if trial.chain else "collectives",
        f"{1e6 * drift:.1f}",
        f"{worst.truth_ns / 1e9:.6f}",
        f"{worst.measured_ns / 1e9:.6f}",
        f"{worst.error_ns / 1e3:.1f}",
        "unknown" if worst.bound_ns is None else f"{worst.bound_ns / 1e3:.1f}",
    )


if __name__ == "__main__":
    sys.exit(main())
