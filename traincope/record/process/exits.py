"""Hook on the calls that end a process: `sys.exit`, `os._exit`, and errors that end a thread.

A process that ends by `sys.exit(0)` in the middle of a training leaves no other sign of the line that ended it, and
the interpreter has dropped its exit code when it calls what is registered for the exit. `os._exit` runs nothing any
more. An error in a thread is printed, and the process goes on without that thread.
"""

import functools
import os
import sys
import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from traincope.events import LEFT, THREAD_ENDED
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.session.ending import ending_of, hide_recorder, leaving
from traincope.record.session.recorder import Recorder


class Exits:
    """Hook on `sys.exit`, `os._exit` and `threading.excepthook`."""

    name = "exits"
    level = 0

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._patches.replace(sys, "exit", _noting(guard(self._note_exit), sys.exit))
        self._patches.replace(os, "_exit", _noting(guard(self._note_process_exit), os._exit))
        self._patches.replace(threading, "excepthook", _noting(guard(self._note_thread), threading.excepthook))

    def remove(self) -> None:
        self._patches.restore()

    def _note_exit(self, status: object = None) -> None:
        """Keep the call until the run ends cleanly: the exception of any other code has the line itself. In another
        thread than the main one, `sys.exit` ends that thread only.
        """
        recorder = self._recorder
        if recorder.active and threading.get_ident() == threading.main_thread().ident:
            recorder.exit_call = monotonic_ns(), self._details("sys.exit", status)

    def _note_process_exit(self, status: object = None) -> None:
        if self._recorder.active:
            self._recorder.event(LEFT, self._details("os._exit", status))

    def _details(self, call: str, status: object) -> dict[str, Any]:
        recorder, error = self._recorder, SystemExit(status)
        error.__context__ = sys.exception()
        return {**leaving(error, messages=recorder.keeps_messages, handled=recorder.handled), "call": call}

    def _note_thread(self, args: Any) -> None:
        recorder, error = self._recorder, args.exc_value
        if recorder.active and error is not None and not isinstance(error, SystemExit):
            details = ending_of(type(error), error, messages=recorder.keeps_messages).details
            recorder.event(THREAD_ENDED, {**details, "thread": getattr(args.thread, "name", "")})
            hide_recorder(error)


def _noting(note: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def noting(*args: Any, **kwargs: Any) -> Any:
        note(*args, *kwargs.values())
        return original(*args, **kwargs)

    return noting
