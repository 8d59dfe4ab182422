"""Causes of a late rank in their order: more work, what it waits for, where its Python stands, its host, its GPU."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.analysis.lockstep import ENOUGH, lockstep
from tests.timeline.build import Row, timeline
from traincope.analysis import Analysis, analyze
from traincope.analysis.faults.slow_code import Line, SampledWindow, SlowCode
from traincope.analysis.verdict.losses.late_causes import (
    BALANCE_ATTENTION,
    BALANCE_TOKENS,
    LACKS_CORE,
    OTHER_PROCESS,
    OWN_CODE,
    SLOW_CLOCKS,
    Evidence,
    late_cause,
)
from traincope.analysis.verdict.losses.slow_links import LinkFaults
from traincope.analysis.verdict.losses.straggler_findings import sampled_findings
from traincope.events import BUSY_THREAD, Kind, Phase, Usage, Work

MS = 1_000_000
STEP_NS = 91 * MS
SAVER = 1
"""Number of the details of an event."""
SAVES = {"thread": "saver", "runs": "Saver.merge", "of_ns": 1_000_000_000}


def counted(work: Mapping[Work, int]) -> list[Row]:
    """FLOPs of step 1."""
    at = 2 * STEP_NS - 1
    return [
        Row(kind=Kind.FLOPS, start_ns=at, end_ns=at, name="float32", phase=Phase.FORWARD, step=1, tag=kind, value=count)
        for kind, count in work.items()
    ]


def waiting_for_cores(per_step_ns: int) -> list[Row]:
    """Readings of a thread that runs equally long everywhere."""
    growth = {Usage.CORE_WAIT: per_step_ns, Usage.MAJOR_FAULTS: 0, Usage.CPU_TIME: 40 * MS}
    return [
        Row(kind=Kind.USAGE, start_ns=at, end_ns=at, name=name, value=each * (at // STEP_NS))
        for name, each in growth.items()
        for at in range(0, ENOUGH * STEP_NS, 10 * STEP_NS)
    ]


def late(
    *,
    own: Sequence[Row] = (),
    others: Sequence[Row] = (),
    of: Phase = Phase.FORWARD,
    saver_ms: int = 900,
    steps: int = ENOUGH,
) -> Analysis:
    """Rank 1 of 3 takes 90 instead of 60 ms. `saver_ms`: activity of another thread per second, where rows have it."""
    work = [[60 * MS, 90 * MS, 60 * MS]] * steps
    ranks = lockstep(work, transfer_ns=MS, of=of, also={0: others, 1: own, 2: others})
    ranks = [replace(each, details={SAVER: {**SAVES, "busy_ns": saver_ms * MS}}) for each in ranks]
    return analyze(timeline(*ranks))


def cause(
    analysis: Analysis, *, line: SlowCode | None = None, early: bool = False, clocks: str | None = None
) -> tuple[str, str]:
    """Evidence and advice for the only straggler."""
    (straggler,) = analysis.stragglers.named
    slow = () if line is None else (line,)
    window = SampledWindow(first_step=8, last_step=13, steps=6, ranks=(0, 1), slow=slow, early=early)
    evidence = Evidence(
        timeline=analysis.timeline,
        stragglers=analysis.stragglers,
        windows=(window,),
        clocks={} if clocks is None else {1: clocks},
        links=LinkFaults(analysis.timeline, ()),
    )
    found = late_cause(straggler, evidence)
    return found.evidence, found.advice


def slow_line(peers_ns: int) -> SlowCode:
    where = Line(site="train.py:31", function="Data.collate", called="time.sleep", module="", term="forward")
    return SlowCode(rank=1, line=where, ns=30 * MS, peers_ns=peers_ns)


def test_more_work_comes_before_the_host() -> None:
    more, usual = {Work.MATMUL: 3_000_000_000}, {Work.MATMUL: 2_000_000_000}
    analysis = late(own=[*counted(more), *waiting_for_cores(30 * MS)], others=[*counted(usual), *waiting_for_cores(MS)])
    evidence, advice = cause(analysis)
    assert evidence == "it has more work: 3.00 GFLOP a step, the others 2.00 GFLOP"
    assert advice == BALANCE_TOKENS
    (finding,) = (each for each in analysis.verdict if each.kind == "straggler")
    assert finding.evidence.endswith(evidence)
    assert "pidstat" not in finding.advice


@pytest.mark.parametrize(
    ("tokens", "evidence", "advice"),
    [(3, "1.50 times theirs", BALANCE_TOKENS), (2, "equal to theirs", BALANCE_ATTENTION)],
)
def test_the_tokens_decide_how_to_balance_it(tokens: int, evidence: str, advice: str) -> None:
    own = counted({Work.MATMUL: 3_000_000, Work.IMPLIED: tokens * 100_000})
    found = cause(late(own=own, others=counted({Work.MATMUL: 2_000_000, Work.IMPLIED: 200_000})))
    assert evidence in found[0]
    assert found[1] == advice


def test_a_rank_with_equal_work_may_lack_a_core() -> None:
    equal = counted({Work.MATMUL: 2_000_000})
    analysis = late(own=[*equal, *waiting_for_cores(30 * MS)], others=[*equal, *waiting_for_cores(MS)])
    evidence, advice = cause(analysis)
    assert evidence == "its thread waits 30.0 ms a step for a core, the others' 1.0 ms"
    assert advice.startswith(LACKS_CORE)


ON = [at for at in range(2 * ENOUGH) if at % 8 in {1, 2}]
BESIDE = [at for at in range(2 * ENOUGH) if at % 8 < 4]


def with_tool(*, on: Mapping[int, Sequence[int]], late_in: Collection[int], of: Phase = Phase.FORWARD) -> Analysis:
    """A tool is `on` in these steps of a rank. Rank 1 is late in some."""
    work = [[60 * MS, 90 * MS if at in late_in else 60 * MS, 60 * MS] for at in range(2 * ENOUGH)]
    return analyze(timeline(*lockstep(work, transfer_ns=MS, of=of, debugged=on)))


def test_a_tool_that_is_on_in_its_late_steps_is_the_cause() -> None:
    analysis = with_tool(on={1: ON}, late_in=BESIDE)
    evidence, advice = cause(analysis, line=slow_line(0))
    tool, shown = evidence.split("; ")[-2:]
    assert tool == (
        "a debugging tool is on in 30 of 119 steps: these and the steps next to them take 91.0 ms on average, the "
        "others 61.0 ms"
    )
    assert shown.startswith("its stacks show")
    assert advice != OWN_CODE
    assert all(finding.kind != "debugging" for finding in analysis.verdict)  # a second finding about the same


def test_a_tool_that_is_always_on_only_there_is_the_cause() -> None:
    evidence, _ = cause(with_tool(on={1: range(2 * ENOUGH)}, late_in=range(2 * ENOUGH)))
    assert "on in 119 of 119 steps" in evidence


def test_a_tool_of_unknown_cost_is_not_the_cause_of_saves_or_of_work_of_its_own() -> None:
    always = {1: range(2 * ENOUGH)}
    saves = cause(with_tool(on=always, late_in=range(2 * ENOUGH), of=Phase.CHECKPOINT_STALL))
    assert saves[0].startswith("it saves or loads checkpoints")
    works = with_tool(on=always, late_in=range(2 * ENOUGH))
    assert cause(works, line=slow_line(0))[1].startswith(OWN_CODE)
    assert "Turn it off" in cause(works, line=slow_line(20 * MS))[1]


@pytest.mark.parametrize(
    "on",
    [{1: [at + 4 for at in ON[:-2]]}, dict.fromkeys(range(3), ON)],
    ids=["it is late in the other steps", "all have it"],
)
def test_a_tool_that_does_not_explain_the_lateness_is_not_the_cause(on: Mapping[int, Sequence[int]]) -> None:
    evidence, _ = cause(with_tool(on=on, late_in=BESIDE))
    assert "debugging tool" not in evidence


def test_what_it_waits_for_comes_before_its_line_and_the_line_is_shown() -> None:
    evidence, advice = cause(late(of=Phase.DATA_WAIT, own=counted({Work.MATMUL: 9})), line=slow_line(0))
    assert evidence == (
        "it waits for its data; its stacks show 30.0 ms a step in time.sleep at train.py:31 (Data.collate), "
        "the others' 0.0 ms"
    )
    assert "DataLoader" in advice


def test_a_line_of_this_rank_alone_comes_before_the_host() -> None:
    starved = late(own=waiting_for_cores(30 * MS), others=waiting_for_cores(MS))
    evidence, advice = cause(starved, line=slow_line(0))
    assert (evidence.startswith("its stacks show 30.0 ms"), advice) == (True, OWN_CODE)
    evidence, advice = cause(starved, line=slow_line(20 * MS))
    assert "train.py:31" in evidence
    assert advice.startswith(LACKS_CORE)


@pytest.mark.parametrize(
    ("ns", "excess_ratio", "early", "is_cause"),
    [(7 * MS, 0.8, True, True), (7 * MS, 0.3, True, False), (5 * MS, 0.8, True, False), (7 * MS, 0.8, False, False)],
    ids=["grew since", "a part of it then", "too short", "not early"],
)
def test_a_line_of_the_first_steps_may_take_longer_since(
    ns: int, excess_ratio: float, early: bool, is_cause: bool
) -> None:
    """The rank is late by 30 ms on average."""
    line = replace(slow_line(0), ns=ns, excess_ratio=excess_ratio)
    assert (cause(late(), line=line, early=early)[1] == OWN_CODE) is is_cause


def beside_a_saver(*, cpu_ns: int) -> list[Row]:
    """Readings of a training thread that runs `cpu_ns` a step, while another thread computes."""
    usage = [row for row in waiting_for_cores(0) if row.name != Usage.CPU_TIME]
    runs = [
        Row(kind=Kind.USAGE, start_ns=at, end_ns=at, name=Usage.CPU_TIME, value=cpu_ns * (at // STEP_NS))
        for at in range(0, ENOUGH * STEP_NS, 10 * STEP_NS)
    ]
    return [*usage, *runs, Row(kind=Kind.EVENT, start_ns=MS, end_ns=MS, name=BUSY_THREAD, group=SAVER)]


def test_a_thread_that_holds_the_interpreter_is_named_before_the_line_at_which_its_rank_stands() -> None:
    """The rank is late by 30 ms and runs 3 ms longer than the others."""
    analysis = late(own=beside_a_saver(cpu_ns=43 * MS), others=waiting_for_cores(0))
    evidence, advice = cause(analysis, line=slow_line(0))
    assert evidence.startswith(
        "in 27.0 ms of that, its training thread neither runs nor waits for a core, while its thread saver "
        "(Saver.merge) runs or waits for a core 90.0 % of the time: in Python, only the thread that holds the GIL runs"
    )
    assert "train.py:31" in evidence
    assert advice == OTHER_PROCESS


def test_a_rank_that_few_steps_do_not_name_is_named_if_other_evidence_shows_its_cause() -> None:
    """45 steps are compared."""
    analysis = late(own=beside_a_saver(cpu_ns=43 * MS), others=waiting_for_cores(0), steps=46)
    assert analysis.stragglers.named == ()
    (finding,) = (each for each in analysis.verdict if each.kind == "straggler")
    assert (finding.ranks, finding.confidence) == ((1,), "medium")
    assert finding.evidence.startswith("rank 1 is late with 1 chance in 3,281 that it is noise, by 30.0 ms on average")
    assert "Saver.merge" in finding.evidence
    assert all(each.kind != "exposed_wait" for each in analysis.verdict)


def test_a_wait_of_its_own_is_no_such_evidence() -> None:
    analysis = late(of=Phase.DATA_WAIT, own=waiting_for_cores(30 * MS), others=waiting_for_cores(0), steps=46)
    assert all(each.kind != "straggler" for each in analysis.verdict)


def test_a_thread_that_all_ranks_have_does_not_stop_one_of_them() -> None:
    """As one that reads ahead. The late rank stands still for another reason."""
    reads = beside_a_saver(cpu_ns=43 * MS)
    assert "GIL" not in cause(late(own=reads, others=beside_a_saver(cpu_ns=40 * MS)))[0]


@pytest.mark.parametrize("cpu_ns", [60 * MS, 70 * MS])
def test_a_rank_that_runs_in_its_longer_time_is_not_stopped_by_another_thread(cpu_ns: int) -> None:
    analysis = late(own=beside_a_saver(cpu_ns=cpu_ns), others=waiting_for_cores(0))
    assert "GIL" not in cause(analysis)[0]


def test_a_rank_that_sleeps_beside_a_thread_with_little_work_is_not_stopped_by_it() -> None:
    """The thread is active for 18 ms of a step, and the rank stands still for 27 ms."""
    analysis = late(own=beside_a_saver(cpu_ns=43 * MS), others=waiting_for_cores(0), saver_ms=200)
    evidence, advice = cause(analysis, line=slow_line(0))
    assert "GIL" not in evidence
    assert advice == OWN_CODE


def test_slow_clocks_come_last() -> None:
    assert cause(late(), clocks="its GPU's clock is low") == ("its GPU's clock is low", SLOW_CLOCKS)
    starved = late(own=waiting_for_cores(30 * MS), others=waiting_for_cores(MS))
    assert cause(starved, clocks="its GPU's clock is low")[1].startswith(LACKS_CORE)


def test_without_a_cause_the_next_look_is_advised() -> None:
    evidence, advice = cause(late(of=Phase.NONE))
    assert evidence == "no probe covers what it does"
    assert advice.startswith("`traincope profile RUN --stacks 1 0` names the line while it trains.")


@pytest.mark.parametrize(("ns", "first_step", "named"), [(30, None, True), (14, None, False), (30, 40, False)])
def test_early_samples_explain_a_rank_that_was_late_then_by_as_much(
    ns: int, first_step: int | None, named: bool
) -> None:
    """Rank 1 is late by 30 ms."""
    analysis = late()
    (straggler,) = analysis.stragglers.named
    straggler = replace(straggler, pattern=replace(straggler.pattern, first_step=first_step))
    line = replace(slow_line(0), ns=ns * MS)
    window = SampledWindow(first_step=8, last_step=13, steps=6, ranks=(0, 1), slow=(line,), early=True)
    evidence = Evidence(
        timeline=analysis.timeline,
        stragglers=analysis.stragglers,
        windows=(window,),
        clocks={},
        links=LinkFaults(analysis.timeline, ()),
    )
    assert ("time.sleep at train.py:31" in late_cause(straggler, evidence).evidence) == named
    assert list(sampled_findings(evidence, analysis.ledger)) == []


@pytest.mark.parametrize(("work", "peers_ns", "ranks"), [(90, 0, [1]), (90, 20 * MS, []), (60, 0, [])])
def test_samples_name_a_rank_that_too_few_steps_with_detail_cannot_name(
    work: int, peers_ns: int, ranks: list[int]
) -> None:
    """16 steps of 91 ms. In the line, rank 1 takes 30 ms; its peers stand there too, or do not wait, in the others."""
    steps = [[60 * MS, work * MS, 60 * MS]] * 16
    analysis = analyze(timeline(*lockstep(steps, transfer_ns=91 * MS - work * MS)))
    assert analysis.stragglers.named == ()
    window = SampledWindow(first_step=8, last_step=13, steps=6, ranks=(0, 1), slow=(slow_line(peers_ns),))
    evidence = Evidence(
        timeline=analysis.timeline,
        stragglers=analysis.stragglers,
        windows=(window,),
        clocks={},
        links=LinkFaults(analysis.timeline, ()),
    )
    found = [finding for _, finding in sampled_findings(evidence, analysis.ledger)]
    assert [rank for finding in found for rank in finding.ranks] == ranks
    for finding in found:
        assert finding.estimated_gain_ratio == pytest.approx(30 / 91)
        assert finding.evidence.startswith(
            "in steps 8 to 13 the others wait for rank 1, which does work that they do not do: its stacks show 30.0 ms"
        )


def test_an_import_gets_no_advice_to_sample_it() -> None:
    """It does not train."""
    known = late(of=Phase.NONE).timeline
    imported = replace(known.run, info=replace(known.run.info, imported=True))
    _, advice = cause(analyze(replace(known, run=imported)))
    assert "traincope profile" not in advice
