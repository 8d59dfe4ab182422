"""Where steps begin and end, told and guessed."""

from dataclasses import dataclass
from pathlib import Path

import torch

from traincope.events import OPEN, Flag, Kind
from traincope.record.steps import LONGEST_ACCUMULATION, Steps
from traincope.record.writer import Shared, ThreadWriter
from traincope.store.segments import read_segment


@dataclass
class Optimizer:
    """One, or a model, as far as steps know it; all alike, and none hashable."""


FIRST, SECOND = Optimizer(), Optimizer()


class Training:
    """A training as the hooks would tell it, and the steps that came of it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "main-00000.seg"
        shared = Shared(directory, segments_per_thread=2)
        self.steps = Steps(ThreadWriter(shared, thread="main"), shared)

    def iteration(self, *, accumulate: int = 1, optimizer: Optimizer = FIRST) -> None:
        for _ in range(accumulate):
            self.steps.before_work()  # data
            self.steps.before_work()  # forward
            self.steps.trained()  # backward
        self.steps.stepped(optimizer)

    def recorded(self) -> list[tuple[int, bool, Flag]]:
        """(step, closed, flags) of every step."""
        records = read_segment(self._path).records
        steps = records[records["kind"] == Kind.STEP]
        return [(int(step["step"]), step["end_ns"] != OPEN, Flag(int(step["flags"]))) for step in steps]


NONE = Flag(0)


def test_marks_at_the_end_of_each_iteration(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(3):
        training.iteration()
        training.steps.mark()
    training.steps.finish()
    assert training.recorded() == [(0, True, NONE), (1, True, NONE), (2, True, NONE), (3, True, Flag.PARTIAL)]


def test_marks_at_the_top_of_each_iteration_after_the_batch_was_fetched(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(2):
        training.steps.before_work()
        training.steps.mark()
        training.steps.trained()
        training.steps.stepped(FIRST)
    training.steps.finish()
    assert training.recorded() == [(0, True, NONE), (1, True, NONE)]


def test_without_marks_the_first_optimizer_is_the_anchor(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(2):
        training.iteration(accumulate=4)
    training.steps.finish()
    assert training.recorded() == [(0, True, Flag.GUESSED), (1, True, Flag.GUESSED)]


def test_a_second_optimizer_begins_no_step(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(2):
        training.iteration(optimizer=FIRST)
        training.steps.stepped(SECOND)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1]


def test_one_that_begins_later_and_steps_without_the_first_takes_its_place(tmp_path: Path) -> None:
    """Its first step may have been beside the first one's, so it belongs to the step before."""
    training = Training(tmp_path)
    for optimizer in (FIRST, SECOND, FIRST):
        for _ in range(4):
            training.iteration(optimizer=optimizer)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == list(range(4 + 3 + 3))


def test_one_that_steps_more_often_from_the_beginning_takes_nobodys_place(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(2):
        training.iteration(optimizer=FIRST)
        for _ in range(5):
            training.iteration(optimizer=SECOND)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1, 2]


def test_one_that_begins_where_the_first_is_gone_takes_its_place_at_once(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(3):
        one = Optimizer()
        for _ in range(4):
            training.iteration(optimizer=one)
        del one
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == list(range(12))


def test_who_is_zeroed_later_and_without_the_first_takes_its_place(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for owner in (FIRST, SECOND):
        for _ in range(4):
            training.steps.before_work()
            training.steps.trained()
            training.steps.zeroed(owner)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == list(range(4 + 3))


def test_marks_win_over_guesses(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.iteration()
    training.steps.mark()
    for _ in range(2):  # two optimizer steps an iteration
        training.iteration()
        training.iteration()
        training.steps.mark()
    training.steps.finish()
    assert [(step, flags) for step, _, flags in training.recorded()] == [
        (0, NONE),
        (1, NONE),
        (2, NONE),
        (3, Flag.PARTIAL),
    ]


def test_a_step_that_is_not_finished_stays_open(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.steps.before_work()
    assert training.recorded() == [(0, False, NONE)]


def test_an_optimizer_that_lives_is_waited_for_as_long_as_anybody_accumulates(tmp_path: Path) -> None:
    idle = torch.optim.SGD([torch.zeros(1)])
    training = Training(tmp_path)
    for _ in range(LONGEST_ACCUMULATION + 4):
        training.steps.before_work()
        training.steps.trained()
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1, 2, 3, 4]
    del idle


def test_gradients_zeroed_between_forward_and_backward_tell_of_the_step_before(tmp_path: Path) -> None:
    """The first zeroing after a backward is in the second iteration: the first two are one step."""
    training = Training(tmp_path)
    for _ in range(4):
        training.steps.before_work()
        training.steps.zeroed(FIRST)
        training.steps.trained()
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1, 2]


def test_who_was_zeroed_first_after_a_backward_tells_and_nobody_else(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(3):
        for owner in (FIRST, SECOND):
            training.steps.before_work()
            training.steps.trained()
            training.steps.zeroed(owner)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1, 2, 3]


def test_once_an_optimizer_steps_zeroed_gradients_begin_no_step(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(3):
        for _ in range(2):  # microbatches, the first of which is thrown away
            training.steps.before_work()
            training.steps.trained()
            training.steps.stepping()
            training.steps.zeroed(FIRST)
        training.steps.stepped(FIRST)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1, 2]
