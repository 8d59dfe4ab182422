"""What tools of the training cost: by the lengths of the steps with and without them."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from tests.timeline.build import Row, phase, rank, run, step
from traincope.analysis import Finding, analyze
from traincope.analysis.ledger.debug_tools import debugged_ranks
from traincope.events import DEBUG_TOOL, DebugTool, Flag, Kind, Phase
from traincope.store import RankRecords
from traincope.timeline import Timeline, build_timeline

MS = 1_000_000
STEPS = 41
"""The first is not counted."""


def records(
    number: int,
    lengths: list[int],
    on: set[int],
    tool: DebugTool = DebugTool.PROFILER,
    *,
    stops: Collection[int] = (),
    stop: Phase = Phase.CHECKPOINT_STALL,
) -> RankRecords:
    """A rank with steps of these lengths; the tool is on in the steps `on`, and `stops` end with another phase."""
    rows, begin = [], 0
    for at, length in enumerate(lengths):
        end = begin + length * MS
        works_until = begin + 5 * MS if at in stops else end
        rows += [step(at, begin, end, flags=Flag.DEBUGGED if at in on else 0)]
        rows += [phase(Phase.FORWARD, begin, works_until, at=at)]
        rows += [phase(stop, works_until, end, at=at)] if at in stops else []
        begin = end
    if on:
        rows.append(replace(Row(kind=Kind.EVENT, start_ns=1, end_ns=1, name=DEBUG_TOOL, step=0), group=1))
    return replace(rank(number, *rows), details={1: {"of": tool.value}})


def found(timeline: Timeline) -> Finding | None:
    return next((each for each in analyze(timeline).verdict if each.kind == "debugging"), None)


def built(*ranks: RankRecords, world_size: int | None = None, **environment: str) -> Timeline:
    made = run(*ranks, world_size=world_size)
    return build_timeline(replace(made, info=replace(made.info, environment=environment)))


SOME = {at for at in range(STEPS) if at % 8 in {2, 3}}
"""Ten of the forty counted steps. Twenty are these or next to them."""
SLOW = {at for at in range(STEPS) if 1 <= at % 8 <= 4}


def test_the_cost_is_what_the_steps_with_a_tool_take_longer() -> None:
    timeline = built(*(records(number, [30 if at in SLOW else 10 for at in range(STEPS)], SOME) for number in (0, 1)))
    for each in debugged_ranks(timeline):
        assert (each.with_ns, each.without_ns, each.cost_ns, each.gain_ratio) == (30 * MS, 10 * MS, 10 * MS, 0.5)
    finding = found(timeline)
    assert finding is not None
    assert (finding.ranks, finding.estimated_gain_ratio, finding.confidence) == ((), 0.5, "medium")
    assert finding.evidence == (
        "torch's profiler is on in 10 of 40 steps: these and the steps next to them take 30.0 ms on average, the "
        "others 10.0 ms"
    )
    assert "schedule" in finding.advice


def test_a_tool_without_a_cost_is_no_finding() -> None:
    """The steps with it are as long as the others that vary."""
    lengths = [10 + at % 5 for at in range(STEPS)]
    timeline = built(records(0, lengths, SOME))
    assert [each.cost_ns for each in debugged_ranks(timeline)] == [0.0]
    assert found(timeline) is None


@pytest.mark.parametrize("stop", [Phase.CHECKPOINT_STALL, Phase.EVALUATION])
def test_a_tool_is_not_blamed_for_saves_and_evaluations_in_its_steps(stop: Phase) -> None:
    """Every eighth step is profiled, and every sixteenth saves on rank 0: rank 1 waits for that."""
    saving = {at for at in SOME if at % 16 == 3}
    lengths = [300 if at in saving else 10 + at % 3 for at in range(STEPS)]
    timeline = built(
        *(records(number, lengths, SOME, stops={0: saving}.get(number, set()), stop=stop) for number in (0, 1))
    )
    assert [each.cost_ns for each in debugged_ranks(timeline)] == [0.0, 0.0]
    assert found(timeline) is None


def test_a_tool_whose_steps_all_save_is_not_judged() -> None:
    lengths = [300 if at in SOME else 10 for at in range(STEPS)]
    beside = {at for at in range(STEPS) if {at - 1, at, at + 1} & SOME}
    timeline = built(records(0, lengths, SOME, stops=beside, stop=Phase.CHECKPOINT_STALL))
    assert debugged_ranks(timeline) == ()


def test_a_tool_that_is_always_on_comes_first_and_its_cost_is_unknown() -> None:
    everywhere = set(range(STEPS))
    timeline = built(*(records(at, [10] * STEPS, everywhere, DebugTool.ANOMALIES) for at in (0, 1)))
    first, *_ = analyze(timeline).verdict
    assert (first.kind, first.ranks, first.estimated_gain_ratio) == ("debugging", (), None)
    assert first.evidence == (
        "autograd's anomaly detection is on in 40 of 40 steps: too few steps are free of that to tell what it costs"
    )
    assert first.advice.startswith("Turn off detect_anomaly()")


def test_a_tool_of_one_rank_names_it() -> None:
    timeline = built(
        *(records(at, [30 if at in SLOW else 10 for at in range(STEPS)], SOME if at == 1 else set()) for at in (0, 1))
    )
    finding = found(timeline)
    assert finding is not None
    assert finding.ranks == (1,)


@pytest.mark.parametrize(
    ("name", "value", "on_gpus", "counts"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", False, True),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", False, True),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO", False, False),
        ("CUDA_LAUNCH_BLOCKING", "1", True, True),
        ("CUDA_LAUNCH_BLOCKING", "1", False, False),
        ("CUDA_LAUNCH_BLOCKING", "0", True, False),
    ],
)
def test_a_variable_that_slows_down_each_step_is_a_tool(name: str, value: str, on_gpus: bool, counts: bool) -> None:
    one = records(0, [10] * STEPS, set())
    one = replace(one, info=replace(one.info, device={"count": 1} if on_gpus else {}))
    finding = found(built(one, world_size=2, **{name: value}))
    assert (finding is not None) is counts
    if finding is not None:
        assert f"{name}={value.upper()} is on in 40 of 40 steps" in finding.evidence
        assert f"Unset {name}" in finding.advice


def test_checks_of_collectives_are_no_tool_of_a_rank_alone() -> None:
    assert found(built(records(0, [10] * STEPS, set()), TORCH_DISTRIBUTED_DEBUG="DETAIL")) is None
