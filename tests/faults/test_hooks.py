"""Faults of the recorder's own code and of its foundations: the hook is off and reports it, the training is
unchanged.
"""

import functools
import gc
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import data

import traincope
from tests.faults.victims.trainings import FAULT_STEP, STEPS, Outcome, join_a_group, train, train_observed
from tests.faults.victims.victims import Victims
from tests.native.library import python_hooks
from traincope.events import Flag, Kind, Phase
from traincope.record import hooks, run
from traincope.record.probes import INSTALL_ERRORS
from traincope.record.segments.writer import CollectiveFields, ThreadWriter
from traincope.store import RankRecords, read_run
from traincope.store.job.process import OWN_THREAD
from traincope.timeline import open_run

COLLECTIVES = 2 * 4 * STEPS
"""Two reductions of each parameter's gradient in a step of `trainings.train`."""
HOOKS = [hook.name for hook in hooks.make_hooks() if hook.level <= 2]


def only_rank(path: Path) -> RankRecords:
    (rank,) = read_run(path).ranks
    return rank


def of_kind(rank: RankRecords, kind: Kind) -> int:
    return int((rank.thread("main")["kind"] == kind).sum())


def patched() -> list[int]:
    """The attributes that hooks replace, as far as they are visible."""
    owners = (torch.nn.Module, torch.distributed.Work, torch.autograd, data.dataloader._BaseDataLoaderIter)
    return [id(value) for owner in owners for value in vars(owner).values()] + [id(call) for call in gc.callbacks]


def train_where_each_hook_fails_to_install(out: str) -> dict[str, Any]:
    """Each hook in turn fails after its work, with an unexpected error."""
    return {name: train_where_a_hook_fails_to_install(f"{out}/{name}", name) for name in HOOKS}


def train_where_a_hook_fails_to_install(out: str, name: str) -> dict[str, Any]:
    all_hooks = hooks.make_hooks()
    (broken,) = (hook for hook in all_hooks if hook.name == name)
    install = broken.install

    def install_and_fail(recorder: Any) -> None:
        with suppress(*INSTALL_ERRORS):
            install(recorder)
        raise ArithmeticError("broken")

    broken.install = install_and_fail  # type: ignore[method-assign]
    run.make_hooks = lambda: all_hooks  # type: ignore[attr-defined]
    before = patched()
    outcome = train_observed(out)
    return {"outcome": outcome, "restored": patched() == before}


def test_a_hook_that_fails_to_install_is_absent_and_torch_is_restored(
    victims: Victims, bare: Outcome, tmp_path: Path
) -> None:
    ended = victims.train(train_where_each_hook_fails_to_install, tmp_path)
    assert ended.code == 0
    assert ended.result == {name: {"outcome": bare, "restored": True} for name in HOOKS}
    for name in HOOKS:
        rank = only_rank(tmp_path / name)
        if rank.info.probes[name].startswith("off: nothing to watch"):
            continue  # needs a GPU
        assert rank.info.probes[name] == "absent: it failed to install"
        assert rank.info.probes["probes.Probes._install"].endswith(": ArithmeticError")
        assert sum(state == "on" for state in rank.info.probes.values()) >= len(HOOKS) // 2
        assert of_kind(rank, Kind.SPAN) > STEPS


