"""Owners of the slices of the training thread."""

import numpy as np

from tests.timeline.build import Row, action, collective, group, phase, rank, stall, step, timeline
from traincope.analysis.attribution.thread_slices import slice_thread
from traincope.events import OPEN, Flag, Kind, Phase

NO_WINDOW = np.empty(0, dtype=np.int64)


def owned(*rows: Row, ending: str | None = "clean") -> list[tuple[int, int, str]]:
    """Return (start, end, term) of each slice, with touching slices of one term joined; "" for a stall."""
    fsdp = group("fsdp", 0, 1)
    slices = slice_thread(timeline(rank(0, *rows, groups=[fsdp], ending=ending)).ranks[0], window_ends=NO_WINDOW)
    joined: list[tuple[int, int, str]] = []
    for start, end, term in zip(slices.start_ns.tolist(), slices.end_ns.tolist(), slices.term, strict=True):
        if joined and joined[-1][1:] == (start, term):
            start = joined.pop()[0]
        joined.append((start, end, term))
    return joined


def test_the_innermost_open_interval_owns_the_time() -> None:
    assert owned(step(0, 0, 100), phase(Phase.FORWARD, 10, 60), phase(Phase.GC, 20, 30)) == [
        (0, 10, "unattributed"),
        (10, 20, "forward"),
        (20, 30, "gc"),
        (30, 60, "forward"),
        (60, 100, "unattributed"),
    ]


def test_the_later_of_two_overlapping_intervals_owns_the_time() -> None:
    assert owned(phase(Phase.FORWARD, 0, 50), phase(Phase.OPTIMIZER, 30, 80)) == [
        (0, 30, "forward"),
        (30, 80, "optimizer"),
    ]


def test_the_inner_of_two_intervals_with_one_begin_owns_the_time() -> None:
    assert owned(phase(Phase.BACKWARD, 0, 50), phase(Phase.RECOMPUTE, 0, 20)) == [
        (0, 20, "recompute"),
        (20, 50, "backward"),
    ]


def test_a_stall_owns_its_time_within_a_forward() -> None:
    gather = collective(15, 40)
    rows = (phase(Phase.FORWARD, 0, 50), gather, stall(gather, 20, 40))
    assert owned(*rows) == [(0, 20, "forward"), (20, 40, ""), (40, 50, "forward")]


def test_a_checkpoint_keeps_the_stalls_in_it() -> None:
    """Ranks that save a checkpoint wait for the slowest to write."""
    gather, later = collective(15, 40), collective(60, 80)
    rows = (phase(Phase.CHECKPOINT_STALL, 0, 50), gather, stall(gather, 20, 40), later, stall(later, 60, 80))
    assert owned(*rows) == [(0, 50, "checkpoint_stall"), (50, 60, "unattributed"), (60, 80, "")]


def test_pipeline_actions_are_forward_and_backward() -> None:
    rows = [action(kind, 10 * at, 10 * at + 10, stage=0, microbatch=0) for at, kind in enumerate("FBIW")]
    assert owned(*rows) == [(0, 10, "forward"), (10, 40, "backward")]


def test_spans_and_collectives_own_nothing() -> None:
    span = Row(kind=Kind.SPAN, start_ns=5, end_ns=15, name="mine")
    assert owned(phase(Phase.FORWARD, 0, 20), span, collective(7, 9)) == [(0, 20, "forward")]


def test_evaluation_owns_all_time_inside() -> None:
    gather = collective(30, 40)
    rows = (phase(Phase.EVALUATION, 10, 60), phase(Phase.FORWARD, 20, 50), gather, stall(gather, 30, 40))
    assert owned(step(0, 0, 70), *rows) == [(0, 10, "unattributed"), (10, 60, "evaluation"), (60, 70, "unattributed")]


def test_other_threads_own_nothing() -> None:
    background = phase(Phase.CHECKPOINT_STALL, 10, 20, thread="thread-7")
    assert owned(step(0, 0, 30), background) == [(0, 30, "unattributed")]


def test_records_of_a_device_own_no_host_time() -> None:
    on_device = collective(10, 20, flags=Flag.DEVICE)
    assert owned(step(0, 0, 30), stall(on_device, 10, 20)) == [(0, 30, "unattributed")]


def test_an_open_interval_lasts_to_the_ranks_last_instant() -> None:
    assert owned(phase(Phase.FORWARD, 0, OPEN), phase(Phase.GC, 20, 25), ending=None) == [
        (0, 20, "forward"),
        (20, 25, "gc"),
    ]


def test_an_interval_across_a_step_border_is_split_there() -> None:
    two_steps = rank(0, step(0, 0, 50), step(1, 50, 90), phase(Phase.FORWARD, 40, 60))
    slices = slice_thread(timeline(two_steps).ranks[0], window_ends=NO_WINDOW)
    forward = slices.term == "forward"
    assert slices.step[forward].tolist() == [0, 1]
    assert slices.duration_ns[forward].tolist() == [10, 10]


def test_time_between_steps_is_in_no_step() -> None:
    gap = rank(0, step(0, 10, 20), step(1, 30, 40), phase(Phase.FORWARD, 0, 50))
    slices = slice_thread(timeline(gap).ranks[0], window_ends=NO_WINDOW)
    assert slices.step.tolist() == [-1, 0, -1, 1, -1]


def test_a_slice_never_crosses_the_end_of_a_pipeline_window() -> None:
    slices = slice_thread(timeline(rank(0, step(0, 0, 100))).ranks[0], window_ends=np.array([70]))
    assert list(zip(slices.start_ns.tolist(), slices.end_ns.tolist(), strict=True)) == [(0, 70), (70, 100)]


def test_a_rank_without_records_has_no_slices() -> None:
    assert owned(phase(Phase.GC, 0, 5, thread="thread-7")) == []
