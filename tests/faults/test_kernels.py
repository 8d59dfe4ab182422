"""Somebody else's kernel on the operators we stand in front of: theirs works before, during and after us."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.library import Library

import traincope
from tests.faults.trainings import Outcome, join_a_group, train
from tests.faults.victims import Victims
from traincope.events import Kind
from traincope.record import unseen
from traincope.store import read_run


class Theirs:
    """Counts calls of all_reduce at a dispatch key, and passes them on below it."""

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

        with warnings.catch_warnings(action="ignore"):  # torch warns of every kernel that is put over another
            self._library.impl("allreduce_", kernel, key, with_keyset=True)

    def remove(self) -> None:
        self._library._destroy()


def reduce(times: int) -> None:
    for _ in range(times):
        tensor = torch.full((2,), 3.0)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [3.0, 3.0]


def train_beside(out: str, key: str, before: bool, removed_inside: bool, looked_for: bool = True) -> dict[str, Any]:
    """3 reductions before the run, the training inside it, 5 after: how many of them theirs saw.

    `looked_for`: between steps, as it should be.
    """
    if not looked_for:
        unseen.LOOK_INTERVAL_NS = 1 << 62
    join_a_group()
    theirs = Theirs(key) if before else None
    reduce(3)
    with traincope.run(out, throttle=None):
        theirs = theirs or Theirs(key)
        outcome = train()
        inside = theirs.calls
        if removed_inside:
            theirs.remove()
        reduce(2)
    reduce(5)
    return {"outcome": outcome, "inside": inside - 3 * before, "after": theirs.calls - inside}


@pytest.mark.parametrize("removed_inside", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_a_backend_kernel_of_somebody_else_sees_every_call_and_so_do_we(
    victims: Victims, bare: Outcome, tmp_path: Path, before: bool, removed_inside: bool
) -> None:
    ended = victims.train(train_beside, tmp_path / "run", "CPU", before, removed_inside)
    assert (ended.code, ended.err) == (0, "")
    seen = collectives(tmp_path / "run")
    assert ended.result == {"outcome": bare, "inside": seen - 2, "after": 0 if removed_inside else 2 + 5}
    assert seen > 50


def test_where_somebody_stands_already_we_look_from_python(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    ended = victims.train(train_beside, tmp_path / "run", "BackendSelect", True, False)
    assert ended.result["outcome"] == bare
    assert (ended.result["inside"] > 50, ended.result["after"]) == (True, 2 + 5)
    assert collectives(tmp_path / "run") == ended.result["inside"] + 2
    assert probe(tmp_path / "run") == (
        "absent: RuntimeError: somebody else's kernel stands in front of c10d::allreduce_ already"
    )


@pytest.mark.parametrize(("removed_inside", "seen", "after"), [(False, 0, 2 + 5), (True, 2, 0)])
def test_a_kernel_put_over_ours_hides_it_and_that_is_told(
    victims: Victims, bare: Outcome, tmp_path: Path, removed_inside: bool, seen: int, after: int
) -> None:
    ended = victims.train(train_beside, tmp_path / "run", "BackendSelect", False, removed_inside)
    assert ended.result["outcome"] == bare
    assert (ended.result["inside"] > 50, ended.result["after"]) == (True, after)
    assert collectives(tmp_path / "run") == seen
    assert probe(tmp_path / "run") == (
        "on, but somebody else's kernel hid c10d::allreduce_; "
        f"torch's flight recorder counted {ended.result['inside'] + 2 - seen} more than the {seen} that it saw"
    )


def test_a_kernel_that_came_and_went_between_two_looks_is_told_by_what_torch_counted_beyond(
    victims: Victims, bare: Outcome, tmp_path: Path
) -> None:
    ended = victims.train(train_beside, tmp_path / "run", "BackendSelect", False, True, False)
    assert (ended.result["outcome"], collectives(tmp_path / "run")) == (bare, 2)
    assert probe(tmp_path / "run") == (
        f"on, but torch's flight recorder counted {ended.result['inside']} more than the 2 that it saw"
    )


def reduce_and_scatter(out: str, in_parts: bool) -> None:
    """Beside a kernel that hides every all_reduce; gloo makes two entries of a reduce_scatter in parts."""
    join_a_group()
    with traincope.run(out, throttle=None):
        theirs = Theirs("BackendSelect")
        traincope.step()
        reduce(2)
        if in_parts:
            dist.reduce_scatter(torch.empty(2), [torch.ones(2)])
        theirs.remove()


@pytest.mark.parametrize(
    ("in_parts", "told"),
    [
        (False, "torch's flight recorder counted 2 more than the 0 that it saw"),
        (True, "how many it missed is not known"),
    ],
)
def test_where_torch_counts_otherwise_than_we_do_no_number_is_told(
    victims: Victims, tmp_path: Path, in_parts: bool, told: str
) -> None:
    victims.train(reduce_and_scatter, tmp_path / "run", in_parts)
    assert probe(tmp_path / "run") == f"on, but somebody else's kernel hid c10d::allreduce_; {told}"


def collectives(path: Path) -> int:
    (rank,) = read_run(path).ranks
    return int((rank.thread("main")["kind"] == Kind.COLLECTIVE).sum())


def probe(path: Path) -> str:
    (rank,) = read_run(path).ranks
    return rank.info.probes["collectives"]
