"""The text of `traincope diff` for a comparison made by hand."""

import io
from dataclasses import replace

from rich.console import Console

from tests.report.example import MS, analysis
from traincope.analysis import Basis, Diff, Difference, Judgement, TermChange, diff
from traincope.report.text.diff import diff_document, render_diff
from traincope.timeline import LedgerClock


def moved(term: str, before: float, after: float, *, p: float | None = 0.5, path: float | None = None) -> TermChange:
    return TermChange(
        term=term,
        before=before,
        after=after,
        steps=(40, 30),
        p=p,
        steps_needed=50 if p is None else None,
        path_change=path,
        rank=None,
        rank_change=None,
    )


SLOWER = Diff(
    before=analysis(),
    after=analysis(),
    judgement=Judgement.SLOWER,
    basis=Basis.STEP,
    reason=None,
    step=moved("step", 100 * MS, 120 * MS, p=0.0005, path=20.5 * MS),
    interval=(18.0 * MS, 22.0 * MS),
    terms=(
        replace(moved("forward", 40 * MS, 60 * MS, p=0.001, path=40 * MS), rank=3, rank_change=39.0 * MS),
        moved("backward", 60 * MS, 60 * MS),
        moved("gc", 0, 0.1 * MS),
    ),
    unseen=("launch_gap",),
    num_steps=(40, 30),
    sampled_steps=None,
    threshold_ratio=0.02,
    settings=(Difference(family="versions", name="torch", before="2.12.0", after="2.13.0"),),
    new_findings=(),
)


def shown(diff: Diff) -> str:
    console = Console(file=io.StringIO(), width=100, record=True)
    render_diff(diff, console)
    return console.export_text()


def test_the_verdict_comes_first_then_changed_terms_then_other_differences() -> None:
    assert shown(SLOWER) == (
        "A  demo: 2 ranks, 40 steps\n"
        "B  demo: 2 ranks, 30 steps\n"
        "\n"
        "VERDICT  B is slower by 20.0 %: forward\n"
        "    mean step: 120 ms instead of 100 ms (95 % interval of the change: +18.0 ms to +22.0 ms)\n"
        "    probability of this difference by chance: p = 0.0005; evidence requires p <= 0.01\n"
        "    compared: 40 and 30 steps, each run in 10 blocks of consecutive steps\n"
        "\n"
        "WHAT CHANGED  means over ranks, outlier steps limited; * = evident change\n"
        "    term           A        B    change  of step  critical path  most on rank\n"
        "  * forward  40.0 ms  60.0 ms  +20.0 ms   20.0 %       +40.0 ms   3: +39.0 ms\n"
        "    step      100 ms   120 ms  +20.0 ms   20.0 %       +20.5 ms\n"
        "    measured in only one run: launch_gap\n"
        "\n"
        "WHAT ELSE DIFFERS\n"
        "    versions: torch  2.12.0 -> 2.13.0\n"
    )


def test_without_evidence_no_run_is_called_slower() -> None:
    same = replace(SLOWER, judgement=Judgement.NO_EVIDENCE, terms=(moved("forward", 40 * MS, 41 * MS),), settings=())
    text = shown(replace(same, step=moved("step", 100 * MS, 101 * MS), interval=(-1.0 * MS, 3.0 * MS)))
    assert "VERDICT  no evidence that the runs differ\n" in text
    assert "(95 % interval of the change: -1.00 ms to +3.00 ms)" in text
    assert "probability of this difference by chance: p = 0.5; evidence requires p <= 0.01\n" in text
    assert "WHAT ELSE DIFFERS  nothing in the records\n" in text
    assert "*" not in text.replace("* = evident change", "")


def test_what_is_not_tested_says_how_many_steps_a_test_needs() -> None:
    """A change from 10 to 56 ms is not called 'no evidence'."""
    moved_most = moved("step", 10 * MS, 56 * MS, p=None)
    few = replace(SLOWER, judgement=Judgement.NOT_TESTED, step=moved_most, interval=None)
    few = replace(few, terms=(moved("forward", 10 * MS, 56 * MS, p=None),))
    text = shown(few)
    assert "VERDICT  not tested whether the runs differ: about 50 steps per run are needed\n" in text
    assert "mean step: 56.0 ms instead of 10.0 ms\n" in text
    assert "? forward  10.0 ms  56.0 ms" in text
    assert "compared: 40 and 30 steps\n" in text
    assert "no evidence" not in text
    drifting = replace(SLOWER, terms=(moved("forward", 10 * MS, 56 * MS, p=None), SLOWER.terms[0]))
    assert "?: too few steps, or steps that drift; about 50 steps per run are needed\n" in shown(drifting)


def test_a_comparison_by_shares_has_its_reason() -> None:
    other = replace(
        SLOWER,
        judgement=Judgement.OTHER_WORK,
        basis=Basis.SHARE,
        reason="the layouts differ",
        step=moved("step", 1.0, 1.0),
        terms=(moved("forward", 0.4, 0.5, p=0.001),),
        interval=None,
    )
    text = shown(other)
    assert "the runs do different work per step, so neither is called slower: forward\n" in text
    assert "compared by share of a step, because the layouts differ\n" in text
    assert "* forward   40.0 %   50.0 %  +10.0 %" in text


def test_the_document_has_every_number() -> None:
    document = diff_document(SLOWER)
    assert document["judgement"] == "slower"
    assert document["before"] == {"id": "demo-7f3a", "ranks": 2, "steps": 40, "sampled_steps": None, "clock": "host"}
    assert document["step"]["change_ratio"] == 0.2
    assert document["movers"] == ["forward"]
    assert document["terms"][0] == {
        "term": "forward",
        "before": 40 * MS,
        "after": 60 * MS,
        "change": 20 * MS,
        "change_ratio": 0.2,
        "steps": [40, 30],
        "p": 0.001,
        "steps_needed": None,
        "evident": True,
        "path_change": 40 * MS,
        "rank": 3,
        "rank_change": 39.0 * MS,
    }
    assert document["settings"] == [{"family": "versions", "name": "torch", "before": "2.12.0", "after": "2.13.0"}]


def test_the_steps_behind_terms_are_printed_if_they_are_not_all() -> None:
    text = shown(replace(SLOWER, sampled_steps=(12, 9)))
    assert "compared: 40 and 30 steps, each run in 10 blocks of consecutive steps" in text
    assert "terms are from 12 and 9 steps in detail" in text
    assert diff_document(replace(SLOWER, sampled_steps=(12, 9)))["after"]["sampled_steps"] == 9
    assert "in detail" not in shown(SLOWER)


def test_terms_that_other_clocks_measured_are_not_compared() -> None:
    on_device = replace(SLOWER.after, ledger=replace(SLOWER.after.ledger, clock=LedgerClock.DEVICE))
    result = diff(SLOWER.before, on_device)
    assert (result.terms, result.unseen) == ((), ())
    assert "terms are not compared: A is measured by its hosts' clocks, B by marks on the GPUs' streams" in shown(
        result
    )
    assert diff_document(result)["after"]["clock"] == "marks on the GPUs' streams"
