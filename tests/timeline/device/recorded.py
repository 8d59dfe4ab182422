"""Record a program of the virtual GPU with the recorder's own hooks, rank by rank.

The hosts perform the program's actions inside real calls of torch: modules, backward, optimizers, data loaders and
checkpoints. Only the device and the clocks are virtual. A rank is recorded alone: its collectives become works as long
as the machine computed them for all ranks together.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.utils.data import DataLoader, IterableDataset

from tests.timeline.device.nccl import VirtualNccl, groups_of
from tests.virtual_gpu.actions import (
    COMPUTE_STREAM,
    Action,
    Clock,
    Group,
    Launch,
    Meaning,
    OnThread,
    Program,
    Range,
    RecordEvent,
    WaitEvent,
    Work,
    kernel,
    sleep,
    step,
)
from tests.virtual_gpu.device import VirtualDevice
from tests.virtual_gpu.machine import Host, execute
from traincope.events import CLEAN, Flag, Kind
from traincope.record.communication import waits as waits_module
from traincope.record.communication.collectives import Collectives
from traincope.record.communication.groups import KnownGroup
from traincope.record.communication.meshes import Meshes
from traincope.record.communication.pending import Issued
from traincope.record.communication.waits import Waits
from traincope.record.compute import phases as phases_module
from traincope.record.compute.checkpoints import Checkpoints
from traincope.record.compute.data import DataLoading
from traincope.record.compute.phases import Phases
from traincope.record.compute.pipeline import PipelineActions
from traincope.record.gpu import device as devices
from traincope.record.gpu.nccl import NcclPlugin
from traincope.record.process.interruptions import GarbageCollection
from traincope.record.segments import slots as slots_module
from traincope.record.segments import writer as writer_module
from traincope.record.segments.slots import end
from traincope.record.session import recorder as recorder_module
from traincope.record.session import steps as steps_module
from traincope.record.session.identity import Identity
from traincope.record.session.recorder import Recorder
from traincope.timeline.device.actions import ANNOTATION

TAG = 3
"""Tag of all messages."""
OPERATIONS = {"allreduce": "all_reduce", "allgather": "all_gather", "reduce_scatter": "reduce_scatter"}
"""Operation of a work -> its name in the records."""
BEGAN_NS = 1_000_000_000
"""The monotonic clock of a host when its program begins."""
WARM_UP, LAST = 0, 99
"""Steps around those of a program: the recorder counts from 0, and the first is the warm-up. The last has no end."""
AFTER_NS = 1_000_000_000
"""From the end of the program to that of the run: the GPU has done all its work."""


def padded(program: Program, *, lead_us: int = 1) -> Program:
    """Put a warm-up step before each rank's actions, and a last one behind them. All ranks have one clock.

    `lead_us`: the work of the GPU in the warm-up step, by which its host gets ahead.
    """
    around = step(WARM_UP, kernel(lead_us), sleep(1)), step(LAST, kernel(1))
    ranks = tuple((around[0], *actions, around[1]) for actions in program.ranks)
    return replace(program, ranks=ranks, clocks=(Clock(),), untraced=frozenset())


def alone(program: Program, rank: int) -> Program:
    """Return the program of one rank whose collectives last as long as with all ranks."""
    (record,) = (each for each in execute(program) if each.rank == rank)
    lengths = {
        (ran.work.group.name, ran.position): ran.end_ns - ran.start_ns
        for ran in record.works
        if ran.work.group is not None
    }
    positions: dict[str, int] = {}

    def resolved(action: Action) -> Action:
        if isinstance(action, (Range, OnThread)):
            return replace(action, body=tuple(map(resolved, action.body)))
        if isinstance(action, Launch):
            return replace(action, works=tuple(map(fixed, action.works)))
        return action

    def fixed(work: Work) -> Work:
        if work.group is None:
            return work
        position = positions[work.group.name] = positions.get(work.group.name, -1) + 1
        return replace(work, group=replace(work.group, ranks=(rank,)), duration_ns=lengths[work.group.name, position])

    return replace(program, ranks=(tuple(map(resolved, program.ranks[rank])),))


class HostClock:
    """The monotonic clock of the host under way. A poll of the device's thread, at the end of a run, advances it."""

    def __init__(self) -> None:
        self.host: _RecordedHost | None = None
        self.polling = False

    def monotonic_ns(self) -> int:
        if self.host is None:
            return BEGAN_NS
        self.host.now_ns += self.polling
        return BEGAN_NS + self.host.now_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hooks:
    phases: Phases
    waits: Waits
    collector: GarbageCollection


