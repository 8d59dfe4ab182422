"""The device ledger of recorded runs: the recorder's own hooks against a virtual GPU, with times computed by hand.

Work starts 3 us after its launch. A host and its GPU have one clock, which only the actions of the training advance.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.virtual_gpu.device import VirtualDevice, VirtualEvent
from tests.virtual_gpu.machine import Gpu
from traincope.analysis.analyze import Analysis, analyze
from traincope.analysis.attribution.stalls import AmbiguousWait
from traincope.analysis.ledger.run_ahead import RunAhead
from traincope.analysis.verdict.findings import FindingKind
from traincope.events import CLEAN, Flag, Kind, Phase
from traincope.record.communication import waits as waits_module
from traincope.record.communication.collectives import Collectives
from traincope.record.communication.groups import KnownGroup
from traincope.record.communication.meshes import Meshes
from traincope.record.communication.pending import Issued
from traincope.record.communication.waits import Waits
from traincope.record.compute import phases as phases_module
from traincope.record.compute.data import DataLoading
from traincope.record.compute.phases import Phases
from traincope.record.gpu import device as devices
from traincope.record.probes import Probes
from traincope.record.segments import slots as slots_module
from traincope.record.segments import writer as writer_module
from traincope.record.segments.slots import end
from traincope.record.session import recorder as recorder_module
from traincope.record.session import steps as steps_module
from traincope.record.session.identity import Identity
from traincope.record.session.recorder import Recorder
from traincope.record.session.sampling import Sampling
from traincope.timeline import LedgerClock, open_run
from traincope.timeline.device import on_device, why_not_on_device

US = 1_000
STREAM = 7
STEPS = 8
LATENCY_NS = 3 * US


class Host:
    """The clock of the host. A poll of the device's thread advances it too, at the end of the run."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000
        self.polling = False

    def monotonic_ns(self) -> int:
        self.now_ns += US if self.polling else 0
        return self.now_ns


class Blocks(Sampling):
    """One block in `every` is a window."""

    def __init__(self) -> None:
        super().__init__(None)
        self.every = 1

    def is_window(self, block: int, *, seed: str) -> bool:  # noqa: ARG002
        return block % self.every == 0


class Training:
    """A training whose hooks are the recorder's, and whose device is virtual.

    Each phase is (host us, kernel us): it launches one kernel, and then its host works.
    """

    def __init__(
        self, host: Host, recorder: Recorder, gpu: Gpu, device: VirtualDevice, waits: Waits, blocks: "Blocks"
    ) -> None:
        self.host, self.recorder, self.gpu, self.device, self.waits = host, recorder, gpu, device, waits
        self.blocks = blocks
        self.forward = self.backward = self.optimizer = (10, 10)
        self.between_us = self.loader_us = 0
        self.ended = False
        self.in_backward: Callable[[], None] = lambda: None
        self.before_forward: Callable[[], None] = lambda: None
        self.after_step: Callable[[torch.nn.Module, torch.Tensor], None] = lambda *_: None
        self.model = _Model(self)
        self.sgd = _Optimizer(self.model.parameters(), training=self)

    def work(self, host_us: int, kernel_us: int) -> None:
        self.gpu.launch(self.host.now_ns, self.device.stream, kernel_us * US)
        self.host.now_ns += host_us * US

    def sleep(self, us: int) -> None:
        self.host.now_ns += us * US

    def run(self, num_steps: int = STEPS) -> None:
        model, optimizer = self.model, self.sgd
        batches = iter(DataLoader(_Batches(self), batch_size=None))
        for _ in range(num_steps):
            batch = next(batches)
            self.before_forward()
            loss = model(batch).sum()
            self.sleep(self.between_us)
            loss.backward()
            self.sleep(self.between_us)
            optimizer.step()
            self.sleep(self.between_us)
            self.after_step(model, batch)

    def evaluate(self, model: torch.nn.Module, batch: torch.Tensor) -> None:
        """Evaluate two batches, and run another kernel after each."""
        trained, self.forward = self.forward, (10, 40)
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                model(batch)
                self.work(5, 25)
        model.train()
        self.forward = trained

    def stall(self, comm_us: int) -> None:
        """Wait on the compute stream for an all-reduce of its own stream that begins now."""
        assert self.waits.device is not None
        group = KnownGroup(number=0, key="0", axis="dp", reference=lambda: None, rule="mesh", ranks=(0, 1))  # type: ignore[arg-type]
        fields = (self.recorder.names.intern("all_reduce"), 0, 0, -1, 0, 64, 0, 0)
        issued = Issued(self.recorder.main.begin(Kind.COLLECTIVE), fields, group, True)
        before = self.waits.device.mark()
        self.gpu.wait(STREAM, self.gpu.launch(self.host.now_ns, 40, comm_us * US))
        self.waits.device.close(before, issued)
        end(issued.slot)

    def finish(self, *, after_us: int = 100_000) -> Analysis:
        """End the run after some time, in which the GPU does its queued work."""
        self.ended = True
        self.sleep(after_us)
        self.recorder.steps.finish()
        self.host.polling = True
        self.waits.remove()
        self.recorder.close(ending=CLEAN)
        assert self.recorder.run is not None
        return analyze(open_run(self.recorder.run))


