"""What `traincope diff` says, from a comparison whose numbers are written down here."""

import io
from dataclasses import replace

from rich.console import Console

from tests.report.example import MS, analysis
from traincope.analysis import Basis, Diff, Difference, Judgement, Moved
from traincope.report import diff_document, render_diff


def moved(term: str, before: float, after: float, *, p: float | None = 0.5, path: float | None = None) -> Moved:
    return Moved(term=term, before=before, after=after, p=p, path_change=path, rank=None, rank_change=None)


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
    block_steps=2,
    num_blocks=(20, 15),
    least_ratio=0.02,
    settings=(Difference(family="versions", name="torch", before="2.12.0", after="2.13.0"),),
    new_findings=(),
)


def shown(diff: Diff) -> str:
    console = Console(file=io.StringIO(), width=100, record=True)
    render_diff(diff, console)
    return console.export_text()


def test_the_answer_comes_first_then_what_moved_then_what_else_differs() -> None:
    assert shown(SLOWER) == (
        "A  demo: 2 ranks, 40 steps\n"
        "B  demo: 2 ranks, 30 steps\n"
        "\n"
        "VERDICT  B is slower by 20.0 %: forward\n"
        "    a step takes 120 ms instead of 100 ms (+18.0 ms to +22.0 ms with 95 %)\n"
        "    by chance as large a difference comes with p 0.0005; it counts up to 0.01\n"
        "    compared are 40 and 30 steps, 2 at a time, for they depend on each other\n"
        "\n"
        "WHAT MOVED  means over ranks, odd steps pulled in; * with evidence\n"
        "    term           A        B    change  of a step      path  most on rank\n"
        "  * forward  40.0 ms  60.0 ms  +20.0 ms     20.0 %  +40.0 ms   3: +39.0 ms\n"
        "    step      100 ms   120 ms  +20.0 ms     20.0 %  +20.5 ms\n"
        "    only one run can see: launch_gap\n"
        "\n"
        "WHAT ELSE DIFFERS\n"
        "    versions: torch  2.12.0 -> 2.13.0\n"
    )


def test_without_evidence_nothing_is_named_and_nothing_called_slower() -> None:
    same = replace(SLOWER, judgement=Judgement.NO_EVIDENCE, terms=(moved("forward", 40 * MS, 41 * MS),), settings=())
    text = shown(replace(same, step=moved("step", 100 * MS, 101 * MS), block_steps=1, interval=(-1.0 * MS, 3.0 * MS)))
    assert "VERDICT  no evidence that the runs differ\n" in text
    assert "(-1.00 ms to +3.00 ms with 95 %)" in text
    assert "comes with p 0.5; it counts up to 0.01\n" in text
    assert "WHAT ELSE DIFFERS  nothing that was recorded\n" in text
    assert "*" not in text.replace("* with evidence", "")


def test_shares_are_shown_as_shares_with_why() -> None:
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
    assert "the runs do other work in a step, so neither is called slower: forward\n" in text
    assert "what is compared is the share of a step, for the layouts differ\n" in text
    assert "* forward   40.0 %   50.0 %  +10.0 %" in text


def test_the_document_has_every_number() -> None:
    told = diff_document(SLOWER)
    assert told["judgement"] == "slower"
    assert (told["before"], told["after"]["blocks"]) == ({"id": "demo-7f3a", "ranks": 2, "steps": 40, "blocks": 20}, 15)
    assert told["step"]["change_ratio"] == 0.2
    assert told["movers"] == ["forward"]
    assert told["terms"][0] == {
        "term": "forward",
        "before": 40 * MS,
        "after": 60 * MS,
        "change": 20 * MS,
        "change_ratio": 0.2,
        "p": 0.001,
        "evident": True,
        "path_change": 40 * MS,
        "rank": 3,
        "rank_change": 39.0 * MS,
    }
    assert told["settings"] == [{"family": "versions", "name": "torch", "before": "2.12.0", "after": "2.13.0"}]
