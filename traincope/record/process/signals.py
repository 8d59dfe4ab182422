"""Stacks of all threads at a signal, written by the signal's own handler in C.

A handler in Python runs only once the main thread is back in Python. A rank that hangs in a collective never is:
SIGTERM would no longer end it. `faulthandler` writes file, line and function of every thread at once, and then chains
to the previous action. A file that is not empty is the evidence; its name contains the signal.

`faulthandler` keeps one registration per signal and one file for crashes. The recorder leaves those that the training
registers itself, before the run or during it.

A handler in C reads the frames of other threads without Python's lock. If one of them runs, it may read a frame that
changes, and end the process. So it reads only the main thread where the training handles the signal itself and goes on.

At SIGURG, which ends no process, the stacks go into a file of their own. The node's agent sends it only if the rank
does not answer otherwise (`flight`): then C code holds the lock, and no thread changes its frames. That handler does
not chain, and lets the kernel restart the system call that it interrupts.
"""

import faulthandler
import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from traincope.private_files import file_mode
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.segments.rescue import without_handler
from traincope.record.session.recorder import Recorder
from traincope.store.job.process import caught_signals
from traincope.store.layout import FATAL_FILE, STACKS_FILE, signal_file

WATCHED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that end a process which does not handle them. Schedulers send all of these."""

STACKS_SIGNAL = signal.SIGURG
"""The node's agent asks for the stacks by it. A process ignores it by default."""

STATUS = Path("/proc/self/status")

_installed: "set[Signals]" = set()


class Signals:
    """Hook on the process's signals."""

    name = "signals"
    level = 0

    def __init__(self) -> None:
        self._files: dict[str, TextIO] = {}
        self._patches = Patches()
        self._registered: dict[signal.Signals, object] = {}
        self._enabled = False

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        caught = caught_signals(STATUS.read_text())
        for number in WATCHED:
            if _is_free(number, caught):
                self._registered[number] = handler = signal.getsignal(number)
                file = self._open(recorder.directory, signal_file(number.name))
                faulthandler.register(number, file=file, all_threads=handler is signal.SIG_DFL, chain=True)
        if _is_free(STACKS_SIGNAL, caught) and signal.getsignal(STACKS_SIGNAL) is signal.SIG_DFL:
            self._registered[STACKS_SIGNAL] = signal.SIG_DFL
            file = self._open(recorder.directory, STACKS_FILE)
            faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
        if not faulthandler.is_enabled():
            with without_handler():
                faulthandler.enable(self._open(recorder.directory, FATAL_FILE), all_threads=True)
            self._enabled = True
        self._yield_to_training()
        _installed.add(self)

    def remove(self) -> None:
        """Unregister the handlers. A signal whose handler the training has set since then keeps it."""
        _installed.discard(self)
        self._patches.restore()
        self.release_all()
        for name, file in self._files.items():
            file.close()
            path = self._recorder.directory / name
            if path.exists() and not path.stat().st_size:
                path.unlink()
        self._files.clear()

    def release_all(self) -> None:
        for number, handler in self._registered.items():
            if signal.getsignal(number) == handler:
                faulthandler.unregister(number)
        self._registered.clear()
        if self._enabled:
            with without_handler():
                faulthandler.disable()
            self._enabled = False

    def _yield_to_training(self) -> None:
        """Release every signal that the training registers from now on. Its registration stays when the run ends."""
        register, release = faulthandler.register, guard(self._release)
        enable = faulthandler.enable
        disable: Callable[[], Any] = faulthandler.disable

        @functools.wraps(register)
        def registering(*args: Any, **kwargs: Any) -> None:
            register(*args, **kwargs)
            release(args[0] if args else kwargs.get("signum"))

        @functools.wraps(enable)
        def enabling(*args: Any, **kwargs: Any) -> None:
            with without_handler():
                enable(*args, **kwargs)
            self._enabled = False

        @functools.wraps(disable)
        def disabling() -> Any:
            with without_handler():
                return disable()

        self._patches.replace(faulthandler, "register", registering)
        self._patches.replace(faulthandler, "enable", enabling)
        self._patches.replace(faulthandler, "disable", disabling)

    def _release(self, number: Any) -> None:
        self._registered.pop(number, None)

    def _open(self, directory: Path, name: str) -> TextIO:
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode())
        file = os.fdopen(descriptor, "a", encoding="utf-8")  # `flight` appends to one of them too
        self._files[name] = file
        return file


def _is_free(number: signal.Signals, caught: int) -> bool:
    """Return whether the signal has a Python handler or the default action.

    Any other caught signal has a handler in C, most likely the training's `faulthandler`.
    """
    handler = signal.getsignal(number)
    if handler is signal.SIG_DFL:
        return not caught >> (number - 1) & 1
    return handler is not signal.SIG_IGN and handler is not None


def _forked() -> None:
    """Release the signals in a forked child: they are not the rank's."""
    for hook in _installed:
        hook.release_all()
    _installed.clear()


os.register_at_fork(after_in_child=_forked)
