"""Start, forks, disturbances and end of a process: its exit code is unchanged, and its record is readable."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import traincope
from tests.faults.victims.children import in_a_child
from tests.faults.victims.trainings import FAULT_STEP, STEPS, Outcome, train, train_observed
from tests.faults.victims.victims import Victims
from traincope.events import OPEN, Kind
from traincope.record.session.recorder import MAX_WRITERS
from traincope.report.document.document import to_document
from traincope.store import RankRecords, read_run


def only_rank(path: Path) -> RankRecords:
    run = read_run(path)
    assert run.problems == ()
    (rank,) = run.ranks
    assert rank.problems == ()
    return rank


def spans(rank: RankRecords, name: str = "train one step") -> int:
    records = [rank.thread(thread) for thread in rank.threads]
    numbers = [int(n) for thread in records for n in thread["name"][thread["kind"] == Kind.SPAN]]
    return [rank.name(number) for number in numbers].count(name)


def end_in_the_middle(out: str, how: str) -> None:
    endings: dict[str, Callable[[], object]] = {
        "raise": lambda: {}["missing"],
        "exit": lambda: sys.exit(7),
        "os._exit": lambda: os._exit(9),
        "interrupt": lambda: signal.raise_signal(signal.SIGINT),
        "terminate": lambda: signal.raise_signal(signal.SIGTERM),
        "abort": os.abort,
    }
    train_observed(out, lambda step: endings[how]() if step == FAULT_STEP else None)  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("how", "code", "ending"),
    [
        ("raise", 1, "KeyError"),
        ("exit", 7, "SystemExit"),
        ("os._exit", 9, None),
        ("interrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("terminate", -signal.SIGTERM, None),
        ("abort", -signal.SIGABRT, None),
    ],
)
def test_a_process_ends_as_without_the_recorder_and_keeps_its_steps(
    victims: Victims, tmp_path: Path, how: str, code: int, ending: str | None
) -> None:
    ended = victims.run(end_in_the_middle, tmp_path / "run", how)
    assert ended.code == code
    rank = only_rank(tmp_path / "run")
    assert rank.info.ending == ending
    assert spans(rank) == FAULT_STEP
    steps = rank.thread("main")[rank.thread("main")["kind"] == Kind.STEP]
    assert (steps["end_ns"] == OPEN).tolist() == [False] * (len(steps) - 1) + [True]


def leave_the_run_open(out: str, how: str) -> Outcome:
    """Nothing calls `__exit__`, or only the interpreter during its shutdown."""
    if how == "generator":
        globals()["kept"] = holding(out)
        return next(globals()["kept"])  # type: ignore[no-any-return]
    run = traincope.run(out, budget=None)
    run.__enter__()
    outcome = train()
    if how == "error":
        raise LookupError("not caught")
    return outcome


def holding(out: str) -> Iterator[Outcome]:
    with traincope.run(out, budget=None):
        yield train()
        yield {}


@pytest.mark.parametrize(
    ("how", "code", "ending"), [("enter", 0, "clean"), ("generator", 0, "clean"), ("error", 1, "LookupError")]
)
def test_a_run_that_is_never_left_ends_with_the_process(
    victims: Victims, bare: Outcome, tmp_path: Path, how: str, code: int, ending: str
) -> None:
    ended = victims.run(leave_the_run_open, tmp_path / "run", how)
    assert (ended.code, ended.result) == (code, None if code else bare)
    assert ended.err == "" or (code == 1 and "not caught" in ended.err and "traincope/" not in ended.err)
    rank = only_rank(tmp_path / "run")
    assert (rank.info.ending, spans(rank)) == (ending, STEPS)


def write_spans(times: int) -> None:
    for _ in range(times):
        with traincope.span("in a thread"):
            pass


def train_among_threads(out: str) -> dict[str, Any]:
    """Daemons that write until the interpreter ends them, one that exits, one that raises, many at once."""

    def at(step: int) -> None:
        if step == FAULT_STEP:
            for target in (lambda: write_spans(1 << 60), lambda: write_spans(1 << 60)):
                threading.Thread(target=target, daemon=True).start()
            for target in (lambda: (write_spans(5), sys.exit(4)), lambda: (write_spans(5), os.stat("nowhere"))):
                thread = threading.Thread(target=target)
                thread.start()
                thread.join()

    threading.excepthook = lambda _: None
    return {"outcome": train_observed(out, at)}


def test_threads_that_die_or_never_end_are_harmless(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    ended = victims.run(train_among_threads, tmp_path / "run")
    assert (ended.code, ended.result, ended.err) == (0, {"outcome": bare}, "")
    rank = only_rank(tmp_path / "run")
    assert (rank.info.ending, spans(rank)) == ("clean", STEPS)
    assert spans(rank, "in a thread") > 10


def train_beside_many_threads(out: str) -> dict[str, Any]:
    """More threads at once than there are segments: descriptors and disk are the training's too."""
    many, descriptors = 3 * MAX_WRITERS, []
    together = threading.Barrier(many + 1)

    def work() -> None:
        write_spans(3)
        together.wait()
        together.wait()

    def at(step: int) -> None:
        if step == FAULT_STEP:
            for _ in range(many):
                threading.Thread(target=work).start()
            together.wait()
            descriptors.append(len(os.listdir("/proc/self/fd")))
            together.wait()

    return {"outcome": train_observed(out, at), "descriptors": descriptors[0]}


