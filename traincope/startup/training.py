"""Begin and end the recording of a process whose script knows nothing of it."""

import atexit
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType

from traincope.record.guard import guard
from traincope.record.options import OUT_VARIABLE, Options
from traincope.record.run import Run, active_run
from traincope.startup.notes import Note, write_note
from traincope.store.layout import RUN_FILE


class UnaskedRun(Run):
    """What the script does not know of, it cannot mean: a run that it begins itself takes this one's place."""

    def gives_way_to(self, inner: Run) -> bool:
        """End, and remove what was recorded: two runs of one training would be one too many."""
        recorder = self._recorder
        self._stop(None, None, False)
        out = inner._options.out or os.environ.get(OUT_VARIABLE, "")
        write_note(Note.OWN_RUN, Path(out).absolute() if out else "")
        if recorder is not None:
            _discard(recorder.directory, with_run=str(out) != os.environ.get(OUT_VARIABLE))
        return True


@guard
def begin() -> None:
    """Record from here to the end of the process, unless the script does so already."""
    own = active_run()
    if own is not None:
        write_note(Note.OWN_RUN, own.directory or "")
        return
    run = UnaskedRun(Options())
    run.__enter__()
    _end_with_the_process(run)
    write_note(Note.TRAINS)


def _end_with_the_process(run: Run) -> None:
    """An error nobody catches ends it at once, a thread that is joined later may never end; else the exit does."""
    over = False

    def end(error: BaseException | None) -> None:
        nonlocal over
        if not over:
            over = True
            run.end_with_the_process(_cause(error))

    sys.excepthook = _then(end, sys.excepthook)
    if parent_process() is None:
        atexit.register(lambda: end(getattr(sys, "last_value", None)))
    else:
        # multiprocessing catches what its children raise, and ends a forked one without `atexit`.
        Finalize(None, lambda: end(sys.exc_info()[1]), exitpriority=0)


Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def _then(end: Callable[[BaseException | None], None], previous: Hook) -> Hook:
    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        end(error)
        previous(kind, error, traceback)

    return excepthook


def _cause(error: BaseException | None) -> BaseException | None:
    """`sys.exit(1)` in an `except` is how torch.multiprocessing passes an error on."""
    if isinstance(error, SystemExit) and error.code and error.__context__ is not None:
        return error.__context__
    return error


def _discard(rank: Path, *, with_run: bool) -> None:
    """Remove what one rank recorded; the last of them takes the attempt with it, and the run if nobody needs it."""
    shutil.rmtree(rank, ignore_errors=True)
    with suppress(OSError):
        rank.parent.rmdir()
        if with_run:
            (rank.parents[1] / RUN_FILE).unlink()
            rank.parents[1].rmdir()
