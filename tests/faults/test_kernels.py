"""Other kernels on the operators that ours precede: they work before, during and after the run."""

import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.library import Library

import traincope
from tests.faults.victims.trainings import Outcome, join_a_group, train
from tests.faults.victims.victims import Victims
from tests.native.library import python_hooks
from traincope.events import BLOCK_STEPS, Flag, Kind
from traincope.record.communication import missed_collectives
from traincope.record.instrumentation.dispatcher import KEY
from traincope.record.instrumentation.torch_private import has_kernel
from traincope.record.session import sampling
from traincope.store import read_run


class CountingKernel:
    """Count calls of all_reduce at a dispatch key, and pass them on below it."""

    def __init__(self, key: str) -> None:
        self.calls = 0
        self._library = Library("c10d", "IMPL")
        below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, key))
        proceed = torch.ops.c10d.allreduce_.default._handle.redispatch_boxed

        def gloo(tensors: list[torch.Tensor], group: Any, *_: Any) -> Any:
            backend = dist.ProcessGroup.unbox(group)._get_backend(torch.device("cpu"))
            return tensors, backend.allreduce(tensors).boxed()

        def kernel(keys: Any, *arguments: Any) -> Any:
            self.calls += 1
            return gloo(*arguments) if key == "CPU" else proceed(keys & below, *arguments)

        with warnings.catch_warnings(action="ignore"):  # torch warns of every kernel that replaces another
            self._library.impl("allreduce_", kernel, key, with_keyset=True)

    def remove(self) -> None:
        self._library._destroy()


class Naps(torch.nn.Module):
    """A module that another thread is in for as long as the test wants."""

    def forward(self, begun: threading.Event, ended: threading.Event) -> None:
        begun.set()
        while not ended.is_set():
            time.sleep(0.001)


def reduce(times: int) -> None:
    for _ in range(times):
        tensor = torch.full((2,), 3.0)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [3.0, 3.0]


def train_beside(out: str, key: str, before: bool, removed_inside: bool, looked_for: bool = True) -> dict[str, Any]:
    """Run 3 reductions before the run, the training inside it, 5 after. Returns how many the other kernel saw.

    `looked_for`: the recorder checks between steps, as usual.
    """
    if not looked_for:
        missed_collectives.LOOK_INTERVAL_NS = 1 << 62
    join_a_group()
    counter = CountingKernel(key) if before else None
    reduce(3)
    with traincope.run(out, budget=None):
        counter = counter or CountingKernel(key)
        outcome = train()
        inside = counter.calls
        if removed_inside:
            counter.remove()
        reduce(2)
    reduce(5)
    return {"outcome": outcome, "inside": inside - 3 * before, "after": counter.calls - inside}


