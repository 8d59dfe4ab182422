"""Clocks of two hosts whose GPUs share collectives: known by NCCL's records, and by wall clocks alone without them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from tests.seeds import examples
from tests.timeline.device.nccl import POLL_NS, compile_with_clock, plugin_with_clock
from tests.timeline.device.recorded import padded, record
from tests.timeline.device.test_marked_programs import ANCHOR_NS, reductions
from tests.timeline.hosts import moved
from tests.virtual_gpu.actions import US, Program, after, collective, forward, kernel, same, step
from tests.virtual_gpu.programs import PROGRAMS, WORLD
from traincope.events import Flag, Kind
from traincope.native.build import find_compiler
from traincope.store import read_run
from traincope.timeline import ClockSource, Timeline, build_timeline
from traincope.timeline.collectives.proved import proved_collectives

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler is installed")

ON_GPUS = {"torch": "2.11.0", "cuda": "13.0", "nccl": "2.29.2"}
WALL_AHEAD_NS = 3_000_000
"""Error of the second host's wall clock."""
LAUNCH_NS = 3_000 + 4 * 1_000
"""From the call of a collective to the begin of its kernel on an idle GPU: its latency, and calls of 1 us before it."""


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with plugin_with_clock(compile_with_clock(tmp_path_factory.mktemp("plugin") / "plugin.so")):
        yield


def on_two_hosts(program: Program, folder: Path, *, nccl: int | None = 6) -> tuple[Timeline, Timeline]:
    """Record a program. Returns it with all ranks on one host, and with rank 1 on another host with wrong clocks."""
    run = read_run(record(padded(program), folder, nccl=nccl))
    run = replace(run, info=replace(run.info, versions=ON_GPUS))
    apart = moved(run, {1}, ahead_ns=7_000_000_000, drift=0.0, wall_ahead_ns=WALL_AHEAD_NS)
    return build_timeline(run), build_timeline(apart)


def since_first_ns(timeline: Timeline) -> NDArray[np.int64]:
    """Begins of rank 1's steps, from rank 0's first one on."""
    return np.array([step.start_ns for step in timeline.ranks[1].steps]) - timeline.ranks[0].steps[0].start_ns


def worst_error_ns(together: Timeline, apart: Timeline) -> int:
    """Largest error of the begins of rank 1's steps."""
    return int(np.abs(since_first_ns(together) - since_first_ns(apart)).max())


def bound_ns(apart: Timeline) -> int:
    """Largest bound at the begins of rank 1's steps."""
    bounds = apart.clocks[1].bounds_ns(np.array([step.start_ns for step in apart.ranks[1].steps]))
    assert bounds is not None
    return int(bounds.max())


@pytest.mark.parametrize(
    ("name", "wire_us", "ahead_us"),
    [("exposed collective", 20, 50), ("late peer", 20, 90), ("slow link", 200, 50)],
)
def test_the_bound_is_the_time_on_the_wire_and_how_early_and_late_hosts_see_it(
    name: str, wire_us: int, ahead_us: int, tmp_path: Path
) -> None:
    """`ahead_us`: from the call of the collective until the GPU of the last rank has computed what comes before it."""
    together, apart = on_two_hosts(PROGRAMS[name], tmp_path)
    assert apart.clocks[1].source is ClockSource.MESSAGES
    assert worst_error_ns(together, apart) <= bound_ns(apart) <= (wire_us + ahead_us) * US + POLL_NS + LAUNCH_NS


def test_without_records_of_nccl_wall_clocks_align_the_hosts(tmp_path: Path) -> None:
    together, apart = on_two_hosts(PROGRAMS["late peer"], tmp_path, nccl=None)
    assert (apart.clocks[1].source, apart.clocks[1].bound_ns) == (ClockSource.WALL_CLOCKS, None)
    assert worst_error_ns(together, apart) >= WALL_AHEAD_NS


def test_version_3_bounds_the_clocks_by_what_the_hosts_see(tmp_path: Path) -> None:
    together, apart = on_two_hosts(PROGRAMS["late peer"], tmp_path, nccl=3)
    assert worst_error_ns(together, apart) <= bound_ns(apart)


@settings(max_examples=examples(10))
@given(reductions())
def test_the_bound_holds_for_random_programs(program: Program) -> None:
    with TemporaryDirectory() as folder:
        together, apart = on_two_hosts(program, Path(folder))
    assert worst_error_ns(together, apart) <= bound_ns(apart)


def test_the_gpus_timer_proves_the_begin_of_a_kernel_long_after_its_call(tmp_path: Path) -> None:
    """The first collective is launched on an idle GPU, the second one 400 us before its GPU has computed."""
    reduced = collective(WORLD, 20), *after("reduced", stream=40, on=7), kernel(5)
    queued = kernel(400), *after("gradients", stream=7, on=40)
    program = Program(ranks=same(2, [step(1, forward(*reduced)), step(2, forward(*queued, *reduced))]))
    together, _ = on_two_hosts(program, tmp_path)
    for rank in proved_collectives(together).ranks:
        stalls = np.concatenate(
            [records[records["kind"] == Kind.STALL] for records in together.ranks[rank.rank].threads.values()]
        )
        begun_ns, ended_ns = stalls[stalls["flags"] & Flag.DEVICE > 0][-1][["start_ns", "end_ns"]].tolist()
        start_ns, end_ns = rank.main[-1][["start_ns", "end_ns"]].tolist()
        assert begun_ns - (20 * US + POLL_NS + LAUNCH_NS) <= start_ns <= begun_ns
        assert ended_ns <= end_ns <= ended_ns + POLL_NS + ANCHOR_NS