class _Launching(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, training: Training) -> torch.Tensor:
        ctx.training = training
        training.work(*training.forward)
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.training.work(*ctx.training.backward)
        ctx.training.in_backward()
        return gradients[0], None


class _Model(torch.nn.Module):
    def __init__(self, training: Training) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.training_run = training

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Launching.apply(self.weight, self.training_run)
        return result


class _Optimizer(torch.optim.SGD):
    def __init__(self, parameters: Iterator[torch.nn.Parameter], *, training: Training) -> None:
        super().__init__(parameters, lr=0.1)
        self._training = training

    def step(self, _: Any = None) -> Any:
        self._training.work(*self._training.optimizer)


class _Batches(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, training: Training) -> None:
        self._training = training

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self._training.sleep(self._training.loader_us)
            yield torch.zeros(2)


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    host = Host()
    for module in (devices, phases_module, slots_module, writer_module, recorder_module, steps_module, waits_module):
        monkeypatch.setattr(module, "monotonic_ns", host.monotonic_ns)
    monkeypatch.setattr(devices, "POLL_SECONDS", 3600.0)
    gpu = Gpu(latency_ns=LATENCY_NS)
    device = VirtualDevice(gpu, lambda: host.now_ns, stream=STREAM)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(waits_module, "CudaDevice", lambda: device)
    identity = Identity(rank=0, world_size=1, run_id="test", restarts=0)
    recorder = Recorder(tmp_path / "run", root=tmp_path, identity=identity, disk_budget_bytes=1 << 22)
    recorder.add_group(key="0", axis="dp", rule="mesh", ranks=(0, 1))
    phases = Phases()
    waits, data = Waits(Collectives(Meshes()), phases), DataLoading(phases)
    blocks = Blocks()
    Probes(recorder, (waits, phases, data), level=1, sampling=blocks).install()
    made = Training(host, recorder, gpu, device, waits, blocks)
    yield made
    for hook in (data, phases):
        hook.remove()
    assert made.ended


def steady(analysis: Analysis) -> tuple[float, dict[str, float]]:
    """Wall time and terms of a late step, in us, without terms that took no time. The terms of each step sum to it."""
    (rank,) = analysis.ledger.ranks
    at = STEPS - 3
    assert rank.counted[at]
    for number in range(len(rank.numbers)):
        assert sum(int(ns[number]) for ns in rank.terms.values() if ns is not None) == rank.wall_ns[number]
    terms = {term: int(ns[at]) / US for term, ns in rank.terms.items() if ns is not None and ns[at]}
    return int(rank.wall_ns[at]) / US, terms


def test_a_gpu_that_is_behind_its_host_owns_the_step(training: Training) -> None:
    """Each step launches 50 + 100 + 30 us of kernels in 30 us of the host.

    Step n, its data wait and its forward are queued at 30 n us and begin at 180 n + 3: the host is 150 n + 3 us ahead.
    At the backward it is 40 us more, at the optimizer 130 us. Of the 30 marks of steps 1 to 6, the median lies between
    the optimizer of step 3, 583 us, and the begin of step 4, 603 us.
    """
    training.forward, training.backward, training.optimizer = (10, 50), (10, 100), (10, 30)
    training.run()
    analysis = training.finish()
    assert analysis.ledger.clock is LedgerClock.DEVICE
    assert steady(analysis) == (180, {"forward": 50, "backward": 100, "optimizer": 30})
    assert analysis.run_ahead == RunAhead(median_ns=593 * US, empty_ratio=0.0, fed=True)
    assert [finding.kind for finding in analysis.verdict] == [FindingKind.HEALTHY]
    assert analysis.device_stalls is None
    assert analysis.ledger.total("exposed_memory") is None
    assert analysis.ledger.total("data_wait") == analysis.ledger.total("launch_gap") == 0


