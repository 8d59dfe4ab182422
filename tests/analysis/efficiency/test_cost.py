"""Rank-hours and money of a ledger, computed by hand."""

import numpy as np
import pytest

from traincope.analysis import Ledger, RankLedger, cost

HOUR_NS = 3_600_000_000_000


def ledger() -> Ledger:
    """Two ranks, a warm-up step and one of 4 hours: 3 forward and 1 waiting, or all of it forward."""
    ranks = tuple(
        RankLedger(
            rank=rank,
            numbers=np.array([0, 1]),
            wall_ns=np.array([9, 4]) * HOUR_NS,
            terms={
                "forward": np.array([9, forward]) * HOUR_NS,
                "exposed_wait[fsdp]": np.array([0, 4 - forward]) * HOUR_NS,
                "launch_gap": None,
            },
            ambiguous_waits={},
            counted=np.array([False, True]),
            light=np.zeros(2, dtype=bool),
            detailed=np.array([False, True]),
        )
        for rank, forward in ((0, 3), (1, 4))
    )
    return Ledger(ranks=ranks, order=("forward", "exposed_wait[fsdp]", "launch_gap"), excluded_steps=(0,))


def test_hours_are_summed_over_ranks_and_terms_sum_to_the_wall_time() -> None:
    result = cost(ledger())
    assert result.hours == {"forward": 7.0, "exposed_wait[fsdp]": 1.0, "launch_gap": None}
    assert result.wall_hours == 8.0
    assert result.money is None
    assert result.wall_money is None


def test_a_price_converts_hours_to_money() -> None:
    result = cost(ledger(), price_per_gpu_hour=2.5)
    assert result.money == {"forward": 17.5, "exposed_wait[fsdp]": 2.5, "launch_gap": None}
    assert result.wall_money == pytest.approx(20.0)