@pytest.mark.parametrize("removed_inside", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_another_backend_kernel_and_the_recorder_both_see_every_call(
    victims: Victims, bare: Outcome, tmp_path: Path, before: bool, removed_inside: bool
) -> None:
    ended = victims.train(train_beside, tmp_path / "run", "CPU", before, removed_inside)
    assert (ended.code, ended.err) == (0, "")
    num_recorded = collectives(tmp_path / "run")
    assert ended.result == {"outcome": bare, "inside": num_recorded - 2, "after": 0 if removed_inside else 2 + 5}
    assert num_recorded > 50


def test_behind_an_existing_kernel_the_fallback_records(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    ended = victims.train(train_beside, tmp_path / "run", "BackendSelect", True, False)
    assert ended.result["outcome"] == bare
    assert (ended.result["inside"] > 50, ended.result["after"]) == (True, 2 + 5)
    assert collectives(tmp_path / "run") == ended.result["inside"] + 2
    assert probe(tmp_path / "run") == ("absent: RuntimeError: another kernel precedes c10d::allreduce_ already")


@pytest.mark.parametrize(("removed_inside", "num_recorded", "after"), [(False, 0, 2 + 5), (True, 2, 0)])
def test_a_kernel_that_hides_ours_is_reported(
    victims: Victims, bare: Outcome, tmp_path: Path, removed_inside: bool, num_recorded: int, after: int
) -> None:
    ended = victims.train(train_beside, tmp_path / "run", "BackendSelect", False, removed_inside)
    assert ended.result["outcome"] == bare
    assert (ended.result["inside"] > 50, ended.result["after"]) == (True, after)
    assert collectives(tmp_path / "run") == num_recorded
    assert probe(tmp_path / "run") == (
        "on, but another kernel hid c10d::allreduce_; "
        f"torch's flight recorder counted {ended.result['inside'] + 2 - num_recorded} more "
        f"than the {num_recorded} recorded"
    )


def test_a_kernel_that_came_and_went_between_two_checks_shows_in_the_count(
    victims: Victims, bare: Outcome, tmp_path: Path
) -> None:
    ended = victims.train(train_beside, tmp_path / "run", "BackendSelect", False, True, False)
    assert (ended.result["outcome"], collectives(tmp_path / "run")) == (bare, 2)
    assert probe(tmp_path / "run") == (
        f"on, but torch's flight recorder counted {ended.result['inside']} more than the 2 recorded"
    )


def reduce_and_scatter(out: str, in_parts: bool) -> None:
    """A kernel hides every all_reduce. gloo makes two entries of a reduce_scatter in parts."""
    join_a_group()
    with traincope.run(out, budget=None):
        counter = CountingKernel("BackendSelect")
        traincope.step()
        reduce(2)
        if in_parts:
            dist.reduce_scatter(torch.empty(2), [torch.ones(2)])
        counter.remove()


@pytest.mark.parametrize(
    ("in_parts", "remark"),
    [
        (False, "torch's flight recorder counted 2 more than the 0 recorded"),
        (True, "the number of missed ones is unknown"),
    ],
)
def test_no_number_is_reported_when_torchs_count_does_not_compare(
    victims: Victims, tmp_path: Path, in_parts: bool, remark: str
) -> None:
    victims.train(reduce_and_scatter, tmp_path / "run", in_parts)
    assert probe(tmp_path / "run") == f"on, but another kernel hid c10d::allreduce_; {remark}"


def alternate(out: str, disturb: str = "") -> dict[str, Any]:
    """Every other block is a window. Returns in which steps the recorder's kernel was before all_reduce.

    `disturb`: in block 1, between windows, either another library puts its own "kernel" there, or a "thread" begins to
    call modules. It ends in block 3.
    """
    sampling.is_window = lambda block, **_: block % 2 == 0
    join_a_group()
    begun, ended = threading.Event(), threading.Event()
    thread, counter, present = threading.Thread(target=Naps(), args=(begun, ended)), None, []
    with python_hooks(), traincope.run(out) as run:
        for step in range(6 * BLOCK_STEPS):
            if step == BLOCK_STEPS + 3 and disturb == "kernel":
                counter = CountingKernel("BackendSelect")
            if step == BLOCK_STEPS + 3 and disturb == "thread":
                thread.start()
                begun.wait()
            if step == 3 * BLOCK_STEPS + 3 and disturb == "thread":
                ended.set()
                thread.join()
            run.step()
            present.append(has_kernel("c10d::allreduce_", KEY))
            reduce(1)
        calls = 0 if counter is None else counter.calls
        if counter is not None:
            counter.remove()
    return {"present": blocks(present), "calls": calls, "after": has_kernel("c10d::allreduce_", KEY)}


def blocks(present: list[bool]) -> list[bool | None]:
    """One value per block of steps. None if its steps differ."""
    of_blocks = [set(present[at : at + BLOCK_STEPS]) for at in range(0, len(present), BLOCK_STEPS)]
    return [next(iter(values)) if len(values) == 1 else None for values in of_blocks]


def test_between_windows_no_kernel_of_the_recorder_is_called(victims: Victims, tmp_path: Path) -> None:
    ended = victims.train(alternate, tmp_path / "run")
    assert (ended.code, ended.err) == (0, "")
    assert ended.result == {"present": [True, False] * 3, "calls": 0, "after": False}
    assert collectives(tmp_path / "run") == 3 * BLOCK_STEPS
    assert probe(tmp_path / "run") == "on"


def test_a_kernel_that_came_between_windows_is_not_hidden_and_is_reported(victims: Victims, tmp_path: Path) -> None:
    ended = victims.train(alternate, tmp_path / "run", "kernel")
    assert (ended.code, ended.result["after"]) == (0, False)
    assert ended.result["calls"] == 6 * BLOCK_STEPS - BLOCK_STEPS - 3
    assert collectives(tmp_path / "run") == BLOCK_STEPS
    assert probe(tmp_path / "run") == (
        "on, but another kernel hid c10d::allreduce_; the number of missed ones is unknown"
    )


def test_while_another_thread_may_issue_collectives_no_kernel_comes_back(victims: Victims, tmp_path: Path) -> None:
    """Block 2 is no window then. After that the kernels stay, once they are back."""
    ended = victims.train(alternate, tmp_path / "run", "thread")
    assert (ended.code, ended.err) == (0, "")
    assert ended.result == {"present": [True, False, False, False, True, True], "calls": 0, "after": False}
    assert collectives(tmp_path / "run") == 2 * BLOCK_STEPS
    (rank,) = read_run(tmp_path / "run").ranks
    steps = rank.thread("main")[rank.thread("main")["kind"] == Kind.STEP]
    detailed = set(steps["step"][steps["flags"] & Flag.DETAILED > 0].tolist())
    assert detailed == {*range(BLOCK_STEPS), *range(4 * BLOCK_STEPS + 1, 5 * BLOCK_STEPS)}


def collectives(path: Path) -> int:
    (rank,) = read_run(path).ranks
    return int((rank.thread("main")["kind"] == Kind.COLLECTIVE).sum())


def probe(path: Path) -> str:
    (rank,) = read_run(path).ranks
    return rank.info.probes["collectives"]