def test_a_host_that_is_late_owns_the_gaps(training: Training) -> None:
    """Kernels of 10 us in phases of 50 us of the host, and 20 us of it between them.

    The stream passes each mark 3 us after the host queued it, so it has nothing to do at any of them: without kernels
    the steps would take as long.
    """
    training.forward = training.backward = training.optimizer = (50, 10)
    training.between_us = 20
    training.run()
    analysis = training.finish()
    assert steady(analysis) == (210, {"forward": 50, "backward": 50, "optimizer": 50, "launch_gap": 60})
    assert analysis.run_ahead == RunAhead(median_ns=3 * US, empty_ratio=1.0, fed=False)
    findings = {finding.kind: finding for finding in analysis.verdict}
    assert findings[FindingKind.LAUNCH_GAP].estimated_gain_ratio == pytest.approx(60 / 210)
    assert findings[FindingKind.LAUNCH_BOUND].estimated_gain_ratio is None
    assert findings[FindingKind.LAUNCH_BOUND].evidence == (
        "the GPUs have nothing queued at the end of phases with 100.0 % of step time: their hosts run only 3.00 us "
        "ahead (median)"
    )


def test_a_loader_that_keeps_the_gpu_waiting_is_a_data_wait(training: Training) -> None:
    """It waits as long as its host, 3 us later: until then it ends the step before. Six steps count.

    Whether it lacks work within its short phases, no mark shows: then launch gaps are not known to be 0.
    """
    training.loader_us = 40
    training.run()
    analysis = training.finish()
    assert steady(analysis) == (70, {"forward": 10, "backward": 10, "optimizer": 10, "data_wait": 40})
    assert analysis.ledger.total("launch_gap") is None
    assert analysis.host_hidden_waits == {"data_wait": 6 * 3 * US}


def test_a_loader_behind_queued_work_is_hidden(training: Training) -> None:
    """Step n waits from 70 n to 70 n + 40 us. The GPU begins the first counted step at 223 us, in the fourth wait."""
    training.forward, training.backward, training.optimizer = (10, 50), (10, 100), (10, 30)
    training.loader_us = 40
    training.run()
    analysis = training.finish()
    assert steady(analysis) == (180, {"forward": 50, "backward": 100, "optimizer": 30})
    assert analysis.ledger.total("data_wait") == 0
    assert analysis.host_hidden_waits == {"data_wait": (27 + 4 * 40) * US}


def test_work_between_phases_has_no_owner(training: Training) -> None:
    """A kernel of 25 us before the forward: no mark shows what it is, and the stream has work at the next one."""
    training.forward, training.backward, training.optimizer = (10, 50), (10, 100), (10, 30)
    training.before_forward = lambda: training.work(5, 25)
    training.run()
    terms = {"forward": 50, "backward": 100, "optimizer": 30, "unattributed": 25}
    assert steady(training.finish()) == (205, terms)


def test_a_stall_is_exposed_transfer_that_may_be_wait(training: Training) -> None:
    """The host queues the wait 20 us after its begin of the step: it ends 3 + 400 us later, at 423 us.

    The optimizer's kernel ends at 443 us and the host begins the next step at 420 us, so the GPU is 23 us behind. It
    runs forward until 73 us and backward until 103 us, and then it stalls.
    """
    training.forward, training.backward, training.optimizer = (10, 50), (10, 30), (400, 20)
    training.in_backward = lambda: training.stall(400)
    training.run()
    analysis = training.finish()
    terms = {"forward": 50, "backward": 30, "optimizer": 20, "exposed_transfer[dp]": 320}
    assert steady(analysis) == (420, terms)
    assert analysis.run_ahead is not None
    assert analysis.run_ahead.median_ns == 23 * US  # three of five marks of a step are at its begin
    assert analysis.ledger.ambiguous_waits().keys() == {("dp", AmbiguousWait.DEVICE_MARKS)}
    assert analysis.ledger.ambiguous_waits()["dp", AmbiguousWait.DEVICE_MARKS] == 6 * 320 * US


