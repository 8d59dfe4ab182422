"""Where steps begin and end, told and guessed."""

from pathlib import Path

from traincope.events import OPEN, Flag, Kind
from traincope.record.steps import Steps
from traincope.record.writer import Shared, ThreadWriter
from traincope.store.segments import read_segment


class Training:
    """A training as the hooks would tell it, and the steps that came of it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "main-00000.seg"
        shared = Shared(directory, segments_per_thread=2)
        self.steps = Steps(ThreadWriter(shared, thread="main"), shared)

    def iteration(self, *, accumulate: int = 1, optimizer: int = 1) -> None:
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
        training.steps.stepped(1)
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
        training.iteration(optimizer=1)
        training.steps.stepped(2)
    training.steps.finish()
    assert [step for step, _, _ in training.recorded()] == [0, 1]


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