class _RecordedHost(Host):
    """A host that performs the ranges of its program inside the calls that the recorder hooks."""

    def __init__(
        self,
        program: Program,
        recorder: Recorder,
        hooks: _Hooks,
        clock: HostClock,
        *,
        rank: int,
        num_ranks: int,
        groups: Mapping[str, tuple[int, ...]],
        nccl: VirtualNccl | None,
    ) -> None:
        super().__init__(0, program, {})
        self._real_rank, self._num_ranks, self._members, self._nccl = rank, num_ranks, groups, nccl
        self._recorder, self._hooks, self._clock = recorder, hooks, clock
        self._groups: dict[str, KnownGroup] = {}
        self._issued: dict[int, Issued] = {}
        """Stream -> its newest collective."""
        self._followed: dict[str, Issued] = {}
        """Event -> the collective whose end it follows."""
        self._model, self._weight = _Model(), torch.zeros(2, requires_grad=True)
        self._collecting = False

    def play(self, body: tuple[Action, ...], thread: str) -> None:
        for _ in self.perform(body, thread):
            raise AssertionError("the host of a single rank never waits for another")

    def perform(self, actions: tuple[Action, ...], thread: str = "main") -> Iterator[None]:
        for action in actions:
            match action:
                case OnThread(thread=other, body=body):
                    _Calling.apply(self._weight, lambda body=body, other=other: self.play(body, other)).sum().backward()  # type: ignore[no-untyped-call]
                case RecordEvent(event=name, stream=stream):
                    self._followed.pop(name, None)
                    if stream in self._issued:
                        self._followed[name] = self._issued[stream]
                    yield from super().perform((action,), thread)
                case WaitEvent(event=name, stream=stream) if stream == COMPUTE_STREAM and name in self._followed:
                    assert self._hooks.waits.device is not None
                    before = self._hooks.waits.device.mark()
                    yield from super().perform((action,), thread)
                    self._hooks.waits.device.close(before, self._followed.pop(name))
                case _:
                    yield from super().perform((action,), thread)

    def _range(self, action: Range, thread: str) -> Iterator[None]:
        """Perform a range within the call that means the same."""
        if action.meaning is Meaning.STEP:
            self._recorder.steps.mark()
            self._recorder.tick()
        if action.meaning is Meaning.ACTION:
            self._act(action, thread)
            return
        around = self._calls().get(action.meaning, _plainly)
        if action.meaning is Meaning.OPTIMIZER and "zero_grad" in action.name:
            around = _zero_gradients
        if action.collective is not None and ">" in _group_of(action.collective).name:
            self._send(action.collective)
        elif action.collective is not None:
            self._issue(action.collective)
        around(lambda: self.play_range(action, thread))
        yield from ()

    def _launch(self, action: Launch, thread: str) -> Iterator[None]:
        yield from super()._launch(action, thread)
        launched = self.launched[len(self.launched) - len(action.works) :]
        if self._nccl is not None and any(work.group is not None for work, *_ in launched):
            self._nccl.launched([each for each in launched if each[0].group is not None], BEGAN_NS + self.now_ns)

    def _act(self, action: Range, thread: str) -> None:
        """Call what torch's schedules call. What follows the first part of a last stage's forward is its loss."""
        kind, stage, microbatch = parsed(action.name)
        first, loss = action.body[:1], action.body[1:]
        called = SimpleNamespace(
            stage_index=stage,
            is_last=bool(loss),
            act=lambda: self.play(first, thread),
            loss=lambda: self.play(loss, thread),
        )
        if kind == "W":
            _PipelineStageBase.backward_weight_one_chunk(called, microbatch)
        elif kind == "F":
            _PipelineStageBase.forward_one_chunk(called, microbatch)
            schedules._PipelineSchedule._maybe_compute_loss(SimpleNamespace(), called, None, None, microbatch)
        else:
            _PipelineStageBase.backward_one_chunk(called, microbatch, None, kind == "B")

    def play_range(self, action: Range, thread: str) -> None:
        for _ in super()._range(action, thread):
            raise AssertionError("the host of a single rank never waits for another")

    def _calls(self) -> Mapping[Meaning | None, Callable[[Callable[[], None]], Any]]:
        return {
            Meaning.FORWARD: self._model,
            Meaning.RECOMPUTE: self._model,
            Meaning.OPTIMIZER: lambda body: _Optimizer([torch.zeros(2)]).step(body),
            Meaning.EVALUATION: self._evaluate,
            Meaning.DATA_WAIT: lambda body: next(iter(DataLoader(_Batches(body), batch_size=None))),
            Meaning.CHECKPOINT_STALL: lambda body: torch.save(_Saved(body), io.BytesIO()),
            Meaning.GC: self._collect,
        }

    def _evaluate(self, body: Callable[[], None]) -> None:
        self._model.eval()
        with torch.no_grad():
            self._model(body)
        self._model.train()

    def _collect(self, body: Callable[[], None]) -> None:
        """Python collects no garbage while it does so."""
        outer, self._collecting = self._collecting, True
        if not outer:
            self._hooks.collector._callback("start", {})
        body()
        if not outer:
            self._hooks.collector._callback("stop", {})
        self._collecting = outer

    def _issue(self, work: Work) -> None:
        """Begin the record of a collective, as the hook on c10d does."""
        group = _group_of(work)
        known = self._known(group.name, group.axis, self._members[group.name])
        name = self._recorder.names.intern(OPERATIONS.get(work.operation, work.operation))
        self._issued[work.stream] = self._begin_issued((name, known.number, known.count, -1, 0, 64, 0, 0), known)
        known.count += 1

    def _send(self, work: Work) -> None:
        """Begin the records of a message, or of a batch of a send and a receive."""
        ranks = _group_of(work).ranks
        (peer,) = (rank for rank in ranks if rank != self._real_rank)
        known = self._known("pp", "pp", tuple(range(self._num_ranks)))
        batch = []
        for operation in ("send", "recv") if work.operation == "send_recv" else (work.operation,):
            name, sequence = self._recorder.names.intern(operation), known.next_sequence(operation, peer, TAG)
            fields = (name, known.number, sequence, peer, TAG, 64, int(Flag.POINT_TO_POINT), 0)
            batch.append(self._begin_issued(fields, known))
        first = self._issued[work.stream] = batch[0]
        first.batch = tuple(batch[1:])

    def _begin_issued(self, fields: tuple[int, int, int, int, int, int, int, int], known: KnownGroup) -> Issued:
        slot = self._recorder.main.begin_collective(Kind.COLLECTIVE, fields)
        end(slot)
        issued = Issued(slot, fields, known, True)
        assert self._hooks.waits.device is not None
        self._hooks.waits.device.issue(issued)
        return issued

    def _known(self, key: str, axis: str, ranks: tuple[int, ...]) -> KnownGroup:
        if key not in self._groups:
            self._groups[key] = KnownGroup(
                number=self._recorder.add_group(key=key, axis=axis, rule="mesh", ranks=ranks),
                key=key,
                axis=axis,
                reference=lambda: None,  # type: ignore[arg-type]
                rule="mesh",
                ranks=ranks,
            )
        return self._groups[key]


