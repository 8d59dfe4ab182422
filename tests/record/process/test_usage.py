"""The kernel's counts of the training thread are recorded: its waits for a core, and its reads of pages."""

import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

import traincope
from traincope.events import Kind, Usage
from traincope.record.process.usage import read_usage, scheduled_ns
from traincope.record.session import recorder
from traincope.store import read_run

BUSY = "print(flush=True)\nwhile True: pass"
STEPS = 40


@pytest.fixture
def shared_core() -> Iterator[None]:
    """One core for this thread and for another process that is always busy."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as other:  # inherits the core
            assert other.stdout is not None
            other.stdout.readline()
            yield
            other.kill()
    finally:
        os.sched_setaffinity(0, before)


def busy_step() -> None:
    until = monotonic() + 0.01
    while monotonic() < until:
        pass


def recorded(run: Path, work: Callable[[], None]) -> dict[Usage, list[int]]:
    """Totals of a training that does `work` in every step."""
    with traincope.run(run, budget=None, agent=False) as training:
        for _ in range(STEPS):
            work()
            training.step()
    (rank,) = read_run(run).ranks
    assert rank.info.probes["usage"] == "on"
    main = rank.thread("main")
    read = main[main["kind"] == Kind.USAGE]
    return {usage: read["value"][read["name"] == rank.names.index(usage)].tolist() for usage in Usage}


def limits(run: Path) -> tuple[list[int], int]:
    (rank,) = read_run(run).ranks
    return rank.info.cpu_limits["allowed"], rank.info.cpu_limits["cores"]


@pytest.mark.usefixtures("shared_core")
def test_waits_for_a_core_are_those_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "CLOCK_INTERVAL_NS", 10_000_000)
    seen = [scheduled_ns()]

    def work() -> None:
        seen.append(scheduled_ns())
        busy_step()

    totals = recorded(tmp_path / "run", work)
    seen.append(scheduled_ns())
    for each, known in zip((Usage.CPU_TIME, Usage.CORE_WAIT), zip(*seen, strict=True), strict=True):
        assert len(totals[each]) > STEPS // 2
        assert totals[each] == sorted(totals[each])
        assert known[0] <= totals[each][0] < totals[each][-1] <= known[-1]
        in_steps = known[-2] - known[2]  # the start of a run may take longer than all its steps
        assert totals[each][-1] - totals[each][0] > in_steps / 2
    waits = totals[Usage.CORE_WAIT]
    assert waits[-1] - waits[0] > STEPS // 4 * 10_000_000, "the other process has half of the core"
    process, thread = (totals[each][-1] - totals[each][0] for each in (Usage.PROCESS_CPU_TIME, Usage.CPU_TIME))
    assert process >= 0.9 * thread


def test_the_cores_that_the_thread_may_use_are_recorded_if_it_binds_itself_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "CLOCK_INTERVAL_NS", 0)
    before = os.sched_getaffinity(0)
    try:
        with traincope.run(tmp_path / "run", budget=None, agent=False) as training:
            training.step()
            first, cores = limits(tmp_path / "run")
            os.sched_setaffinity(0, {min(before)})
            training.step()
            bound, _ = limits(tmp_path / "run")
    finally:
        os.sched_setaffinity(0, before)
    assert (first, bound, cores) == (sorted(before), [min(before)], os.cpu_count())


def test_pages_that_come_from_a_disk_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "CLOCK_INTERVAL_NS", 0)
    path = tmp_path / "pages"
    path.write_bytes(bytes(64 * mmap.PAGESIZE))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        os.fsync(file.fileno())
        pages.madvise(mmap.MADV_RANDOM)

        def read_back() -> None:
            pages.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert pages[0] == pages[32 * mmap.PAGESIZE] == 0

        before = read_usage()[Usage.MAJOR_FAULTS]
        read_back()
        if read_usage()[Usage.MAJOR_FAULTS] == before:
            pytest.skip("this file system keeps its pages in memory")
        faults = recorded(tmp_path / "run", read_back)[Usage.MAJOR_FAULTS]
    assert faults[-1] - faults[0] >= STEPS


def test_the_probe_says_why_it_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincope.record.process.usage.SCHEDULER", str(tmp_path / "none"))
    with traincope.run(tmp_path / "run", agent=False) as training:
        training.step()
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.info.probes["usage"].startswith("absent: FileNotFoundError")
