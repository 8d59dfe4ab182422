"""Device stalls against Kineto's trace and against NCCL's own timing of the same collectives."""

import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import traincope
from tests.gpu.figures import Figures
from tests.gpu.readers import (
    Stall,
    device_stalls,
    failed_hooks,
    flight_recorder_milliseconds,
    gaps_between_spins,
    only_rank,
)
from traincope.engine.ranks.renamed import gather_into

REPEATS = 8
SPIN_CYCLES = 20_000_000
"""About 10 ms: long enough that the host has queued all of a repeat before its collective can begin."""
WITHIN, FLOOR_US = 0.02, 20.0
ANCHORED_WITHIN_NS = 1_000_000


def a_few_gigabytes() -> int:
    """A size whose copy takes milliseconds on any GPU, so that an event's own microseconds are below 2 %."""
    return int(min(8 << 30, torch.cuda.get_device_properties(0).total_memory // 8))


def collect(*, asynchronous: bool) -> None:
    """On one rank an out-of-place all-gather is one copy: on NCCL's stream, or on the current one."""
    source = torch.empty(a_few_gigabytes(), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    for _ in range(REPEATS):
        torch.cuda._sleep(SPIN_CYCLES)
        work = gather_into(target, source, async_op=asynchronous)
        if asynchronous:
            work.wait()
        torch.cuda._sleep(SPIN_CYCLES // 10)
    torch.cuda.synchronize()


def recorded(directory: Path, *, asynchronous: bool) -> list[Stall]:
    with traincope.run(directory, budget=None) as run:
        run.step()
        collect(asynchronous=asynchronous)
        run.step()
        time.sleep(0.1)
    rank = only_rank(directory)
    assert failed_hooks(rank) == {}
    stalls = device_stalls(rank)
    assert [stall.name for stall in stalls] == ["all_gather"] * REPEATS
    return stalls


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize("asynchronous", [True, False], ids=["waited for", "synchronous"])
def test_a_stall_is_the_gap_that_the_trace_shows_on_the_compute_stream(
    tmp_path: Path, figures: Figures, asynchronous: bool
) -> None:
    """Two spin kernels enclose each collective on the compute stream, so the trace's gap between them is the truth.

    On whatever stream the copy runs, the second spin cannot begin before the copy is over. The bracket lies inside the
    gap: its first event follows the first spin, its last precedes the second. The first repeat warms up NCCL's
    communicator.
    """
    collect(asynchronous=asynchronous)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        stalls = recorded(tmp_path / "run", asynchronous=asynchronous)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    gaps = gaps_between_spins(tmp_path / "trace.json")
    errors = [abs(stall.microseconds - gap) / gap for stall, gap in zip(stalls, gaps, strict=True)]
    kind = "waited for" if asynchronous else "synchronous"
    figures.take(
        f"stall against Kineto's gap, all-gather {kind}, {gaps[-1] / 1e3:.2f} ms",
        measured=f"worst {max(errors[1:]):.2%}",
        held_to="2 %",
    )
    assert max(errors[1:]) <= WITHIN


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize("asynchronous", [True, False], ids=["waited for", "synchronous"])
def test_a_stall_lasts_as_long_as_the_collective_that_nccl_timed(
    tmp_path: Path, figures: Figures, asynchronous: bool
) -> None:
    """Nothing overlaps the collective, so the compute stream stalls for all of it.

    The flight recorder measures from NCCL's own start event to its end event.
    """
    collect(asynchronous=asynchronous)
    stalls = recorded(tmp_path / "run", asynchronous=asynchronous)
    timed = flight_recorder_milliseconds("all_gather", count=REPEATS)
    off = [abs(stall.microseconds - 1e3 * each) for stall, each in zip(stalls, timed, strict=True)]
    allowed = [max(WITHIN * 1e3 * each, FLOOR_US) for each in timed]
    figures.take(
        f"stall against the flight recorder, {'waited for' if asynchronous else 'synchronous'}, {timed[-1]:.2f} ms",
        measured=f"worst {max(off[1:]):.1f} us",
        held_to="2 % or 20 us",
    )
    assert all(error <= bound for error, bound in zip(off[1:], allowed[1:], strict=True))


@pytest.mark.usefixtures("nccl")
def test_device_times_are_on_the_hosts_clock(tmp_path: Path) -> None:
    """An anchor ties the clocks, with an error of at most a millisecond.

    No stall begins before its collective could be issued. None ends after a synchronisation that waited for it.
    """
    before = time.monotonic_ns()
    stalls = recorded(tmp_path / "run", asynchronous=True)
    after = time.monotonic_ns()
    assert before - ANCHORED_WITHIN_NS <= stalls[0].start_ns
    assert all(earlier.end_ns <= later.start_ns for earlier, later in pairwise(stalls))
    assert stalls[-1].end_ns <= after + ANCHORED_WITHIN_NS


@pytest.mark.usefixtures("nccl")
def test_a_side_stream_causes_a_stall_only_when_the_compute_stream_waits(tmp_path: Path) -> None:
    """A synchronous collective on a stream of its own, then an event, as in FSDP2.

    Only the compute stream's wait for that event is a stall. If the side stream's counted too, there would be two per
    round.
    """
    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    target, side = torch.empty_like(source), torch.cuda.Stream()
    with traincope.run(tmp_path / "run", budget=None) as run:
        torch.ones(1, device="cuda")
        run.step()
        for _ in range(REPEATS):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                gather_into(target, source)
                gathered = side.record_event()
            torch.cuda.current_stream().wait_event(gathered)
        torch.cuda.synchronize()
        time.sleep(0.1)
    rank = only_rank(tmp_path / "run")
    assert failed_hooks(rank) == {}
    assert [stall.name for stall in device_stalls(rank)] == ["all_gather"] * REPEATS


@pytest.mark.usefixtures("nccl")
def test_a_training_on_its_own_stream_has_stalls_from_the_second_step(tmp_path: Path) -> None:
    source = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    torch.cuda.synchronize()
    with traincope.run(tmp_path / "run", budget=None) as run, torch.cuda.stream(torch.cuda.Stream()):
        gather_into(target, source)
        run.step()
        for _ in range(REPEATS):
            gather_into(target, source)
        torch.cuda.synchronize()
        time.sleep(0.1)
    rank = only_rank(tmp_path / "run")
    assert failed_hooks(rank) == {}
    assert [stall.name for stall in device_stalls(rank)] == ["all_gather"] * REPEATS
