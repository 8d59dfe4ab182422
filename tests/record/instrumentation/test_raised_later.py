"""What a signal handler of the training raises in a callback of the garbage collector reaches the training."""

import ctypes
import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import traincope
from traincope.events import Kind, Phase
from traincope.store import read_run


class Preempted(Exception):
    pass


def preempt(*_: object) -> None:
    raise Preempted


class Moment:
    from_param = {"start": ctypes.c_int(signal.SIGUSR1), "stop": ctypes.c_int(0)}.get


class Information:
    from_param = len


@pytest.fixture
def _interrupted_collections() -> Iterator[None]:
    """A signal arrives in each collection, before the recorder's callback.

    No Python code runs that would answer it: the callbacks of libraries are put aside.
    """
    arrive = ctypes.pythonapi["PyErr_SetInterruptEx"]
    arrive.argtypes = (Moment, Information)  # type: ignore[assignment]
    before = signal.signal(signal.SIGUSR1, preempt)
    enabled = gc.isenabled()
    gc.disable()
    gc.collect()
    others = [*gc.callbacks]
    gc.callbacks[:] = [arrive]
    yield
    gc.callbacks[:] = others
    signal.signal(signal.SIGUSR1, before)
    if enabled:
        gc.enable()


@pytest.mark.usefixtures("_interrupted_collections")
def test_an_exception_in_the_recorders_callback_is_the_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finalizers of other tests' objects may run in the collection, and drop what reaches them, as without us."""
    in_callback: list[bool] = []
    lost = 0

    def hook(each: Any) -> None:
        if each.exc_type is Preempted:
            in_callback.append(each.object in gc.callbacks)

    monkeypatch.setattr(sys, "unraisablehook", hook)
    with traincope.run(tmp_path / "run", agent=False, budget=None) as run:
        for _ in range(20):
            try:
                gc.collect()
                lost += 1
            except Preempted:
                pass
            run.step()
    assert in_callback == [False] * lost
    assert lost < 20
    assert sys.unraisablehook is hook
    (rank,) = read_run(tmp_path / "run").ranks
    records = rank.thread("main")
    assert ((records["kind"] == Kind.PHASE) & (records["phase"] == Phase.GC)).sum() <= 20


def test_what_others_drop_and_the_trainings_own_hook_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Raises:
        def __del__(self) -> None:
            raise LookupError

    before: list[Any] = []
    own: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: before.append(each.exc_type))
    with traincope.run(tmp_path / "run", agent=False):
        Raises()
        sys.unraisablehook = hook = lambda each: own.append(each.exc_type)
        Raises()
    assert (before, own) == ([LookupError], [LookupError])
    assert sys.unraisablehook is hook
