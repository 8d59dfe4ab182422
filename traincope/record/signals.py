"""What a signal found: the stacks of all threads, written by the signal's own handler in C.

A handler in Python would only run once the main thread is back in Python, and a rank that hangs in
a collective never is: SIGTERM would no longer end it. `faulthandler` writes file, line and function
of every thread at once, then does what would have happened without it. A file that is not empty is
the evidence; which one tells the signal.

`faulthandler` keeps one registration a signal and one file for crashes, so those that the training
makes for itself, before the run or in it, are left to it.
"""

import faulthandler
import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from traincope.record.guard import guard
from traincope.record.patching import Patches
from traincope.record.recorder import Recorder
from traincope.record.rescue import aside
from traincope.store.layout import FATAL_FILE, signal_file

WATCHED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that end a process which does not handle them; schedulers send all of these."""

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
        caught = _caught()
        for number in WATCHED:
            if _is_free(number, caught):
                self._registered[number] = signal.getsignal(number)
                file = self._open(recorder.directory, signal_file(number.name))
                faulthandler.register(number, file=file, all_threads=True, chain=True)
        if not faulthandler.is_enabled():
            with aside():
                faulthandler.enable(self._open(recorder.directory, FATAL_FILE), all_threads=True)
            self._enabled = True
        self._leave_theirs()
        _installed.add(self)

    def remove(self) -> None:
        """A signal whose handler the training has set since is left to it."""
        _installed.discard(self)
        self._patches.restore()
        self.let_go()
        for name, file in self._files.items():
            file.close()
            path = self._recorder.directory / name
            if path.exists() and not path.stat().st_size:
                path.unlink()
        self._files.clear()

    def let_go(self) -> None:
        for number, handler in self._registered.items():
            if signal.getsignal(number) == handler:
                faulthandler.unregister(number)
        self._registered.clear()
        if self._enabled:
            with aside():
                faulthandler.disable()
            self._enabled = False

    def _leave_theirs(self) -> None:
        """What the training registers from now on is its own, and stays when the run ends."""
        register, leave = faulthandler.register, guard(self._leave)
        enable = faulthandler.enable
        disable: Callable[[], Any] = faulthandler.disable

        @functools.wraps(register)
        def registering(*args: Any, **kwargs: Any) -> None:
            register(*args, **kwargs)
            leave(args[0] if args else kwargs.get("signum"))

        @functools.wraps(enable)
        def enabling(*args: Any, **kwargs: Any) -> None:
            with aside():
                enable(*args, **kwargs)
            self._enabled = False

        @functools.wraps(disable)
        def disabling() -> Any:
            with aside():
                return disable()

        self._patches.replace(faulthandler, "register", registering)
        self._patches.replace(faulthandler, "enable", enabling)
        self._patches.replace(faulthandler, "disable", disabling)

    def _leave(self, number: Any) -> None:
        self._registered.pop(number, None)

    def _open(self, directory: Path, name: str) -> TextIO:
        file = (directory / name).open("w", encoding="utf-8")
        self._files[name] = file
        return file


def _caught() -> int:
    """The signals that somebody handles, in C or in Python, as the kernel's bits: the lowest is signal 1's."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("SigCgt:"))
    return int(line.split()[1], 16)


def _is_free(number: signal.Signals, caught: int) -> bool:
    """Whether Python handles it, or nobody; what else is caught is C's, most likely the training's `faulthandler`."""
    handler = signal.getsignal(number)
    if handler is signal.SIG_DFL:
        return not caught >> (number - 1) & 1
    return handler is not signal.SIG_IGN and handler is not None


def _forked() -> None:
    """A child's signals are not the rank's."""
    for hook in _installed:
        hook.let_go()
    _installed.clear()


os.register_at_fork(after_in_child=_forked)
