"""Begin and end the recording of a process whose script does not call traincope. Inject faults that were asked for."""

import atexit
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType

from traincope.inject import inject_requested
from traincope.record.instrumentation.guard import guard
from traincope.record.run import Run, active_run
from traincope.record.session.ending import fatal_error, is_interactive
from traincope.record.session.options import OUT_VARIABLE, with_site
from traincope.startup.notes import Note, write_note
from traincope.startup.rank_exits import has_other_ranks
from traincope.store.job.launcher import NOTES_VARIABLE
from traincope.store.layout import RUN_FILE


class AutomaticRun(Run):
    """A run that `traincope run` began. A run that the script begins itself replaces it."""

    def __init__(self) -> None:
        super().__init__(with_site({}))
        self._began_wall_ns = time.time_ns()

    def after_first_step(self, call: Callable[[], None]) -> None:
        """Call once, after the first step of the training."""
        recorder = self._recorder
        if recorder is None:
            return

        def between_steps() -> None:
            if recorder.shared.step > 0:
                recorder.remove_listener(between_steps)
                call()

        recorder.between_steps(between_steps)

    def stay_provisional(self) -> None:
        """Take no place in an attempt. The report adds the rank's record if no other has its number."""
        if self._recorder is not None:
            self._recorder.stay_provisional()

    def end_with_the_process(self, error: BaseException | None) -> None:
        """End the run. Delete the record of a process that only prepared the training of the ranks that it started."""
        recorder, prepared = self._recorder, guard(self._only_prepared)(error)
        if recorder is not None and prepared:
            recorder.withdraw()
        super().end_with_the_process(error)
        if recorder is not None and prepared:
            shutil.rmtree(recorder.directory, ignore_errors=True)

    def _only_prepared(self, error: BaseException | None) -> bool:
        """Return whether it has no place, because it had neither a group nor a step, and others have begun since.

        A rank of a launcher, and a process that failed, may have had no time for a group.
        """
        recorder = self._recorder
        if recorder is None or recorder.place is not None or recorder.run is None:
            return False
        if error is not None or recorder.identity.rank is not None:
            return False
        return has_other_ranks(recorder.run, since_wall_ns=self._began_wall_ns)

    def gives_way_to(self, inner: Run) -> bool:
        """End and delete this recording, because the script records the training itself."""
        recorder = self._recorder
        self._stop(None, None, False)
        out = inner._options.out or os.environ.get(OUT_VARIABLE, "")
        write_note(Note.OWN_RUN, Path(out).absolute() if out else "")
        if recorder is not None:
            _discard(recorder.directory, with_run=str(out) != os.environ.get(OUT_VARIABLE))
        return True


@guard
def begin(after_first_step: Callable[[], None], fails: bool = False) -> Callable[[BaseException | None], None] | None:
    """Record until the end of the process, unless the script already records, or no command waits for the records.

    `fails`: the process ends before it trains, so it takes no place in an attempt. Returns what ends the recording,
    which happens once.
    """
    inject_requested()
    if NOTES_VARIABLE not in os.environ:
        return None
    script_run = active_run()
    if script_run is not None:
        write_note(Note.OWN_RUN, script_run.directory or "")
        return None
    run = AutomaticRun()
    run.__enter__()
    if fails:
        run.stay_provisional()
    run.after_first_step(after_first_step)
    end = _end_with_the_process(run)
    write_note(Note.TRAINS)
    return end


def _end_with_the_process(run: Run) -> Callable[[BaseException | None], None]:
    """End the run at an uncaught error or at exit.

    An error ends it at once, because a thread that the interpreter joins later may never end.
    """
    over = False

    def end(error: BaseException | None) -> None:
        nonlocal over
        if not over:
            run.end_with_the_process(_cause(error))
            over = True

    if hasattr(sys, "excepthook"):  # a training may have deleted it
        sys.excepthook = _chained(end, sys.excepthook)
    if parent_process() is None:
        atexit.register(lambda: end(fatal_error()))
    else:
        # multiprocessing catches exceptions of its children, and ends a forked child without `atexit`.
        Finalize(None, lambda: end(sys.exc_info()[1]), exitpriority=0)
    return end


Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def _chained(end: Callable[[BaseException | None], None], previous: Hook) -> Hook:
    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if is_interactive():
            previous(kind, error, traceback)
            return
        try:
            end(error)
        except BaseException as later:
            # A signal handler of the training raised it, as torch's does when a loader's worker was killed: often it
            # has the cause of the first one.
            later.__context__ = later.__context__ or error
            end(later)
            previous(kind, error, traceback)
            raise
        previous(kind, error, traceback)

    return excepthook


def _cause(error: BaseException | None) -> BaseException | None:
    """The error behind a `sys.exit(1)` in an `except`, by which torch.multiprocessing passes on errors."""
    if isinstance(error, SystemExit) and error.code and error.__context__ is not None:
        return error.__context__
    return error


def _discard(rank: Path, *, with_run: bool) -> None:
    """Delete the recording of one rank; the last rank also deletes the attempt, and the run if `with_run`."""
    shutil.rmtree(rank, ignore_errors=True)
    with suppress(OSError):
        rank.parent.rmdir()
        if with_run:
            (rank.parents[1] / RUN_FILE).unlink()
            rank.parents[1].rmdir()
