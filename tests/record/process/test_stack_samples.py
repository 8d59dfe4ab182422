"""A sample is taken between two instructions of the training. What its own code raises there must reach it."""

import math
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from traincope.record.process import stack_samples
from traincope.store.layout import stack_samples_file
from traincope.store.segments.stack_samples import read_stack_samples


class Preempted(Exception):
    """Raised by a handler, as trainings do at a time limit."""


def preempted(*_: object) -> None:
    raise Preempted(7)


class Interrupted:
    """A sampler whose sample a signal interrupts."""

    def __init__(self, error: type[BaseException] | None) -> None:
        self.error, self.samples = error, 0

    def answer(self) -> None:
        self.samples += 1
        if self.error is None:
            signal.raise_signal(signal.SIGUSR2)
        else:
            raise self.error


def sampled(sampler: Interrupted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for a sample, and go on until the main thread has taken it."""
    answering: list[Any] = [sampler]
    monkeypatch.setattr(stack_samples, "_answering", answering)
    assert not stack_samples.add_pending_call(stack_samples._PENDING, None)
    for _ in range(100_000):
        pass


def test_the_exception_of_a_signal_handler_reaches_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGUSR2, preempted)
    sampler = Interrupted(None)
    try:
        with pytest.raises(Preempted) as raised:
            sampled(sampler, monkeypatch)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert (sampler.samples, raised.value.args) == (1, (7,))


def test_the_limit_of_recursion_is_not_reached_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Interrupted(RecursionError)
    sampled(sampler, monkeypatch)
    assert sampler.samples == 1


class UnderWay:
    """Steps of 1 ms. The one under way began when this was made."""

    def __init__(self, *, number: int, usual_ns: float) -> None:
        self.number, self.began_ns, self.usual_ns, self.looks = number, time.monotonic_ns(), usual_ns, 0

    def under_way(self) -> tuple[int, int, float]:
        self.looks += 1
        return self.number, time.monotonic_ns() - self.began_ns, self.usual_ns


def prune(seconds: float) -> None:
    time.sleep(seconds)
    ended = time.monotonic() + 0.1
    while time.monotonic() < ended:
        pass


@pytest.mark.parametrize(("usual_ns", "is_long"), [(1e6, True), (1e9, False), (math.inf, False)])
def test_only_a_step_that_lasts_much_longer_than_the_others_is_sampled(
    tmp_path: Path, usual_ns: float, is_long: bool
) -> None:
    steps: Any = UnderWay(number=40, usual_ns=usual_ns)
    kind = stack_samples._Kind(seconds=60.0, of_long_steps=True)
    sampler = stack_samples._Sampler(tmp_path / stack_samples_file(36), kind, steps)
    sampler.start()
    prune(0.9)
    sampler.stop(wait=True)
    found = list(read_stack_samples(tmp_path))
    assert len(found) == is_long
    assert is_long or steps.looks == 1  # the next one would be when the step is long
    for samples in found:
        assert (samples.first_step, samples.requested, samples.of_long_steps) == (36, False, True)
        assert (samples.times_ns - samples.waited_ns - steps.began_ns >= stack_samples.LEAST_SECONDS * 1e9).all()
        called = {(site.function, site.called) for stack in samples.stacks for site in stack[:1]}
        assert ("prune", "time.sleep") in called


def test_later_blocks_are_sampled_in_pairs_ever_more_rarely() -> None:
    sampled = [block for block in range(100) if stack_samples.is_sampled(block)]
    assert sampled == [16, 17, 24, 25, 32, 33, 48, 49, 64, 65, 96, 97]
