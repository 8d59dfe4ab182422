"""Hook on the signals that the training handles in Python: the instant of each is recorded.

A scheduler asks a training to stop by a signal. A handler that only sets a flag leaves no other trace of that. The
training's handlers run as before, and `signal.getsignal` and `signal.signal` return them. Where a handler is older than
the run, only Python's part of it is exchanged: the kernel's action may be of the training's `faulthandler`, or have
flags of its own.
"""

import ctypes
import functools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from traincope.events import SIGNAL_HANDLED
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.process.signals import WATCHED
from traincope.record.session.recorder import Recorder

MAX_RECORDED = 8
"""Largest number of records of one signal. A training may use one for something else."""
ACTION_BYTES = 1024
"""More than any C library's `struct sigaction` has."""


class HandledSignals:
    """Hook on `signal.signal` and `signal.getsignal`."""

    name = "handled_signals"
    level = 0

    def __init__(self) -> None:
        self._patches = Patches()
        self._set: Callable[[int, Any], Any] = signal.signal
        self._get: Callable[[int], Any] = signal.getsignal
        self._num_recorded: Counter[int] = Counter()
        self._pid = 0

    def install(self, recorder: Recorder) -> None:
        self._recorder, self._pid = recorder, os.getpid()
        self._set, self._get, note = signal.signal, signal.getsignal, guard(self._note)

        @functools.wraps(signal.signal)
        def setting(signalnum: Any, handler: Any) -> Any:
            own = _training_handler(handler)  # early names of `signal.signal` return what is observed
            observed = callable(own) and signalnum in WATCHED
            return _training_handler(self._set(signalnum, _Observed(own, note) if observed else own))

        @functools.wraps(signal.getsignal)
        def getting(signalnum: Any) -> Any:
            return _training_handler(self._get(signalnum))

        self._patches.replace(signal, "signal", setting)
        self._patches.replace(signal, "getsignal", getting)
        for number, handler in self._handlers():
            self._exchange(number, _Observed(handler, note))

    def remove(self) -> None:
        self._patches.restore()
        for number, handler in self._handlers():
            self._exchange(number, _training_handler(handler))

    def _handlers(self) -> list[tuple[int, Any]]:
        """The handlers in Python. Only the main thread may exchange them."""
        if threading.current_thread() is not threading.main_thread():
            return []
        return [(number, handler) for number in WATCHED if callable(handler := self._get(number))]

    def _exchange(self, number: int, handler: Any) -> None:
        library, action = ctypes.CDLL(None), ctypes.create_string_buffer(ACTION_BYTES)
        if not library.sigaction(number, None, action):
            self._set(number, handler)
            library.sigaction(number, action, None)

    def _note(self, number: int) -> None:
        if self._recorder.active and os.getpid() == self._pid and self._num_recorded[number] < MAX_RECORDED:
            self._num_recorded[number] += 1
            self._recorder.event(SIGNAL_HANDLED, {"signal": signal.Signals(number).name})


class _Observed:
    """A handler of the training, and the note of its call. It equals the handler."""

    __slots__ = ("handler", "note")

    def __init__(self, handler: Callable[[int, FrameType | None], Any], note: Callable[[int], None]) -> None:
        self.handler, self.note = handler, note

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        self.note(number)
        return self.handler(number, frame)

    def __eq__(self, other: object) -> bool:
        return bool(self.handler == _training_handler(other))

    def __hash__(self) -> int:
        return hash(self.handler)


def _training_handler(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Observed) else handler
