"""Gains of the verdict, compared with the same training without the cause."""

from pathlib import Path

import pytest

from evaluation.truth.trainings.gains import CURES, Cure
from evaluation.truth.trainings.on_paper import recorded
from evaluation.truth.trainings.playing import truth, wall_ns
from evaluation.truth.trainings.workloads import Workload
from tests.analysis.lockstep import ENOUGH, lockstep
from tests.analysis.windows import recorded as sampled
from tests.analysis.windows import thin
from tests.timeline.build import timeline
from traincope.analysis import Analysis, Finding, FindingKind, analyze, parse_changes, what_if
from traincope.analysis.replaying.prices import Gain, Prices
from traincope.analysis.replaying.replay import Factors
from traincope.analysis.verdict.findings import priced
from traincope.events import BLOCK_STEPS, Phase
from traincope.timeline import open_run

MS = 1_000_000
SAMPLES = Path(__file__).parents[3] / "sample_runs"


def found(analysis: Analysis, kind: str) -> Finding:
    return next(finding for finding in analysis.verdict if finding.kind == kind)


def step_ns(workload: Workload) -> int:
    return max(map(wall_ns, truth(workload)))


@pytest.mark.parametrize("cure", CURES, ids=lambda cure: cure.title)
def test_the_gain_is_that_of_the_training_without_the_cause(cure: Cure) -> None:
    training, cured = cure.on_paper
    finding = found(analyze(recorded(training, steps=ENOUGH + 1)), cure.kind)
    assert finding.estimated_gain_ratio == pytest.approx(1 - step_ns(cured) / step_ns(training), abs=1e-6)
    assert finding.gain_at_most == cure.at_most


def test_a_cause_in_single_steps_is_removed_in_these_steps() -> None:
    """Rank 0 saves for 100 in every fifth step of 70: 90 on average, and 70 without the saves."""
    work = [(160 * MS if at % 5 == 2 else 60 * MS, 60 * MS) for at in range(301)]
    finding = found(
        analyze(timeline(*lockstep(work, transfer_ns=10 * MS, of=Phase.CHECKPOINT_STALL))), FindingKind.STRAGGLER
    )
    assert finding.ranks == (0,)
    assert finding.estimated_gain_ratio == pytest.approx(1 - 70 / 90)


def test_two_stragglers_are_caught_up_together() -> None:
    """Ranks 1 and 3 work 90 and 80, the others 60; with a transfer of 10, 100 becomes 70."""
    ranks = lockstep([[60, 90, 60, 80, 60]] * ENOUGH, transfer_ns=10)
    named = analyze(timeline(*ranks)).stragglers.named
    assert [each.gain_ratio for each in named] == [pytest.approx(0.3), pytest.approx(0.3 * 20 / 30)]


def test_verdict_and_what_if_have_one_price() -> None:
    analysis = analyze(open_run(SAMPLES / "demo-3d"))
    for kind, expression in (("exposed_transfer", "tp.transfer=0"), ("exposed_wait", "tp.wait=0")):
        finding, prediction = found(analysis, kind), what_if(analysis, parse_changes(expression, analysis))
        assert finding.estimated_gain_ratio == pytest.approx(1 - prediction.ratio)
        assert finding.gain_at_most
        assert finding.advice.endswith(f"this saves at most {100 * (1 - prediction.ratio):.1f} % of step time.")


def test_waits_without_a_culprit_are_priced_as_a_bound() -> None:
    """One of two ranks works 90, the other 50, in turn: all steps take 91, and 51 if no rank came later."""
    analysis = analyze(timeline(*lockstep([[90, 90], *[[90, 50], [50, 90]] * 30], transfer_ns=1)))
    finding = found(analysis, FindingKind.EXPOSED_WAIT)
    assert finding.estimated_gain_ratio == pytest.approx(1 - 51 / 91)
    assert finding.advice.endswith("this saves at most 44.0 % of step time.")


@pytest.mark.parametrize("cure", CURES, ids=lambda cure: cure.title)
def test_without_a_replay_the_critical_path_gives_a_bound(cure: Cure) -> None:
    training, cured = cure.on_paper
    analysis = analyze(recorded(training, steps=4))
    prices = Prices(ledger=analysis.ledger, path=analysis.critical_path)
    gain = prices.gain(Factors(cure.removed), share=0.01)
    assert gain.at_most
    assert gain.ratio >= 1 - step_ns(cured) / step_ns(training) - 1e-6


def test_without_a_path_the_share_is_the_estimate() -> None:
    analysis = analyze(timeline(*lockstep([[60, 60]] * 3, transfer_ns=40)))
    gain = Prices(ledger=analysis.ledger).gain(Factors({(None, "exposed_transfer[dp]"): 0.0}), share=0.4, at_most=True)
    assert (gain.ratio, gain.at_most) == (0.4, False)


def test_a_gain_from_few_steps_with_detail_is_of_unknown_confidence() -> None:
    """Three of four windows are left out, so fewer than 24 steps remain."""
    steps = 8 * BLOCK_STEPS
    whole, few = analyze(sampled(steps=steps)), analyze(thin(sampled(steps=steps), run_id="a", halvings=2))
    assert found(whole, FindingKind.EXPOSED_TRANSFER).confidence == "medium"
    finding = found(few, FindingKind.EXPOSED_TRANSFER)
    assert (finding.confidence, finding.estimated_gain_ratio is None) == ("unknown", False)


def test_a_cause_that_is_shown_by_what_is_sent_keeps_its_confidence_without_a_gain() -> None:
    finding = Finding(kind=FindingKind.HOT_EXPERT, confidence="high", evidence="", advice="Even them.")
    unsure = Gain(ratio=0.4, confidence="unknown")
    assert priced(finding, unsure, shown=True) == finding
    assert priced(finding, unsure).confidence == "unknown"
    assert priced(finding, Gain(ratio=0.4), shown=True).estimated_gain_ratio == 0.4
