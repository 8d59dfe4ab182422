"""The ledger over steps and over ranks, for the run of `tests.report.example`."""

from dataclasses import replace

import numpy as np
import pytest

from tests.report.example import MS, analysis
from traincope.analysis import Ledger, RankLedger
from traincope.figures.ranks.rank_shares import rank_shares
from traincope.figures.steps.ledger_steps import ledger_steps
from traincope.palette import colour

STAGES = {0: 0, 1: 1}


def long(steps: int) -> Ledger:
    """Two ranks; step n is n ms of forward on rank 0 and twice that on rank 1."""
    numbers = np.arange(steps)
    ranks = tuple(
        RankLedger(
            rank=rank,
            numbers=numbers,
            wall_ns=numbers * MS * (rank + 1),
            terms={"forward": numbers * MS * (rank + 1)},
            ambiguous_waits={},
            counted=np.ones(steps, dtype=bool),
            light=np.zeros(steps, dtype=bool),
            detailed=np.ones(steps, dtype=bool),
        )
        for rank in (0, 1)
    )
    return Ledger(ranks=ranks, order=("forward",), excluded_steps=())


def test_each_counted_step_is_the_mean_of_its_ranks() -> None:
    """Forward is 25 ms on rank 0 and 30 ms on rank 1; the warm-up step has no bar, and terms without time have no
    layer.
    """
    traces = {trace.name: trace for trace in ledger_steps(analysis().ledger).data}
    assert traces["forward"].x.tolist() == [1, 2, 3]
    assert traces["forward"].y.tolist() == [27.5] * 3
    assert traces["bubble.jitter"].y.tolist() == [-1.0] * 3
    assert "data_wait" not in traces
    assert "exposed_memory" not in traces
    assert traces["bubble.schedule"].marker.color == colour("bubble.schedule")


def test_thousands_of_steps_share_bars() -> None:
    """480 steps in 240 bars: steps 2k and 2k + 1, of ranks 1 x and 2 x: mean (4k + 1) x 1.5 / 2 ms."""
    (bar,) = ledger_steps(long(480)).data
    assert bar.x.tolist() == list(range(0, 480, 2))
    assert bar.y.tolist() == [(4 * k + 1) * 0.75 for k in range(240)]
    assert bar.customdata[1] == "steps 2-3"


def test_a_ranks_row_ends_at_its_total_time() -> None:
    figure = rank_shares(analysis().ledger, stages=STAGES)
    assert list(figure.layout.yaxis.ticktext) == ["stage 0, rank 0", "stage 1, rank 1"]
    shares = {trace.name: trace.x for trace in figure.data}
    assert shares["forward"] == pytest.approx((0.25, 0.30))
    assert shares["exposed_wait[fsdp]"] == pytest.approx((0.05, 0.0))
    assert [sum(values[row] for values in shares.values()) for row in (0, 1)] == pytest.approx([1.0, 1.0])


def test_a_thousand_ranks_are_sixty_four_rows() -> None:
    (rank, _) = long(3).ranks
    ledger = Ledger(ranks=tuple(replace(rank, rank=at) for at in range(1024)), order=("forward",), excluded_steps=())
    names = rank_shares(ledger, stages={}).layout.yaxis
    assert (len(names.ticktext), names.ticktext[0], names.ticktext[1]) == (16, "ranks 0-15", "ranks 64-79")
    assert list(names.range) == [63.5, -0.5]