def test_many_threads_at_once_use_a_bounded_number_of_files(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    ended = victims.train(train_beside_many_threads, tmp_path / "run")
    assert (ended.code, ended.result["outcome"], ended.err) == (0, bare, "")
    assert ended.result["descriptors"] < 2 * MAX_WRITERS + 64
    rank = only_rank(tmp_path / "run")
    assert len(rank.threads) == MAX_WRITERS
    assert spans(rank, "in a thread") <= 3 * (MAX_WRITERS - 1)
    assert spans(rank, "in a thread") + rank.info.recorder["dropped"] >= 3 * 3 * MAX_WRITERS


def train_with_children(out: str, method: str) -> dict[str, Any]:
    """Fork a child that continues in the training's own code, and one that records a run of its own."""
    answers = []

    def at(step: int) -> None:
        if step != FAULT_STEP:
            return
        if method == "os.fork":
            answers.append(forked(lambda: traincope.step()))
            answers.append(forked(lambda: record_elsewhere(f"{out}-child")))
            return
        context: Any = multiprocessing.get_context(method)
        parent_end, child_end = context.Pipe()
        process = context.Process(target=in_a_child, args=(child_end,))
        process.start()
        answers.extend([0 if parent_end.recv() == "done" else 1, 0])
        process.join()
        process.close()

    try:
        return {"outcome": train_observed(out, at), "answers": answers}
    except SystemExit as end:
        os._exit(
            int(end.code or 0)
        )  # a forked child leaves the `with`; it would wait for gloo's threads, which it does not have


def forked(work: Callable[[], object]) -> int:
    """Return the exit code of a child that leaves through the training's own `with`."""
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def record_elsewhere(out: str) -> None:
    with traincope.run(out) as run:
        run.step()
        with traincope.span("in a child"):
            pass


@pytest.mark.parametrize("method", ["os.fork", "fork", "spawn"])
def test_children_do_not_change_their_parents_records(
    victims: Victims, bare: Outcome, tmp_path: Path, method: str
) -> None:
    ended = victims.train(train_with_children, tmp_path / "run", method)
    assert (ended.code, ended.result) == (0, {"outcome": bare, "answers": [0, 0]})
    rank = only_rank(tmp_path / "run")
    assert (rank.info.ending, spans(rank), spans(rank, "in a child")) == ("clean", STEPS, 0)
    if method == "os.fork":
        assert spans(only_rank(tmp_path / "run-child"), "in a child") == 1


def train_twice_and_nested(out: str) -> list[Outcome]:
    first = train_observed(f"{out}-1")

    def nested(step: int) -> None:
        if step == FAULT_STEP:
            with traincope.run(f"{out}-inner") as inner:
                inner.step()

    return [first, train_observed(f"{out}-2", nested)]


def test_a_second_run_records_and_a_nested_run_does_not(victims: Victims, bare: Outcome, tmp_path: Path) -> None:
    ended = victims.train(train_twice_and_nested, tmp_path / "run")
    assert (ended.code, ended.result) == (0, [bare, bare])
    assert "already recording" in ended.err
    first, second = (only_rank(tmp_path / f"run-{number}") for number in (1, 2))
    assert spans(first) == spans(second) == STEPS
    assert not (tmp_path / "run-inner").exists()


class Raises(logging.Handler):
    """A typical broken handler: it raises, and not only inside `Handler.handleError`."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(f"no log server for {record.getMessage()}")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even its name")


def train_where(out: str, what: str) -> Outcome:
    """Train in abnormal surroundings, with an error of the recorder that must be logged there."""
    if what == "the working directory is gone":
        os.mkdir("gone")
        rendezvous = os.getcwd()
        os.chdir("gone")
        os.rmdir(f"{rendezvous}/gone")
        os.getcwd = lambda: rendezvous  # type: ignore[method-assign] # for the group of the training
        Path.cwd = classmethod(lambda _: os.stat("."))  # type: ignore[method-assign, assignment]
    elif what == "HOME is missing":
        for name in ("HOME", "USER", "LOGNAME", "TMPDIR", "PATH"):
            os.environ.pop(name, None)
    elif what == "stdout and stderr are closed":
        os.close(1)
        os.close(2)
        sys.stdout.close()
        with suppress(OSError):
            sys.stderr.close()
    elif what == "logging raises":
        logging.getLogger().addHandler(Raises())
    traincope_error(what)
    return train_observed(out)


def traincope_error(what: str) -> None:
    """Make one hook fail at every step from now on."""
    from traincope.record.session.steps import Steps

    def fail(_: Steps) -> None:
        raise Unspeakable if what == "an error cannot be formatted" else ValueError("broken")

    Steps.mark = fail  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "what",
    [
        "the working directory is gone",
        "HOME is missing",
        "stdout and stderr are closed",
        "logging raises",
        "an error cannot be formatted",
    ],
)
def test_errors_of_the_recorder_stay_out_of_the_training_in_abnormal_surroundings(
    victims: Victims, bare: Outcome, tmp_path: Path, what: str
) -> None:
    ended = victims.train(train_where, tmp_path / "run", what)
    assert (ended.code, ended.result) == (0, bare)
    rank = only_rank(tmp_path / "run")
    assert (rank.info.ending, spans(rank)) == ("clean", STEPS)
    error_name = "Unspeakable" if what == "an error cannot be formatted" else "ValueError"
    assert rank.info.probes["run._mark_step"] == f"failed {STEPS} times: {error_name}"


def train_with_odd_input(out: str) -> dict[str, Any]:
    def at(step: int) -> None:
        if step == FAULT_STEP:
            for number in range(100_000):
                with traincope.span(f"request {number}"):
                    pass
            with traincope.span("x" * 10_000_000):
                pass
            for _ in range(200):
                traincope.event("dump", text="y" * 10_000_000 if not _ else "y" * 500_000, odd={1: {object}})
            traincope.event("z" * 10_000_000)
            traincope.log(**{"w" * 1_000_000: 1.0})

    with traincope.run(out, budget=None):
        outcome = train(at)
    return {"outcome": outcome}


def test_a_hundred_thousand_names_and_huge_ones_are_bounded_and_counted(
    victims: Victims, bare: Outcome, tmp_path: Path
) -> None:
    ended = victims.train(train_with_odd_input, tmp_path / "run")
    assert (ended.code, ended.result, ended.err) == (0, {"outcome": bare}, "")
    rank = only_rank(tmp_path / "run")
    assert spans(rank) == STEPS
    assert rank.info.recorder["names_refused"] > 10_000
    recorder = to_document(traincope.analyze(traincope.open_run(tmp_path / "run")))["recorder"]
    assert recorder["lost"]["names_refused"] == rank.info.recorder["names_refused"]
    assert max(map(len, rank.names)) <= 1024
    assert sum(path.stat().st_size for path in (tmp_path / "run").rglob("*.jsonl")) < 32 << 20
