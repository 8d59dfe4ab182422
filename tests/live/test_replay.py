"""Metrics of a running job equal those of the replay of the finished run after every step."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.live.sample_table import sample_table
from tests.live.windows import MS, STEP_NS, ranks, records, scalar, window
from tests.timeline.build import Row as Record
from tests.timeline.build import action
from traincope.analysis import analyze
from traincope.analysis.ledger.coverage import ExcludedSteps
from traincope.events import Flag, Kind, Phase
from traincope.live.metrics.state import State, advance, begin
from traincope.live.window import Window
from traincope.metrics import catalogue
from traincope.metrics.sample import Distribution
from traincope.metrics.values import NODE_METRICS, ROW_METRICS, step_rows
from traincope.store import RankRecords, RunRecords
from traincope.timeline import build_timeline
from traincope_exporters.history import Series, history

NUM_STEPS = 4
COMPARED = {
    *(metric.name for metric in ROW_METRICS),
    *NODE_METRICS,
    catalogue.STRAGGLER_WAIT.name,
}

Values = Mapping[tuple[str, ...], object]


def more(at: int) -> list[Record]:
    """A module, two pipeline actions, the tokens of a step, and a value that only later steps log."""
    start = at * STEP_NS
    return [
        Record(
            kind=Kind.SPAN, start_ns=start + MS, end_ns=start + (5 + at) * MS, name="mlp", phase=Phase.FORWARD, step=at
        ),
        action("F", start + 5 * MS, start + 9 * MS, stage=0, microbatch=0, at=at),
        action("B", start + 75 * MS, start + (80 + at) * MS, stage=0, microbatch=0, at=at),
        scalar("step_tokens", 10.5 + at, start + 95 * MS, at=at),
        *([scalar("late", 1.5 * at, start + 96 * MS, at=at)] if at > 1 else []),
    ]


def recorded(num_steps: int, *, light: Collection[int]) -> RunRecords:
    """Steps without detail have neither collectives nor waits."""
    steps = range(num_steps)
    both = ranks(*steps, more=[record for step in steps for record in more(step)], level=2)
    return records([_with_detail(rank, light) for rank in both])


def _with_detail(rank: RankRecords, light: Collection[int]) -> RankRecords:
    (segment,) = rank.segments
    events = segment.records.copy()
    is_light = np.isin(events["step"], list(light))
    events["flags"][(events["kind"] == Kind.STEP) & ~is_light] |= np.uint16(Flag.DETAILED)
    kept = ~(is_light & np.isin(events["kind"], (Kind.COLLECTIVE, Kind.STALL)))
    return replace(rank, segments=(replace(segment, records=events[kept]),))


def windows(light: Collection[int]) -> Iterator[Window]:
    """Windows of one step each, reduced as by the agent."""
    for at in range(NUM_STEPS):
        run_records = recorded(at + 1, light=light)
        everything = window(run_records)
        unwatched = frozenset(light) & {at}
        excluded_steps = ExcludedSteps(warm_up=frozenset({0}), dropped=frozenset(range(at)), unwatched=unwatched)
        analysis = analyze(build_timeline(run_records), excluded_steps=excluded_steps)
        pairs = zip(analysis.ledger.ranks, analysis.timeline.ranks, strict=True)
        rows = tuple(row for pair in pairs for row in step_rows(*pair, light=unwatched, after=at - 1))
        yield replace(everything, analysis=analysis, rows=rows)


def states(light: Collection[int]) -> Iterator[State]:
    first, *others = windows(light)
    state = begin(first)
    yield state
    for next_window in others:
        state = advance(state, next_window)
        yield state


def live(state: State) -> Values:
    return {
        key: sample.value
        for key, sample in sample_table(state).samples.items()
        if key[0] in COMPARED and not is_zero(sample.value)
    }


def replayed(series: list[Series], *, at_ns: int) -> Values:
    values = {}
    for one_series in series:
        point = int(one_series.times_ns.searchsorted(at_ns, side="right")) - 1
        if one_series.metric.name in COMPARED and point >= 0:
            value: float | Distribution = one_series.values[point].item()
            if one_series.counts is not None:
                value = Distribution(
                    counts=tuple(one_series.counts[point].tolist()), sum=one_series.values[point].item()
                )
            values[one_series.metric.name, *one_series.labels[2:]] = value
    return {key: value for key, value in values.items() if not is_zero(value)}


def is_zero(value: float | Distribution) -> bool:
    """True for zero. A counter without counts may have no series yet."""
    return not (any(value.counts) if isinstance(value, Distribution) else value)


def numbers(values: Values) -> dict[tuple[str, ...], object]:
    return {
        key: (value.counts, pytest.approx(value.sum)) if isinstance(value, Distribution) else pytest.approx(value)
        for key, value in values.items()
    }


@pytest.mark.parametrize("light", [(), (2,)])
def test_a_job_and_its_replay_agree_on_every_metric_after_every_step(light: tuple[int, ...]) -> None:
    series = list(history(analyze(build_timeline(recorded(NUM_STEPS, light=light)))))
    for at, state in enumerate(states(light)):
        afterwards = replayed(series, at_ns=(at + 1) * STEP_NS)
        plain = {
            key: (value.counts, value.sum) if isinstance(value, Distribution) else value
            for key, value in live(state).items()
        }
        assert plain == numbers(afterwards), f"step {at}"
    names = {key[0] for key in live(state)}
    unknown = (
        catalogue.AMBIGUOUS_WAIT,
        catalogue.HFU,
        catalogue.MFU_PAPER,
        catalogue.BUBBLE_THEORY,
        catalogue.OWN_TIME,
        catalogue.RUN_AHEAD,
    )
    assert COMPARED - names == {metric.name for metric in unknown}, "not recorded or 0"
