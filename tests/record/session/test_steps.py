"""Boundaries of steps, marked and inferred."""

from dataclasses import dataclass
from pathlib import Path

import torch

from traincope.events import OPEN, Flag, Kind
from traincope.record.segments.writer import Shared, ThreadWriter
from traincope.record.session.steps import MAX_ACCUMULATION, Steps
from traincope.store.segments.segments import read_segment


@dataclass
class Optimizer:
    """An optimizer or model, reduced to what steps need: all are equal, and none is hashable."""


FIRST, SECOND = Optimizer(), Optimizer()


class Training:
    """A training as the hooks report it, and the resulting steps."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "main-00000.seg"
        shared = Shared(directory, segments_per_thread=2)
        self.steps = Steps(ThreadWriter(shared, thread="main"), shared)

    def iteration(self, *, accumulate: int = 1, optimizer: Optimizer = FIRST) -> None:
        for _ in range(accumulate):
            self.steps.before_work()  # data
            self.steps.before_work()  # forward
            self.steps.backward_began()  # backward
        self.steps.optimizer_stepped(optimizer)

    def recorded(self) -> list[tuple[int, bool, Flag]]:
        """Return (step, closed, flags) of every step."""
        records = read_segment(self._path).records
        steps = records[records["kind"] == Kind.STEP]
        return [(int(step["step"]), step["end_ns"] != OPEN, Flag(int(step["flags"]))) for step in steps]


NONE = Flag(0)


def test_work_before_a_training_resumes_is_no_step(tmp_path: Path) -> None:
    """One batch, whose gradients are zeroed, only prepares the training. Later the same event changes nothing."""
    training = Training(tmp_path)
    training.steps.before_work()
    training.steps.backward_began()
    training.steps.gradients_zeroed(FIRST)
    training.steps.resumed(7)
    for _ in range(2):
        training.steps.before_work()
        training.steps.optimizer_steps()
        training.steps.optimizer_stepped(FIRST)
        training.steps.resumed(7)
        training.steps.mark()
    assert training.recorded() == [(0, True, Flag.PARTIAL), (1, True, NONE), (2, True, NONE), (3, False, NONE)]


def test_a_rollback_undoes_the_open_step_and_those_before_it(tmp_path: Path) -> None:
    """The state had had 7 steps. The rollback to 8 comes in its tenth step, which the recorder numbers 3."""
    training = Training(tmp_path)
    training.steps.before_work()
    training.steps.resumed(7)
    for _ in range(2):
        training.iteration()
        training.steps.mark()
    assert training.steps.rolled_back(10) is None, "the state has had 9 steps"
    training.iteration()
    assert training.steps.rolled_back(8) == (2, 3)
    training.steps.mark()
    for _ in range(2):
        training.iteration()
        training.steps.mark()
    assert training.steps.rolled_back(9) == (1, 5), "the open step has not trained, so it is not undone"
    training.iteration()
    assert training.steps.rolled_back(9) == (1, 6)
    assert [step for step, _, flags in training.recorded() if flags == Flag.PARTIAL] == [0]


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
        training.steps.backward_began()
        training.steps.optimizer_stepped(FIRST)
    training.steps.finish()
    assert training.recorded() == [(0, True, NONE), (1, True, NONE)]


def test_without_marks_the_first_optimizer_is_the_anchor(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(2):
        training.iteration(accumulate=4)
    training.steps.finish()
    assert training.recorded() == [(0, True, Flag.GUESSED), (1, True, Flag.GUESSED)]


def test_a_step_that_no_fetch_and_no_module_shows_ends_with_its_update(tmp_path: Path) -> None:
    """Two backward calls per update. An iteration with a module among them ends with the next iteration."""
    training = Training(tmp_path)
    begun = []
    for shown in (False, False, True, False, False):
        if shown:
            training.steps.before_work()
        for _ in range(2):
            begun.append(training.steps.before_backward())
            training.steps.backward_began()
        training.steps.optimizer_steps()
        training.steps.optimizer_stepped(FIRST)
        begun.append(training.steps.update_ended())
    training.steps.finish()
    ended = [(number, True, Flag.GUESSED) for number in range(4)]
    assert training.recorded() == [*ended, (4, True, Flag.PARTIAL)]
    assert begun == [True, False, True, *[False, False, True], *[False] * 3, *[False, False, True] * 2]


def test_marks_decide_without_modules_too(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(2):
        training.steps.mark()
        assert not training.steps.before_backward()
        training.steps.backward_began()
        training.steps.optimizer_stepped(FIRST)
        assert not training.steps.update_ended()
    training.steps.finish()
    assert training.recorded() == [(0, True, NONE), (1, True, NONE)]


def test_a_second_optimizer_does_not_begin_a_step(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(2):
        training.iteration(optimizer=FIRST)
        training.steps.optimizer_stepped(SECOND)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1]


def test_a_later_optimizer_that_steps_without_the_first_replaces_it(tmp_path: Path) -> None:
    """The later optimizer's first step may coincide with the first optimizer's, so it belongs to the step before."""
    training = Training(tmp_path)
    for optimizer in (FIRST, SECOND, FIRST):
        for _ in range(4):
            training.iteration(optimizer=optimizer)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == list(range(4 + 3 + 3))


def test_an_optimizer_that_steps_more_often_from_the_start_replaces_nothing(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(2):
        training.iteration(optimizer=FIRST)
        for _ in range(5):
            training.iteration(optimizer=SECOND)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1, 2]


def test_an_optimizer_replaces_a_deleted_one_at_once(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(3):
        optimizer = Optimizer()
        for _ in range(4):
            training.iteration(optimizer=optimizer)
        del optimizer
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == list(range(12))


def test_gradients_zeroed_later_without_the_first_owner_replace_it(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for owner in (FIRST, SECOND):
        for _ in range(4):
            training.steps.before_work()
            training.steps.backward_began()
            training.steps.gradients_zeroed(owner)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == list(range(4 + 3))


def test_marks_have_precedence_over_inferred_steps(tmp_path: Path) -> None:
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


def test_an_unfinished_step_stays_open(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.steps.before_work()
    assert training.recorded() == [(0, False, NONE)]


def test_a_live_optimizer_may_accumulate_many_backwards(tmp_path: Path) -> None:
    idle = torch.optim.SGD([torch.zeros(1)])
    training = Training(tmp_path)
    for _ in range(MAX_ACCUMULATION + 4):
        training.steps.before_work()
        training.steps.backward_began()
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1, 2, 3, 4]
    del idle


def test_gradients_zeroed_between_forward_and_backward_end_the_previous_step(tmp_path: Path) -> None:
    """The first zeroing after a backward is in the second iteration: the first two are one step."""
    training = Training(tmp_path)
    for _ in range(4):
        training.steps.before_work()
        training.steps.gradients_zeroed(FIRST)
        training.steps.backward_began()
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1, 2]


def test_only_the_first_owner_zeroed_after_a_backward_ends_steps(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(3):
        for owner in (FIRST, SECOND):
            training.steps.before_work()
            training.steps.backward_began()
            training.steps.gradients_zeroed(owner)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1, 2, 3]


def test_zeroed_gradients_are_ignored_once_an_optimizer_steps(tmp_path: Path) -> None:
    training = Training(tmp_path)
    for _ in range(3):
        for _ in range(2):  # microbatches, the first of which is discarded
            training.steps.before_work()
            training.steps.backward_began()
            training.steps.optimizer_steps()
            training.steps.gradients_zeroed(FIRST)
        training.steps.optimizer_stepped(FIRST)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1, 2]