def train_where_records_fail(out: str, kind: int, phase: int) -> Outcome:
    """Every hook that begins such a record raises at every call."""
    begin, begin_phase, begin_collective = ThreadWriter.begin, ThreadWriter.begin_phase, ThreadWriter.begin_collective
    write = ThreadWriter.write

    def begin_or_fail(writer: ThreadWriter, what: int, during: int = 0, *fields: int) -> Any:
        if (what, during) == (kind, phase):
            raise MemoryError("broken")
        return begin(writer, what, during, *fields)

    def begin_phase_or_fail(writer: ThreadWriter, during: int, name: int) -> Any:
        if (Kind.PHASE, during) == (kind, phase):
            raise MemoryError("broken")
        return begin_phase(writer, during, name)

    def begin_collective_or_fail(writer: ThreadWriter, what: int, fields: CollectiveFields) -> Any:
        if what == kind:
            raise MemoryError("broken")
        return begin_collective(writer, what, fields)

    def write_or_fail(
        writer: ThreadWriter, what: int, start_ns: int, end_ns: int, during: int = 0, *fields: int, **named: int
    ) -> Any:
        if (what, during) == (kind, phase):
            raise MemoryError("broken")
        return write(writer, what, start_ns, end_ns, during, *fields, **named)

    ThreadWriter.write = write_or_fail  # type: ignore[method-assign, assignment]
    ThreadWriter.begin = begin_or_fail  # type: ignore[method-assign, assignment]
    ThreadWriter.begin_phase = begin_phase_or_fail  # type: ignore[method-assign]
    ThreadWriter.begin_collective = begin_collective_or_fail  # type: ignore[method-assign]
    with python_hooks():
        return train_observed(out)


@pytest.mark.parametrize(
    ("kind", "phase", "place"),
    [
        (Kind.STEP, Phase.NONE, "run._mark_step"),
        (Kind.COLLECTIVE, Phase.NONE, "collectives.Collectives._beginner.<locals>.begin"),
        (Kind.STALL, Phase.NONE, "waits.Waits._beginner.<locals>.begin"),
        (Kind.PHASE, Phase.FORWARD, "phases.Phases._begin_forward"),
        (Kind.PHASE, Phase.BACKWARD, "phases.Phases._begin_backward"),
        (Kind.PHASE, Phase.OPTIMIZER, "phases.Phases._begin_optimizer"),
        (Kind.PHASE, Phase.DATA_WAIT, "data.DataLoading.install.<locals>.begin"),
    ],
)
def test_a_hook_that_raises_at_every_call_loses_only_its_own_records(
    victims: Victims, bare: Outcome, tmp_path: Path, kind: Kind, phase: Phase, place: str
) -> None:
    ended = victims.train(train_where_records_fail, tmp_path / "run", int(kind), int(phase))
    assert (ended.code, ended.result) == (0, bare)
    assert ended.err.count("training goes on: broken") >= 1
    rank = only_rank(tmp_path / "run")
    assert rank.info.probes[place].endswith(": MemoryError")
    records = rank.thread("main")
    assert not ((records["kind"] == kind) & (records["phase"] == phase)).any()
    assert of_kind(rank, Kind.SPAN) > STEPS


def train_where_a_hook_is_slow(out: str) -> Outcome:
    """A collective costs 2 ms of the recorder's CPU time, in steps of 50 ms."""
    begin = ThreadWriter.begin_collective

    def begin_slowly(writer: ThreadWriter, what: int, fields: CollectiveFields) -> Any:
        if what == Kind.COLLECTIVE:
            until = time.thread_time_ns() + 2_000_000
            while time.thread_time_ns() < until:
                pass
        return begin(writer, what, fields)

    ThreadWriter.begin_collective = begin_slowly  # type: ignore[method-assign]
    del os.environ["TRAINCOPE_BUDGET"]
    with python_hooks(), traincope.run(out):
        for _ in range(25):
            traincope.step()
        return train()


def test_a_slow_hook_is_called_in_few_steps_and_nothing_is_printed(
    victims: Victims, bare: Outcome, tmp_path: Path
) -> None:
    ended = victims.train(train_where_a_hook_is_slow, tmp_path / "run")
    assert (ended.code, ended.result, ended.err) == (0, bare, "")
    rank = only_rank(tmp_path / "run")
    steps = rank.thread("main")[rank.thread("main")["kind"] == Kind.STEP]
    assert 0 < np.count_nonzero(steps["flags"] & Flag.DETAILED) < len(steps) / 2
    assert rank.info.probes["collectives"] == "on"


def train_while_the_clock_jumps(out: str) -> Outcome:
    """The wall clock is set back by a day. `time.time_ns` simulates it; the monotonic clock cannot be set."""
    real = time.time_ns

    def at(step: int) -> None:
        if step == FAULT_STEP:
            time.time_ns = lambda: real() - 86_400_000_000_000  # type: ignore[method-assign]

    return train_observed(out, at)


