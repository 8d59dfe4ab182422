"""A model of NCCL that drives the plugin: it loads it, and calls its functions as NCCL does, from the same threads.

The structures are written here a second time, from NCCL's headers (docs/reference/nccl-plugin.md names them). The truth
of each operation is what the model has said of it, and the instants between which it called.
"""

import ctypes
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, Structure, Union, c_char_p, c_int, c_size_t, c_uint8, c_uint64, c_void_p
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

import pytest

from traincope.native.cached import BUILD
from traincope.native.nccl import NCCL_VARIABLE, VARIABLE, find_plugin

GROUP, COLLECTIVE, MESSAGE, CHANNEL, GROUP_CALL, COLLECTIVE_CALL, MESSAGE_CALL = 1, 2, 4, 64, 256, 512, 1024
CHANNEL_STOPPED = 22
VERSIONS = (3, 4, 5, 6)

_found = find_plugin()
needs_plugin = pytest.mark.skipif(_found.path is None, reason=f"the plugin is not built ({BUILD})")


class _Collective3(Structure):
    _fields_ = (
        ("name", c_char_p), ("commHash", c_uint64), ("seqNumber", c_uint64), ("func", c_char_p),
        ("sendBuff", c_void_p), ("recvBuff", c_void_p), ("count", c_size_t), ("root", c_int), ("datatype", c_char_p),
        ("nMaxChannels", c_uint8), ("nWarps", c_uint8), ("algo", c_char_p), ("proto", c_char_p),
    )  # fmt: skip


class _Message3(Structure):
    _fields_ = (
        ("name", c_char_p), ("commHash", c_uint64), ("func", c_char_p), ("buff", c_void_p), ("datatype", c_char_p),
        ("count", c_size_t), ("peer", c_int),
    )  # fmt: skip


class _Channel3(Structure):
    _fields_ = (("channelId", c_uint8),)


class _Collective4(Structure):
    _fields_ = (
        ("seqNumber", c_uint64), ("func", c_char_p), ("sendBuff", c_void_p), ("recvBuff", c_void_p),
        ("count", c_size_t), ("root", c_int), ("datatype", c_char_p), ("nChannels", c_uint8), ("nWarps", c_uint8),
        ("algo", c_char_p), ("proto", c_char_p), ("parentGroup", c_void_p),
    )  # fmt: skip


class _Message4(Structure):
    _fields_ = (
        ("func", c_char_p), ("buff", c_void_p), ("datatype", c_char_p), ("count", c_size_t), ("peer", c_int),
        ("nChannels", c_uint8), ("parentGroup", c_void_p),
    )  # fmt: skip


class _Channel4(Structure):
    _fields_ = (("channelId", c_uint8), ("pTimer", c_uint64))


class _Of3(Union):
    _fields_ = (("coll", _Collective3), ("p2p", _Message3), ("kernelCh", _Channel3))


class _Of4(Union):
    _fields_ = (("coll", _Collective4), ("p2p", _Message4), ("kernelCh", _Channel4))


def _descriptor(type_of: type, of: type) -> type[Structure]:
    fields = (("type", type_of), ("parentObj", c_void_p), ("rank", c_int), ("of", of))
    return type("Descriptor", (Structure,), {"_fields_": fields})


DESCRIPTORS: dict[int, type[Structure]] = {
    3: _descriptor(c_uint8, _Of3),
    4: _descriptor(c_uint8, _Of4),
    5: _descriptor(c_uint64, _Of4),
    6: _descriptor(c_uint64, _Of4),
}
INITS = {
    3: ctypes.CFUNCTYPE(c_int, POINTER(c_void_p), POINTER(c_int)),
    4: ctypes.CFUNCTYPE(
        c_int, POINTER(c_void_p), POINTER(c_int), c_char_p, c_uint64, c_int, c_int, c_int, c_void_p
    ),
    5: ctypes.CFUNCTYPE(
        c_int, POINTER(c_void_p), c_uint64, POINTER(c_int), c_char_p, c_int, c_int, c_int, c_void_p
    ),
}  # fmt: skip
INITS[6] = INITS[5]


class _Functions(Structure):
    _fields_ = (
        ("name", c_char_p), ("init", c_void_p), ("startEvent", c_void_p), ("stopEvent", c_void_p),
        ("recordEventState", c_void_p), ("finalize", c_void_p),
    )  # fmt: skip


@dataclass(kw_only=True)
class Truth:
    """What the model said of an operation, and when it called: (before, after) in `monotonic_ns()`."""

    function: str
    sequence: int
    count: int
    peer: int
    datatype: str
    channels: list[tuple[int, int]]
    """Begin and end of each channel by the device's clock; the number of channels that run."""
    announced: int
    is_message: bool = False
    algorithm: str | None = None
    protocol: str | None = None
    handle: int | None = None
    called: tuple[int, int] = (0, 0)
    enqueued: tuple[int, int] = (0, 0)
    began: tuple[int, int] = (0, 0)
    ended: tuple[int, int] = (0, 0)


@dataclass
class Channel:
    handle: int | None
    stop: int


class Nccl:
    """NCCL with the newest version of the interface that this plugin and this NCCL share."""

    def __init__(self, version: int) -> None:
        """Load the plugin that the environment names."""
        self.version = version
        self._library = ctypes.CDLL(os.environ[NCCL_VARIABLE])
        functions = _Functions.in_dll(self._library, f"ncclProfiler_v{version}")
        self.name = functions.name.decode()
        self.init = INITS[version](functions.init)
        self.descriptor = DESCRIPTORS[version]
        self.start_event = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p), POINTER(self.descriptor))(
            functions.startEvent
        )
        self.stop_event = ctypes.CFUNCTYPE(c_int, c_void_p)(functions.stopEvent)
        self.record_state = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, POINTER(c_uint64))(functions.recordEventState)
        self.finalize = ctypes.CFUNCTYPE(c_int, c_void_p)(functions.finalize)


