"""A sample is taken between two instructions of the training. What its own code raises there must reach it."""

import signal
from typing import Any

import pytest

from traincope.record.process import stack_samples


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