def parsed(name: str) -> tuple[str, int, int]:
    """Return kind, stage and microbatch of an action's range."""
    match = ANNOTATION.fullmatch(name)
    assert match is not None
    return match[2], int(match[1]), int(match[3])


def _group_of(work: Work) -> Group:
    assert work.group is not None
    return work.group


def _plainly(body: Callable[[], None]) -> None:
    body()


def _zero_gradients(body: Callable[[], None]) -> None:
    """Zero the gradients of parameters whose listing takes as long as a function."""
    optimizer = _Optimizer([torch.zeros(2)])
    optimizer.param_groups = [{"params": _Listed(body)}]
    optimizer.zero_grad()


class _Calling(torch.autograd.Function):
    """Call a function in backward."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, body: Callable[[], None]) -> torch.Tensor:
        ctx.body = body
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.body()
        return gradients[0], None


class _Model(torch.nn.Module):
    def forward(self, body: Callable[[], None]) -> None:
        body()


class _Optimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        closure()


class _Listed:
    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._body()
        return iter(())


class _Batches(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body

    def __iter__(self) -> Iterator[int]:
        self._body()
        yield 0


class _Saved:
    """An object whose saving takes as long as a function."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        self._body()
        return int, ()


@contextmanager
def virtual_hosts() -> Iterator[HostClock]:
    """Let the recorder read the clock of virtual hosts."""
    clock = HostClock()
    modules = devices, phases_module, slots_module, writer_module, recorder_module, steps_module, waits_module
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "monotonic_ns", clock.monotonic_ns)
        patch.setattr(devices, "POLL_SECONDS", 3600.0)
        patch.setattr(devices, "STOP_SECONDS", 60.0)
        patch.setattr(torch.backends.cuda, "is_built", lambda: True)
        for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
            patch.setattr(_PipelineStageBase, name, lambda stage, *_, **__: stage.act())
        patch.setattr(schedules._PipelineSchedule, "_maybe_compute_loss", lambda _, stage, *__: stage.loss())
        patch.setattr(waits_module, "CudaDevice", lambda: _Current(clock))
        yield clock


