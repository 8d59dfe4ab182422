"""What a signal found: the stacks of all threads, written by the signal's own handler in C.

A handler in Python would only run once the main thread is back in Python, and a rank that hangs in
a collective never is: SIGTERM would no longer end it. `faulthandler` writes file, line and function
of every thread at once, then does what would have happened without it. A file that is not empty is
the evidence; which one tells the signal.
"""

import faulthandler
import os
import signal
from pathlib import Path
from typing import TextIO

from traincope.record.recorder import Recorder
from traincope.store.layout import FATAL_FILE, signal_file

WATCHED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that end a process which does not handle them; schedulers send all of these."""


_installed: "set[Signals]" = set()


class Signals:
    """Hook on the process's signals."""

    name = "signals"
    level = 0

    def __init__(self) -> None:
        self._files: dict[str, TextIO] = {}
        self._registered: dict[signal.Signals, object] = {}
        self._enabled = False

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        for number in WATCHED:
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN and handler is not None:
                file = self._open(recorder.directory, signal_file(number.name))
                faulthandler.register(number, file=file, all_threads=True, chain=True)
                self._registered[number] = handler
        if not faulthandler.is_enabled():
            faulthandler.enable(self._open(recorder.directory, FATAL_FILE), all_threads=True)
            self._enabled = True
        _installed.add(self)

    def remove(self) -> None:
        """A signal whose handler the training has set since is left to it."""
        _installed.discard(self)
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
            faulthandler.disable()
            self._enabled = False

    def _open(self, directory: Path, name: str) -> TextIO:
        file = (directory / name).open("w", encoding="utf-8")
        self._files[name] = file
        return file


def _forked() -> None:
    """A child's signals are not the rank's."""
    for hook in _installed:
        hook.let_go()
    _installed.clear()


os.register_at_fork(after_in_child=_forked)