@dataclass(kw_only=True)
class Communicator:
    """One communicator of this process, as `ncclCommInitRank` makes it."""

    nccl: Nccl
    hash: int
    num_ranks: int
    rank: int
    num_nodes: int = 1
    mask: int = 0
    context: int | None = None
    truths: list[Truth] = field(default_factory=list)

    def __post_init__(self) -> None:
        context, mask, version = c_void_p(), c_int(), self.nccl.version
        if version == 3:
            arguments: tuple[Any, ...] = (context, mask)
        elif version == 4:
            arguments = (context, mask, b"name", self.hash, self.num_nodes, self.num_ranks, self.rank, None)
        else:
            arguments = (context, self.hash, mask, b"name", self.num_nodes, self.num_ranks, self.rank, None)
        assert self.nccl.init(*arguments) == 0
        self.context, self.mask = context.value, mask.value

    def event(self, kind: int, parent: int | None, fill: Callable[[Any], None] | None = None) -> int | None:
        """Start an event. Returns its handle, which the plugin always sets."""
        event: Any = self.nccl.descriptor(type=kind, parentObj=parent, rank=self.rank)
        if fill is not None:
            fill(event.of)
        handle = c_void_p(0xDEAD)
        assert self.nccl.start_event(self.context, handle, event) == 0
        assert handle.value != 0xDEAD
        return handle.value

    @contextmanager
    def group(self, call: int) -> Iterator[tuple[int | None, int | None]]:
        """Parents of a task: that of versions 3 and 4, and that of later ones."""
        calls = []
        if self.nccl.version >= 5:
            calls = [self.event(GROUP_CALL, None)]
            calls.append(self.event(call, calls[0]))
        plan = self.event(GROUP, None)
        yield plan, (calls[-1] if calls else plan)
        for handle in (plan, *reversed(calls)):
            self.stop(handle)

    def stop(self, handle: int | None) -> None:
        if handle is not None:
            assert self.nccl.stop_event(handle) == 0

    def start(self, truth: Truth, plan: int | None, parent: int | None) -> None:
        """Start the event of a task. In 2.26 and 2.27, NCCL starts none without a group."""
        assert plan is not None

        def fill(of: Any) -> None:
            target = of.p2p if truth.is_message else of.coll
            target.func, target.count, target.datatype = truth.function.encode(), truth.count, truth.datatype.encode()
            if self.nccl.version == 3:
                target.commHash = self.hash
            else:
                target.nChannels, target.parentGroup = truth.announced, plan
            if truth.is_message:
                target.peer = truth.peer
                return
            target.seqNumber, target.root = truth.sequence, truth.peer
            target.algo, target.proto = (text.encode() if text else None for text in (truth.algorithm, truth.protocol))
            if self.nccl.version == 3:
                target.nMaxChannels = 32

        before = monotonic_ns()
        truth.handle = self.event(MESSAGE if truth.is_message else COLLECTIVE, parent, fill)
        truth.called = before, monotonic_ns()
        self.truths.append(truth)

    def enqueue(self, truth: Truth, launch: Callable[[Truth], None] | None = None) -> None:
        """Start and stop the events of one call. `launch` gives its kernel to the device, before NCCL's own stop."""
        with self.group(MESSAGE_CALL if truth.is_message else COLLECTIVE_CALL) as (plan, parent):
            self.start(truth, plan, parent)
            if launch is not None:
                launch(truth)
            before = monotonic_ns()
            self.stop(truth.handle)
            truth.enqueued = before, monotonic_ns()

    def begin_channels(self, truth: Truth) -> list[Channel]:
        """What NCCL's progress thread does once it sees that channels have begun."""
        begun = []
        for number, (start, stop) in enumerate(truth.channels):

            def fill(of: Any, number: int = number, start: int = start) -> None:
                of.kernelCh.channelId = number
                if self.nccl.version > 3:
                    of.kernelCh.pTimer = start

            before = monotonic_ns()
            begun.append(Channel(self.event(CHANNEL, truth.handle, fill), stop))
            truth.began = truth.began if number else (before, monotonic_ns())
        return begun

    def end_channels(self, truth: Truth, begun: list[Channel]) -> None:
        for channel in begun:
            before = monotonic_ns()
            if channel.handle is not None:
                if self.nccl.version > 3:
                    self.nccl.record_state(channel.handle, CHANNEL_STOPPED, c_uint64(channel.stop))
                self.nccl.stop_event(channel.handle)
            truth.ended = before, monotonic_ns()

    def run_on_device(self, truth: Truth) -> None:
        self.end_channels(truth, self.begin_channels(truth))

    def end(self) -> None:
        assert self.nccl.finalize(self.context) == 0


class Progress:
    """NCCL's progress thread of one communicator: it tells the plugin what the device did."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._launched: queue.Queue[Truth | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def launch(self, truth: Truth) -> None:
        self._launched.put(truth)

    def _run(self) -> None:
        while (truth := self._launched.get()) is not None:
            begun = self._communicator.begin_channels(truth)
            self._communicator.end_channels(truth, begun[::-1])

    def join(self) -> None:
        self._launched.put(None)
        self._thread.join()


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for the plugin, on a machine without another one."""
    monkeypatch.setenv(VARIABLE, "on")
    for name in (NCCL_VARIABLE, "NCCL_CONF_FILE", "NCCL_NET_PLUGIN", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