def test_setting_the_wall_clock_back_does_not_shift_records(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    ended = victims.train(train_while_the_clock_jumps, tmp_path / "run")
    assert (ended.code, ended.result, ended.err) == (0, bare, "")
    records = only_rank(tmp_path / "run").thread("main")
    (timeline,) = open_run(tmp_path / "run").ranks
    assert (records["end_ns"] >= records["start_ns"]).all()
    moved = timeline.main["start_ns"] - np.sort(records["start_ns"])
    assert len(set(moved.tolist())) == 1
    assert [step.number for step in timeline.steps] == list(range(STEPS))


PRIVATE = {
    "torch._C._dispatch_keyset_full_after": {"collectives", "flops"},
    "torch._C._dispatch_has_kernel_for_dispatch_key": {"collectives"},
    "torch.library.Library._destroy": {"collectives"},
    "torch._C._current_graph_task_id": {"phases", "flops"},
    "torch.utils.data.dataloader._BaseDataLoaderIter": {"data"},
    "torch.distributed.pipelining.stage._PipelineStageBase": {"pipeline"},
    "torch.distributed.pipelining.schedules._PipelineSchedule": {"pipeline"},
    "torch.nn.parallel.DistributedDataParallel._pre_forward": {"ddp"},
    "torch.distributed.distributed_c10d._get_default_store": set(),
    "torch._C._dynamo.eval_frame.set_code_exec_strategy": set(),
    "torch._C._dispatch_dump_table": set(),
    "torch._C._DisableTorchDispatch": set(),
    "torch._C._distributed_c10d._dump_fr_trace_json": set(),
    "torch._C._dynamo.eval_frame._FrameAction": set(),
    "torch.distributed.pipelining.schedules._PipelineSchedule._maybe_compute_loss": {"pipeline"},
}
"""A private name of torch -> the probes that need it."""


def train_without_each(out: str) -> dict[str, Any]:
    with python_hooks():
        return {name: train_without(f"{out}/{name}", name) for name in PRIVATE}


def train_without(out: str, name: str) -> dict[str, Any]:
    owner_path, _, attribute = name.rpartition(".")
    owner: Any = functools.reduce(getattr, owner_path.split(".")[1:], torch)
    value, before = vars(owner)[attribute], patched()
    with lacking(owner, attribute), traincope.run(out, level=2, budget=None):
        # torch itself may need the name later, so it is missing only while the run begins.
        setattr(owner, attribute, value)
        outcome = train()
        delattr(owner, attribute)
    return {"outcome": outcome, "restored": patched() == before}


@contextmanager
def lacking(owner: Any, attribute: str) -> Iterator[None]:
    value = vars(owner)[attribute]
    delattr(owner, attribute)
    yield
    setattr(owner, attribute, value)


def test_a_missing_private_name_of_torch_disables_only_its_probes(
    victims: Victims, bare: Outcome, tmp_path: Path
) -> None:
    ended = victims.train(train_without_each, tmp_path)
    assert ended.code == 0, ended.err
    assert ended.result == {name: {"outcome": bare, "restored": True} for name in PRIVATE}
    for name, expected in PRIVATE.items():
        rank = only_rank(tmp_path / name)
        because = f"'{name.rpartition('.')[2]}'"
        absent = {probe for probe, state in rank.info.probes.items() if state.startswith("absent: ")}
        assert {probe for probe in absent if because in rank.info.probes[probe]} == expected, name
        assert not (absent - expected) & TORCH_HAS, name
        fallen_back = rank.info.probes["collectives_fallback"].startswith("on, in place of collectives")
        assert fallen_back == ("collectives" in expected), name
        assert of_kind(rank, Kind.COLLECTIVE) == of_kind(rank, Kind.STALL) == COLLECTIVES, name
        assert of_kind(rank, Kind.SPAN) >= STEPS


TORCH_HAS = {"collectives", "waits", "phases", "ddp", "pipeline", "data", "gc", "checkpoints", "memory", "modules"}
"""Return the probes that may be absent only because of the missing name."""


class CountedTensor(torch.Tensor):
    """A tensor that counts what is called with it."""

    calls: ClassVar[Counter[str]] = Counter()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls[str(getattr(function, "__name__", function))] += 1
        return super().__torch_function__(function, types, args, kwargs or {})


class CountedFunctions(TorchFunctionMode):
    """A mode that counts what is called in it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(getattr(function, "__name__", function))] += 1
        return function(*args, **(kwargs or {}))


@contextmanager
def observed(out: str) -> Iterator[None]:
    with traincope.run(out, level=2, budget=None, agent=False) if out else nullcontext():
        yield


def count_calls(out: str) -> dict[str, dict[str, int]]:
    """Train with tensors and in a mode that see each call of a function of torch."""
    join_a_group()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mode, batch = CountedFunctions(), torch.ones(2, 8)
    with observed(out):
        for number in range(2 * STEPS):
            with mode if number % 2 else nullcontext():
                model(batch if number % 2 else batch.as_subclass(CountedTensor)).sum().backward()
                torch.distributed.all_reduce(torch.ones(1) if number % 2 else torch.ones(1).as_subclass(CountedTensor))
                optimizer.step()
                optimizer.zero_grad()
    return {"tensor": dict(CountedTensor.calls), "mode": dict(mode.calls)}


def test_function_modes_and_tensors_of_the_training_see_its_own_calls_only(victims: Victims, tmp_path: Path) -> None:
    bare, recorded = (victims.train(count_calls, out).result for out in ("", str(tmp_path / "run")))
    assert bare["tensor"]["linear"] == 2 * STEPS
    assert bare["mode"]["linear"] == 2 * STEPS
    assert recorded == bare


def look_for_threads(out: str) -> dict[str, Any]:
    """Profile all threads that start from now on, and join those that Python lists."""
    profiled: set[str] = set()
    threading.setprofile(lambda frame, _event, _argument: profiled.add(frame.f_code.co_filename))
    with observed(out):
        outcome = train()
        ours = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join()
    return {"outcome": outcome, "profiled": sorted(profiled), "ours": ours.count(f"{OWN_THREAD}\n")}


def test_a_training_that_joins_or_profiles_its_threads_meets_none_of_the_recorder(
    victims: Victims, bare: Outcome, tmp_path: Path
) -> None:
    ended = victims.train(look_for_threads, tmp_path / "run")
    assert ended.result["ours"] > 0
    assert (ended.code, ended.result["outcome"], ended.result["profiled"], ended.err) == (0, bare, [], "")


def clear_callbacks(out: str) -> Outcome:
    return train_observed(out, lambda step: gc.callbacks.clear() if step == FAULT_STEP else None)


def test_callbacks_that_the_training_clears_are_not_missed(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    ended = victims.train(clear_callbacks, tmp_path / "run")
    assert (ended.code, ended.result, ended.err) == (0, bare, "")


class Preempted(Exception):
    """An exception of the training's own signal handler."""


def be_preempted(out: str) -> dict[str, Any]:
    """A handler raises just after the recorder has moved to the rank's directory. The training goes on."""
    replace, arrived = os.replace, []

    def preempt(*_: object) -> None:
        arrived.append(1)
        raise Preempted

    def replace_and_signal(source: Any, target: Any) -> None:
        replace(source, target)
        if Path(target).is_dir() and not arrived:
            signal.raise_signal(signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, preempt)
    os.replace = replace_and_signal
    model, caught = torch.nn.Linear(2, 1), 0
    with traincope.run(out, agent=False) as run:
        for _ in range(STEPS):
            try:
                model(torch.ones(1, 2)).sum().backward()
                run.step()
            except Preempted:
                caught += 1
    return {"arrived": len(arrived), "caught": caught}


def test_a_move_that_an_exception_of_the_training_interrupts_is_completed(victims: Victims, tmp_path: Path) -> None:
    ended = victims.train(be_preempted, tmp_path / "run")
    assert (ended.code, ended.result, ended.err) == (0, {"arrived": 1, "caught": 1}, "")
    assert only_rank(tmp_path / "run").info.ending == "clean"
