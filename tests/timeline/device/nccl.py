"""NCCL of a virtual GPU: it describes a recorded program's collectives to the plugin, by its C entry points.

The plugin is compiled with a clock that follows the virtual host. The GPU's global timer is a clock of its own, with
another begin and another rate. NCCL's thread on the host sees begins and ends some time later.
"""

import ctypes
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.native.nccl_profiler.driver import Channel, Communicator, Nccl, Truth
from tests.virtual_gpu.actions import Program, Work
from tests.virtual_gpu.machine import Call, Queued, execute
from traincope.native.build import compile_sources
from traincope.native.cached import Found
from traincope.native.installed import SOURCES
from traincope.native.nccl import NCCL_VARIABLE, PLUGIN_SOURCES, VARIABLE
from traincope.record.gpu import nccl as hook_module

CLOCK = Path(__file__).parents[2] / "native" / "nccl_profiler" / "virtual_clock.h"
FUNCTIONS = {"allreduce": "AllReduce", "allgather": "AllGather", "reduce_scatter": "ReduceScatter"}
MESSAGES = {"send": ("Send",), "recv": ("Recv",), "send_recv": ("Send", "Recv")}
OF_ONE_RANK = ("AllGather", "ReduceScatter")
NUM_BYTES = 64
POLL_NS = 7_000
"""Time after which NCCL's thread sees what the device did."""
ENQUEUE_NS = 500
"""From the launch of a kernel to its event, which comes after the launch."""
TIMER_EPOCH_NS, TIMER_PPM = 1_700_000_000_000_000_000, 20


def timer_ns(rank: int, at_ns: int) -> int:
    """Return the time of a rank's GPU by its global timer. Each runs 20 ppm faster than the one before."""
    return TIMER_EPOCH_NS + rank * 1_000_000_000 + at_ns + at_ns * rank * TIMER_PPM // 1_000_000


def compile_with_clock(out: Path) -> Path:
    """Compile the plugin with the virtual clock."""
    options = ("-shared", "-fvisibility=hidden", "-fno-strict-aliasing", f"-I{SOURCES}", "-include", str(CLOCK))
    compile_sources(PLUGIN_SOURCES / "plugin.cpp", out, *options)
    return out


@contextmanager
def plugin_with_clock(path: Path) -> Iterator[None]:
    """Let a run load this plugin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hook_module, "find_plugin", lambda: Found(path=path, why=""))
        patch.setenv(VARIABLE, "on")
        for name in (NCCL_VARIABLE, "NCCL_CONF_FILE", "NCCL_NET_PLUGIN", "LD_LIBRARY_PATH"):
            patch.delenv(name, raising=False)
        yield


def groups_of(program: Program) -> Mapping[str, tuple[int, ...]]:
    """Name of each group of a program -> its ranks."""
    works = (ran.work for record in execute(program) for ran in record.works)
    return {work.group.name: work.group.ranks for work in works if work.group is not None}


class VirtualNccl:
    """NCCL on one rank."""

    def __init__(self, rank: int, groups: Mapping[str, tuple[int, ...]], *, version: int = 6) -> None:
        self._rank, self._groups = rank, groups
        self._nccl = Nccl(version)
        self._clock = ctypes.c_int64.in_dll(self._nccl._library, "virtual_ns")
        self._communicators: dict[str, Communicator] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._launched: list[tuple[Queued, Communicator, Truth]] = []

    def launched(self, works: Sequence[tuple[Work, Queued, Call, int]], now_ns: int) -> None:
        """Enqueue the collectives of one launch. Their times need not be known yet."""
        self._clock.value = now_ns + ENQUEUE_NS
        for work, queued, *_ in works:
            for function in MESSAGES.get(work.operation, (FUNCTIONS.get(work.operation, ""),)):
                self._enqueue(work, queued, function)

    def _enqueue(self, work: Work, queued: Queued, function: str) -> None:
        assert work.group is not None
        name = work.group.name
        members, is_message = self._groups[name], work.operation in MESSAGES
        if name not in self._communicators:
            self._communicators[name] = Communicator(
                nccl=self._nccl, hash=zlib.crc32(name.encode()) << 16 | 5, num_ranks=len(members),
                rank=members.index(self._rank),
            )  # fmt: skip
        sequence, self._counts[name, function] = self._counts[name, function], self._counts[name, function] + 1
        truth = Truth(
            function=function, sequence=sequence, datatype="ncclInt8", channels=[(0, 0)] * 2, announced=2,
            count=NUM_BYTES // len(members) if function in OF_ONE_RANK else NUM_BYTES,
            peer=1 - members.index(self._rank) if is_message else 0, is_message=is_message,
        )  # fmt: skip
        self._communicators[name].enqueue(truth)
        self._launched.append((queued, self._communicators[name], truth))

    def finish(self, *, began_ns: int) -> None:
        """Let the thread see what the device did, in its order."""
        seen: list[tuple[int, int, int, Communicator, Truth]] = []
        for queued, communicator, truth in self._launched:
            start_ns, end_ns = queued.start_ns, queued.end_ns
            assert start_ns is not None
            assert end_ns is not None
            begin, end = timer_ns(self._rank, start_ns), timer_ns(self._rank, end_ns)
            truth.channels = [(begin + 1, end), (begin, end - 1)]
            seen += [(start_ns, 0, len(seen), communicator, truth), (end_ns, 1, len(seen), communicator, truth)]
        begun: dict[int, list[Channel]] = {}
        for at_ns, is_end, _, communicator, truth in sorted(seen, key=lambda each: each[:3]):
            self._clock.value = began_ns + at_ns + POLL_NS
            if is_end:
                communicator.end_channels(truth, begun[id(truth)])
            else:
                begun[id(truth)] = communicator.begin_channels(truth)
        for communicator in self._communicators.values():
            communicator.end()
