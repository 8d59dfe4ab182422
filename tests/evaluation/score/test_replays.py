"""Healthy days raise no alarm, and a pause that is longer than allowed raises one."""

import random
from dataclasses import replace

import pytest

from evaluation.score.replays import KINDS, PAUSES_PER_DAY, Job, Pause, judged, replay
from traincope.analysis.faults.hangs.evidence.patience import FLOOR_NS, UNLEARNED_NS

S = 1_000_000_000
DAYS = 10
PAUSE = Pause(
    name="long document",
    kind=KINDS["long document"],
    at_ns=20_000 * S,
    length_ns=FLOOR_NS - 1,
    paused=(1,),
    stack=KINDS["long document"].stacks[0],
)


@pytest.mark.slow
def test_healthy_days_raise_no_alarm() -> None:
    """`python -m evaluation.score.replays` replays 1,000 of them, with new seeds."""
    days = [replay(random.Random(seed)) for seed in range(DAYS)]
    assert [alarm for day in days for alarm in day.alarms] == []
    assert sum(day.num_pauses for day in days) == DAYS * PAUSES_PER_DAY
    assert sum(day.num_judged for day in days) > DAYS


@pytest.mark.parametrize("detailed", [True, False])
@pytest.mark.parametrize(
    ("name", "allowed_ns"), [("long document", FLOOR_NS), ("checkpoint", UNLEARNED_NS), ("compilation", UNLEARNED_NS)]
)
def test_a_longer_pause_is_an_alarm(name: str, allowed_ns: int, detailed: bool) -> None:
    job = Job(size=2, step_ns=S // 2, detailed=detailed)
    pause = replace(PAUSE, name=name, kind=KINDS[name], length_ns=allowed_ns - 1)
    assert judged(job, pause).found == ()
    found = judged(job, replace(pause, length_ns=2 * allowed_ns)).found
    assert {hang.culprits for hang in found} == {(1,)}
