"""Stacks of all threads at a signal, written by the signal's own handler in C. Opt-in (`signal_stacks`).

A handler in Python runs only once the main thread is back in Python. A rank that hangs in a collective never is:
SIGTERM would no longer end it. `faulthandler` writes file, line and function of every thread at once, and then chains
to the previous action. A file that is not empty is the evidence; its name contains the signal.

It is opt-in because `faulthandler` writes to descriptors that stay open. If the training closes descriptors that it
does not know, the numbers become those of its own files. So they are compared with our files once a second, and a
handler whose file is gone is removed.

`faulthandler` keeps one registration per signal and one file for crashes. The recorder leaves those that the training
registers itself, before the run or during it.

A handler in C reads the frames of other threads without Python's lock. If one of them runs, it may read a frame that
changes, and end the process. So it reads only the main thread where the training handles the signal itself and goes on.

At SIGURG, which ends no process, the stacks go into a file of their own. `traincope hang --stacks=signal` sends it, and
only if the rank does not answer otherwise (`flight`): then C code holds the lock, and no thread changes its frames.
That handler does not chain, and lets the kernel restart the system call that it interrupts.
"""

import faulthandler
import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from traincope.private_files import file_mode
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.segments.rescue import without_handler
from traincope.record.session.recorder import Recorder
from traincope.store.job.process import caught_signals
from traincope.store.layout import FATAL_FILE, STACKS_FILE, signal_file

WATCHED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that end a process which does not handle them. Schedulers send all of these, and ask by them."""

STACKS_SIGNAL = signal.SIGURG
"""A person asks for the stacks by it. A process ignores it by default."""

STATUS = Path("/proc/self/status")

_installed: "set[Signals]" = set()


class Signals:
    """Hook on the process's signals."""

    name = "signals"
    level = 0

    def __init__(self) -> None:
        self._files: dict[str, tuple[int, os.stat_result]] = {}
        """Name of a file -> its descriptor, and what it was when it was opened."""
        self._patches = Patches()
        self._registered: dict[signal.Signals, object] = {}
        self._enabled = False

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        if recorder.signal_stacks:
            self._register(recorder.directory)
            recorder.now_and_then(self._check)
        self._yield_to_training()
        _installed.add(self)

    def remove(self) -> None:
        """Unregister the handlers. A signal whose handler the training has set since then keeps it."""
        self._recorder.remove_listener(self._check)
        _installed.discard(self)
        self._patches.restore()
        self.release_all()
        for name, (descriptor, _) in self._files.items():
            if self._is_ours(name):
                os.close(descriptor)
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

    def _register(self, directory: Path) -> None:
        caught = caught_signals(STATUS.read_text())
        for number in WATCHED:
            if _is_free(number, caught):
                self._registered[number] = handler = signal.getsignal(number)
                file = self._open(directory, signal_file(number.name))
                faulthandler.register(number, file=file, all_threads=handler is signal.SIG_DFL, chain=True)
        if _is_free(STACKS_SIGNAL, caught) and signal.getsignal(STACKS_SIGNAL) is signal.SIG_DFL:
            self._registered[STACKS_SIGNAL] = signal.SIG_DFL
            file = self._open(directory, STACKS_FILE)
            faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
        if not faulthandler.is_enabled():
            with without_handler():
                faulthandler.enable(self._open(directory, FATAL_FILE), all_threads=True)
            self._enabled = True

    def _check(self) -> None:
        """Release the signals if the training has closed a descriptor."""
        if not all(map(self._is_ours, self._files)):
            self.release_all()
            self._recorder.remove_listener(self._check)

    def _is_ours(self, name: str) -> bool:
        """Return whether the number still leads to the file that was opened."""
        descriptor, opened = self._files[name]
        try:
            return os.path.samestat(os.fstat(descriptor), opened)
        except OSError:
            return False

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

    def _open(self, directory: Path, name: str) -> int:
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode())
        self._files[name] = descriptor, os.fstat(descriptor)  # `flight` appends to one of them too
        return descriptor


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