def test_a_capture_is_not_marked(training: Training) -> None:
    """The third step is captured, from the end of its loading on."""
    capturing = iter([False, False, True, False, False, False, False, False])
    training.before_forward = lambda: setattr(training.device, "is_capturing", next(capturing))
    training.run()
    training.finish()
    assert marked(training, Phase.FORWARD) == [0, 1, 3, 4, 5, 6, 7]


def test_a_phase_on_another_stream_has_no_interval(training: Training) -> None:
    training.before_forward = lambda: setattr(training.device, "stream", 9)
    training.in_backward = lambda: setattr(training.device, "stream", STREAM)
    training.run()
    training.finish()
    assert marked(training, Phase.FORWARD) == []
    assert marked(training, Phase.OPTIMIZER) == list(range(STEPS))


def test_marks_in_flight_are_bounded(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 brackets: 8 events. A step takes 2, and each of its phases 2."""
    monkeypatch.setattr(devices, "POOL_SIZE", 4)
    training.forward = training.backward = training.optimizer = (10, 10)
    training.run()
    analysis = training.finish()
    assert training.recorder.stalls_unmeasured > 0
    assert analysis.ledger.clock is LedgerClock.HOST


def test_marks_that_have_not_happened_at_the_end_are_dropped(training: Training) -> None:
    """The GPU needs 10 s for each step, and the run ends after 35 s: three steps are measured."""
    training.forward = (10, 10_000_000)
    training.run()
    analysis = training.finish(after_us=35_000_000)
    assert analysis.ledger.clock is LedgerClock.HOST  # 3 of 8 steps are not most
    assert marked(training, Phase.FORWARD) == [0, 1, 2]
    assert training.recorder.stalls_unmeasured > 0


def test_only_steps_are_marked_between_windows(training: Training) -> None:
    """Blocks 0 and 2 of seven steps are windows. Step 14 leads in, and the last step, 20, has no end on the GPU."""
    training.blocks.every = 2
    training.forward, training.backward, training.optimizer = (10, 50), (10, 100), (10, 30)
    training.run(21)
    analysis = training.finish()
    assert marked(training, Phase.FORWARD) == [*range(7), *range(15, 21)]
    assert analysis.ledger.clock is LedgerClock.DEVICE
    (rank,) = analysis.ledger.ranks
    assert rank.numbers[rank.counted].tolist() == [*range(1, 7), *range(15, 20)]
    assert rank.wall_ns[1:].tolist() == [180 * US] * 19
    totals = {term: analysis.ledger.total(term) for term in analysis.ledger.order}
    assert {term: ns for term, ns in totals.items() if ns} == {
        "forward": 11 * 50 * US,
        "backward": 11 * 100 * US,
        "optimizer": 11 * 30 * US,
    }
    assert analysis.ledger.total("launch_gap") == 0


def test_a_host_that_waits_for_its_gpu_between_windows_makes_no_step_longer(training: Training) -> None:
    """At the end of steps 8 and 11 the host waits until the GPU has nothing to do, as `.item()` does. These steps are
    many times as long on the host as others, and as long on the GPU.
    """
    number = iter(range(21))

    def wait_for_gpu(*_: object) -> None:
        if next(number) in (8, 11):
            queued = training.gpu.record(training.host.now_ns, STREAM)
            training.gpu.settle()
            assert queued.end_ns is not None
            training.host.now_ns = queued.end_ns

    training.blocks.every = 2
    training.forward, training.backward, training.optimizer = (10, 50), (10, 100), (10, 30)
    training.after_step = wait_for_gpu
    training.run(21)
    (rank,) = training.finish().ledger.ranks
    (host,) = open_run(training.recorder.run).ranks  # type: ignore[arg-type]
    on_host = {step.number: step.length_ns for step in host.steps}
    assert on_host[8] > 1_000 * US
    assert on_host[11] > 400 * US
    assert on_host[9] == on_host[12] == 30 * US
    assert rank.wall_ns[1:].tolist() == pytest.approx([180 * US] * 19, abs=2 * LATENCY_NS)


def test_the_last_step_is_left_out_without_detail_too(training: Training) -> None:
    """Its end has no mark, and the host is far ahead of the GPU."""
    training.blocks.every = 2
    training.forward, training.backward, training.optimizer = (10, 50), (10, 100), (10, 30)
    training.run(12)
    (rank,) = training.finish().ledger.ranks
    assert rank.numbers.tolist() == list(range(11))
    assert rank.wall_ns[1:].tolist() == [180 * US] * 10


def test_a_look_at_steps_between_windows_is_on_the_gpus_clock(training: Training) -> None:
    """As an agent looks at a running job: steps 8 to 12, none of which has detail."""
    training.blocks.every = 2
    training.forward, training.backward, training.optimizer = (10, 50), (10, 100), (10, 30)
    training.run(21)
    timeline = training.finish().timeline
    (rank,) = timeline.ranks
    look = replace(timeline, ranks=(replace(rank, steps=rank.steps[8:13]),))
    assert why_not_on_device(look) is None
    (measured,) = on_device(look, until=12).ranks
    assert [step.length_ns for step in measured.steps] == [180 * US] * 5
    assert not any(step.detailed for step in measured.steps)


def test_an_evaluation_is_cut_out_of_its_step_on_the_gpu(training: Training) -> None:
    """Two forwards of 40 us in every step, 25 us of a loop's kernels between them, and as much after them.

    The last step has no end on the GPU: its evaluation is the host's, of 10 + 5 + 10 us.
    """
    training.forward, training.backward, training.optimizer = (10, 50), (10, 100), (10, 30)
    training.after_step = training.evaluate
    training.run()
    analysis = training.finish()
    assert steady(analysis) == (205, {"forward": 50, "backward": 100, "optimizer": 30, "unattributed": 25})
    assert analysis.ledger.clock is LedgerClock.DEVICE
    assert analysis.ledger.evaluation_ns == (7 * 105 + 25) * US


def test_an_evaluation_between_windows_is_cut_out_too(training: Training) -> None:
    """The host evaluates 25 of 60 us of every step, and a step without detail moves with the GPU."""
    training.blocks.every = 2
    training.after_step = training.evaluate
    training.run(21)
    analysis = training.finish()
    (rank,) = analysis.ledger.ranks
    assert rank.light.sum() == 8
    lengths_ns = np.array([step.length_ns for step in analysis.context.measured.ranks[0].steps])
    assert rank.wall_ns[8:13].tolist() == pytest.approx(lengths_ns[8:13] * 35 / 60, abs=2)


@pytest.mark.parametrize(("num_good", "clock"), [(6, LedgerClock.DEVICE), (3, LedgerClock.HOST)])
def test_a_device_that_fails_is_marked_no_longer(
    training: Training, monkeypatch: pytest.MonkeyPatch, num_good: int, clock: LedgerClock
) -> None:
    """Queries of events fail from some step on, three times in a row. The training, and the host's records, go on."""
    marks = training.waits.device
    assert marks is not None
    monkeypatch.setattr(marks, "_started", True)  # its own thread never begins: this test does what that thread does
    training.run(num_good)
    training.sleep(1_000)
    training.host.polling = True
    _in_thread(marks.resolve)
    training.host.polling = False
    monkeypatch.setattr(VirtualEvent, "query", _raise)
    training.run(1)
    monkeypatch.setattr(marks._stopped, "wait", lambda _: False)
    _in_thread(marks._run)
    training.run(STEPS - num_good - 1)
    analysis = training.finish()
    assert marked(training, Phase.FORWARD) == list(range(num_good))
    assert analysis.ledger.clock is clock
    assert analysis.ledger.rank_steps == (num_good - 2 if clock is LedgerClock.DEVICE else STEPS - 1)
    why = None if clock is LedgerClock.DEVICE else "marks on the compute stream measure only 2 of 8 steps of rank 0"
    assert why_not_on_device(analysis.timeline) == why


def test_a_device_that_cannot_record_leaves_the_records_of_the_host(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VirtualEvent, "record", _raise)
    training.run()
    analysis = training.finish()
    assert analysis.ledger.clock is LedgerClock.HOST
    assert analysis.ledger.total("forward") == 10 * (STEPS - 1) * US


def _in_thread(function: Callable[[], object]) -> None:
    """Call a function as the device's thread does, with a writer of its own."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def _raise(*_: object) -> bool:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def marked(training: Training, phase: Phase) -> list[int]:
    """Steps in which the phase was measured on the device."""
    assert training.recorder.run is not None
    (rank,) = open_run(training.recorder.run).ranks
    return sorted(
        int(record["step"])
        for records in rank.threads.values()
        for record in records[(records["kind"] == Kind.PHASE) & (records["flags"] & Flag.DEVICE > 0)]
        if record["phase"] == phase
    )
