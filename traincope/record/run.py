"""`traincope.run()`: what a training process calls, and the guard around all of it."""

import functools
import inspect
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

from traincope.events import CLEAN
from traincope.record import guard as guarding
from traincope.record.guard import guard
from traincope.record.hooks import Hook, make_hooks
from traincope.record.identity import DEFAULT_ROOT, identify
from traincope.record.recorder import Recorder
from traincope.record.writer import Slot

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

OFF_SWITCH = "TRAINCOPE"
OUT_VARIABLE = "TRAINCOPE_OUT"
DEFAULT_DISK_BUDGET = 256 * 1024 * 1024

_active: "Run | None" = None
_recording: Recorder | None = None
"""The active run's recorder, one look-up away for spans."""


class Run:
    """One recorded run of this process; a context manager and a decorator.

    Nothing here raises into training or blocks it: where recording is impossible (disk full,
    directory read-only, a second `run()` inside the first) it is logged once and the run goes on
    unrecorded. Leaving the `with` restores torch exactly.
    """

    def __init__(self, out: str | os.PathLike[str] | None = None, *, disk_budget: int = DEFAULT_DISK_BUDGET) -> None:
        """`out`: the run directory, the same for all ranks and reachable by them. Default:
        $TRAINCOPE_OUT, else `traincope_runs/<job>`. `disk_budget`: bytes a writing thread may keep.
        """
        self._out = out
        self._disk_budget = disk_budget
        self._recorder: Recorder | None = None
        self._hooks: list[Hook] = []

    @property
    def directory(self) -> Path | None:
        """The run directory, or None while nothing is recorded."""
        return None if self._recorder is None else self._recorder.run

    def __enter__(self) -> Self:
        guard(self._start)()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        finished = kind is None or (isinstance(error, SystemExit) and not error.code)
        guard(self._stop)(None if finished else kind, traceback)

    def __call__(self, function: F) -> F:
        """`@traincope.run()`: every call of the function is a run of its own.

        What a generator or a coroutine does happens after its call, so those are left as they are.
        """
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            logger.warning("%s is not recorded: use `with traincope.run():` inside it", function.__qualname__)
            return function

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with Run(self._out, disk_budget=self._disk_budget):
                return function(*args, **kwargs)

        return cast(F, recorded)

    def step(self) -> None:
        """Mark the boundary between two training steps, once an iteration (at its end, or its top)."""
        if self._recorder is not None:
            _mark_step(self._recorder)

    def describe(self, **settings: Any) -> None:
        """Tell the report what only the training knows, e.g. `tokens_per_step=65536`."""
        if self._recorder is not None:
            _describe(self._recorder, settings)

    def _start(self) -> None:
        global _active, _recording
        if os.environ.get(OFF_SWITCH, "").lower() in ("off", "0"):
            return
        if _active is not None:
            logger.warning(
                "a traincope run is already recording to %s; the inner one records nothing", _active.directory
            )
            return
        guarding.begin_run()
        identity = identify(os.environ)
        chosen = self._out or os.environ.get(OUT_VARIABLE)
        out = Path(chosen) if chosen else Path(DEFAULT_ROOT) / identity.run_id
        recorder = Recorder(out.absolute(), identity=identity, disk_budget_bytes=self._disk_budget)
        self._recorder = recorder
        _active, _recording = self, recorder
        for hook in make_hooks():
            guard(self._install)(hook, recorder)
        recorder.note()

    def _install(self, hook: Hook, recorder: Recorder) -> None:
        try:
            hook.install(recorder)
        except (ImportError, AttributeError, RuntimeError, KeyError, TypeError) as error:
            recorder.probes[hook.name] = f"absent: {type(error).__name__}: {error}"
            hook.remove()
        else:
            recorder.probes[hook.name] = "on"
            self._hooks.append(hook)

    def _stop(self, kind: type[BaseException] | None, traceback: TracebackType | None) -> None:
        global _active, _recording
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        _active = _recording = None
        for hook in reversed(self._hooks):
            guard(hook.remove)()
        self._hooks.clear()
        if kind is not None:
            _write_event(recorder, "exception", {"type": kind.__name__, "at": _place(traceback)})
        for hook_name, failure in guarding.failures.items():
            recorder.probes[hook_name] = f"switched off: {failure}"
        recorder.close(ending=CLEAN if kind is None else kind.__name__)


@overload
def run(out: F) -> F: ...


@overload
def run(out: str | os.PathLike[str] | None = None, *, disk_budget: int = DEFAULT_DISK_BUDGET) -> Run: ...


def run(out: F | str | os.PathLike[str] | None = None, *, disk_budget: int = DEFAULT_DISK_BUDGET) -> F | Run:
    """Record the training inside the `with`, or in the decorated function (`@traincope.run` with or without `()`).

    >>> with traincope.run() as run:
    ...     for batch in loader:
    ...         train(batch)
    ...         run.step()
    """
    if callable(out):
        return Run(disk_budget=disk_budget)(out)
    return Run(out, disk_budget=disk_budget)


def step() -> None:
    """`run.step()` of the run that is recording, wherever it was begun; nothing without one."""
    if _active is not None:
        _active.step()


def event(name: str, **details: Any) -> None:
    """Record that something happened, now; `details` are kept as JSON."""
    if _active is not None and _active._recorder is not None:
        _write_event(_active._recorder, name, details)


class span:  # noqa: N801 - used as a function: `with traincope.span("tokenise"):`
    """Record the time inside the `with` under a name; about a microsecond, nothing without a run."""

    __slots__ = ("_name", "_slot")

    def __init__(self, name: str) -> None:
        self._name = name
        self._slot: Slot | None = None

    @guard
    def __enter__(self) -> None:
        recorder = _recording
        if recorder is not None:
            number = recorder.names.numbers.get(self._name) or recorder.names.intern(self._name)
            self._slot = recorder.threads.writer.begin_span(number)

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        # Unguarded to save 0.1 us: a slot's memory lives as long as the slot, so nothing here can raise.
        slot = self._slot
        if slot is not None:
            words, index = slot
            words[index] = monotonic_ns()


@guard
def _mark_step(recorder: Recorder) -> None:
    if recorder.active:
        recorder.steps.mark()
        recorder.tick()


@guard
def _describe(recorder: Recorder, settings: dict[str, Any]) -> None:
    recorder.settings.update(json.loads(json.dumps(settings, default=str, skipkeys=True)))
    recorder.note()


@guard
def _write_event(recorder: Recorder, name: str, details: dict[str, Any]) -> None:
    if recorder.active:
        recorder.event(name, details)


@guard
def _after_fork() -> None:
    """A forked child (a DataLoader worker) must not write into its parent's segments."""
    global _active, _recording
    if _active is not None and _active._recorder is not None:
        _active._recorder.abandon()
        _active._recorder = None
    _active = _recording = None


def _place(traceback: TracebackType | None) -> str:
    """File and line where it was raised; no source, no locals."""
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno}"


os.register_at_fork(after_in_child=_after_fork)
