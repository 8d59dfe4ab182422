"""Invariants of random programs, deadlocks, and the recorder's view of the device."""

from itertools import pairwise

import pytest
from hypothesis import given, settings

from tests.seeds import examples
from tests.virtual_gpu.actions import US, Clock, Group, Kind, Program, Synchronize, collective, kernel, sleep, step
from tests.virtual_gpu.device import VirtualDevice
from tests.virtual_gpu.machine import Deadlock, Gpu, execute
from tests.virtual_gpu.random_programs import programs
from tests.virtual_gpu.truth import truth
from traincope.record.gpu.device import Device


@settings(max_examples=examples(100))
@given(programs())
def test_terms_are_positive_and_sum_to_the_wall(program: Program) -> None:
    for steps in truth(program).values():
        for step_truth in steps.values():
            assert min(step_truth.terms.values(), default=1) > 0
            assert step_truth.evaluation_ns >= 0
            assert sum(step_truth.terms.values()) == step_truth.wall_ns


@settings(max_examples=examples(100))
@given(programs())
def test_works_run_in_the_order_of_their_stream_after_their_launch(program: Program) -> None:
    for record in execute(program):
        for stream in {ran.work.stream for ran in record.works}:
            inside = [ran for ran in record.works if ran.work.stream == stream]
            assert all(before.end_ns <= later.start_ns for before, later in pairwise(inside))
        assert all(ran.call.begin_ns < ran.start_ns < ran.end_ns for ran in record.works)


@settings(max_examples=examples(100))
@given(programs())
def test_the_members_of_a_collective_end_together_one_wire_time_after_the_last(program: Program) -> None:
    same_clock = Program(ranks=program.ranks, latency_ns=program.latency_ns)
    meetings: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for ran in (ran for record in execute(same_clock) for ran in record.works if ran.work.kind is Kind.COMMUNICATION):
        assert ran.work.group is not None
        times = (ran.start_ns, ran.end_ns, ran.work.duration_ns)
        meetings.setdefault((ran.work.group.name, ran.position), []).append(times)
    for members in meetings.values():
        starts, ends, wires = zip(*members, strict=True)
        assert set(ends) == {max(starts) + wires[0]}


def test_hosts_that_wait_for_each_other_are_a_deadlock() -> None:
    groups = [Group(name=str(number), ranks=(0, 1)) for number in range(2)]
    first, second = (collective(group, 5) for group in groups)
    with pytest.raises(Deadlock, match=r"2 hosts wait for work that never ends, on the devices of ranks \[0, 1\]"):
        execute(Program(ranks=((first, Synchronize(), second), (second, Synchronize(), first))))


def test_a_clock_gains_its_drift() -> None:
    (record,) = execute(
        Program(ranks=((step(1, sleep(1_000), kernel(10)),),), clocks=(Clock(offset_ns=7, drift_ppb=1_000),))
    )
    (ran,) = record.works
    assert (ran.call.begin_ns, ran.start_ns, ran.end_ns) == (7 + 1_000_001, 7 + 1_003_001, 7 + 1_013_001)


def test_events_of_the_device_happen_when_the_stream_reaches_them() -> None:
    """A kernel of 50 us on the compute stream, and a wait for one of 80 us on another."""
    now_ns = 0
    gpu = Gpu(latency_ns=3 * US)
    device: Device = VirtualDevice(gpu, lambda: now_ns, stream=7)
    gpu.launch(now_ns, 7, 50 * US)
    slow = gpu.launch(now_ns, 40, 80 * US)
    before, after = device.make_event(), device.make_event()
    before.record()
    gpu.wait(7, slow)
    after.record()
    anchor = device.make_anchor()
    happened = {}
    for now_ns in (0, 3 * US, 53 * US, 82 * US, 83 * US):
        happened[now_ns // US] = [event.query() for event in (anchor, before, after)]
    assert happened == {
        0: [False, False, False],
        3: [True, False, False],
        53: [True, True, False],
        82: [True, True, False],
        83: [True, True, True],
    }
    assert anchor.elapsed_time(before) == 0.05
    assert before.elapsed_time(after) == 0.03