class _Current(VirtualDevice):
    """The device of the host under way."""

    def __init__(self, clock: HostClock) -> None:
        assert clock.host is not None
        host = clock.host
        super().__init__(host.gpu, lambda: host.now_ns, stream=COMPUTE_STREAM)


def record(program: Program, folder: Path, *, nccl: int | None = None) -> Path:
    """Record every rank of a padded program. Returns the run directory.

    `nccl`: version of NCCL's interface by which the plugin that `plugin_with_clock` names records too.
    """
    with virtual_hosts() as clock:
        for rank in range(len(program.ranks)):
            _record_rank(program, rank, clock, folder, nccl=nccl)
    return folder / "run"


def _record_rank(whole: Program, rank: int, clock: HostClock, folder: Path, *, nccl: int | None) -> None:
    program, ranks, groups = alone(whole, rank), len(whole.ranks), groups_of(whole)
    clock.host, clock.polling = None, False
    identity = Identity(rank=rank, world_size=ranks, run_id="test", restarts=0)
    recorder = Recorder(folder / "run", root=folder, identity=identity, disk_budget_bytes=1 << 22)
    recorder.detailed = True
    recorder.between_detailed_steps(lambda: recorder.steps.is_detailed(requested=False))
    phases, collector = Phases(), GarbageCollection()
    waits = Waits(Collectives(Meshes()), phases)
    installed = (waits, phases, PipelineActions(phases), DataLoading(phases), Checkpoints(phases), collector)
    hooks = _Hooks(phases=phases, waits=waits, collector=collector)
    plugin = NcclPlugin()
    if nccl is not None:
        plugin.install(recorder)
    virtual = None if nccl is None else VirtualNccl(rank, groups, version=nccl)
    host = clock.host = _RecordedHost(
        program, recorder, hooks, clock, rank=rank, num_ranks=ranks, groups=groups, nccl=virtual
    )
    for hook in installed:
        hook.install(recorder)
    try:
        host.play(program.ranks[0], "main")
        host.now_ns += AFTER_NS
        host.gpu.settle()
        if virtual is not None:
            virtual.finish(began_ns=BEGAN_NS)
    finally:
        plugin.remove()
        for hook in reversed(installed[1:]):
            hook.remove()
        recorder.steps.finish()
        clock.polling = True
        waits.remove()
        recorder.close(ending=CLEAN)
