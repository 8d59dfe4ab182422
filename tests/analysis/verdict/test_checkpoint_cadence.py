"""The finding about the interval between checkpoints."""

from dataclasses import replace

import pytest

from traincope.analysis.reliability.cadence import Saves, cadence
from traincope.analysis.reliability.mtbf import mtbf
from traincope.analysis.reliability.reliability import Reliability
from traincope.analysis.verdict.checkpoint_cadence import checkpoint_cadence

S = 1_000_000_000
HOUR_NS = 3600 * S


def job(*, interruptions: int, every_seconds: float) -> Reliability:
    """1,000 hours, a save costs 40 s."""
    saves = Saves(
        count=100, stall_ns=30.0 * S, longest_ns=50 * S, background_ns=10.0 * S, interval_ns=every_seconds * S
    )
    between = mtbf(1000 * HOUR_NS, interruptions, running=True)
    return Reliability(
        elapsed_ns=1100 * HOUR_NS,
        running_ns=1000 * HOUR_NS,
        productive_ratio=None,
        reason="",
        interruptions=(),
        causes=(),
        badput=(),
        mtbf=between,
        rolling=(),
        saves=saves,
        cadence=cadence(saves, between, restart_ns=600.0 * S),
    )


def test_a_save_in_each_ten_hours_with_a_failure_in_each_ten_hours_is_rare() -> None:
    """MTBF 10 h, cost 40 s: sqrt(2 x 40 x 36,000) = 1,697 s; Daly's correction adds 13.4 s and takes the cost off."""
    (finding,) = checkpoint_cadence(job(interruptions=100, every_seconds=36_000))
    assert "after each 10 h 0 min of training loses an expected" in finding.evidence
    assert finding.advice.startswith("Save after each 27 min 50 s of training (Daly; ")
    found = job(interruptions=100, every_seconds=36_000).cadence
    assert found is not None
    assert found.best_ns / S == pytest.approx(1697 + 13.3 - 40, abs=0.5)
    assert found.lost_ratio == pytest.approx(
        1 - 1 / (2.718281828 ** (600 / 36_000) * (2.718281828**1.00111 - 1)), abs=1e-4
    )
    assert found.best_lost_ratio == pytest.approx(0.0624, abs=0.001)


def test_the_best_interval_gets_no_advice() -> None:
    best = job(interruptions=100, every_seconds=36_000).cadence
    assert best is not None
    assert not list(checkpoint_cadence(job(interruptions=100, every_seconds=best.best_ns / S)))
    assert not list(checkpoint_cadence(job(interruptions=100, every_seconds=0.8 * best.best_ns / S)))


def test_one_interruption_decides_only_what_holds_at_both_limits() -> None:
    """With one in 1,000 h the mean time lies between 179 h and 39,500 h: the best interval between 2 and 31 h."""
    unclear = job(interruptions=1, every_seconds=20 * 3600)
    assert unclear.cadence is not None
    assert unclear.cadence.best_low_ns < unclear.cadence.interval_ns < unclear.cadence.best_high_ns
    assert not unclear.cadence.certain
    assert not list(checkpoint_cadence(unclear))
    assert list(checkpoint_cadence(job(interruptions=1, every_seconds=60)))


def test_without_an_interruption_or_a_save_there_is_no_advice() -> None:
    assert job(interruptions=0, every_seconds=60).cadence is None
    assert not list(checkpoint_cadence(job(interruptions=0, every_seconds=60)))
    assert not list(checkpoint_cadence(replace(job(interruptions=1, every_seconds=60), saves=None, cadence=None)))
    assert not list(checkpoint_cadence(None))
