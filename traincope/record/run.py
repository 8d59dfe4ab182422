"""`traincope.run()`: the API that a training process calls, with a guard around every entry."""

import atexit
import functools
import inspect
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from time import monotonic_ns
from types import SimpleNamespace, TracebackType
from typing import Any, Self, TypeVar, cast, overload

from traincope.events import (
    CLEAN,
    LEFT,
    LONG_SAMPLE,
    RESUMED,
    ROLLBACK,
    ROLLOUT_LONGEST,
    SKIPPED_STEP,
    Phase,
)
from traincope.record.compute.logged_values import Scalars
from traincope.record.compute.rollouts import longest_sample, rollout_sums
from traincope.record.hooks import make_hooks
from traincope.record.instrumentation import guard as guarding
from traincope.record.instrumentation.asynchronous import is_asynchronous
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard, meter, trial_ns
from traincope.record.probes import Probes
from traincope.record.process.flight import write_last
from traincope.record.segments.slots import Slot
from traincope.record.segments.writer import ThreadWriter
from traincope.record.session.agent import await_shipping, num_local_ranks, start_agent
from traincope.record.session.ending import Ending, ending_of, hide_recorder, stop_at_exit
from traincope.record.session.identity import identify
from traincope.record.session.options import (
    DEFAULT_DISK_BUDGET,
    DEFAULT_LEVEL,
    OFF_SWITCH,
    OUT_VARIABLE,
    Options,
    resolved_agent,
    resolved_axes,
    resolved_budget,
    resolved_corruption_check_steps,
    resolved_disk_budget,
    resolved_flops,
    resolved_level,
    resolved_local,
    resolved_memory_peaks,
    resolved_messages,
    resolved_module_depth,
    resolved_ship,
    resolved_signal_stacks,
    resolved_trace_non_finite,
    resolved_witness,
    with_site,
    workflow_settings,
)
from traincope.record.session.recorder import Recorder
from traincope.record.session.rendezvous import Place
from traincope.record.session.sampling import DEFAULT_BUDGET, Sampling
from traincope.record.trainers.parts import Part, begin_part
from traincope.store.job.launcher import FIRST_ATTEMPT_VARIABLE, NOTES_VARIABLE
from traincope.store.layout import DEFAULT_ROOT
from traincope.store.places.node_local import Local, NodeLocal, local_place, thread_budget

logger = logging.getLogger(__name__)

JOB_WAIT = int(Phase.JOB_WAIT)
F = TypeVar("F", bound=Callable[..., Any])

_active: "Run | None" = None
_recording: Recorder | None = None
"""The active run's recorder, one look-up away for spans."""
_announced = False
_is_compiling: Callable[[], bool] = bool
"""Return whether torch.compile is tracing the caller. A run that finds torch imported sets torch's own function."""


class Run:
    """One recorded run of this process; a context manager and a decorator.

    Nothing here raises into training or blocks it. If recording is impossible (disk full, directory read-only, a second
    `run()` inside the first), one line is logged and the training continues unrecorded. Leaving the `with` restores
    torch exactly.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._recorder: Recorder | None = None
        self._probes: Probes | None = None
        self._scalars: Scalars | None = None
        self._entered = 0
        self._pid = os.getpid()
        self._ship: str | None = None
        """URL below which the agents ship the run."""
        self._shipped_place: Place | None = None
        """The place of records that the agent ships, if any."""

    @property
    def directory(self) -> Path | None:
        """The run directory.

        None while nothing is recorded, or while the directory is not known yet (no process group).
        """
        return None if self._recorder is None else self._recorder.named_run

    @property
    def place(self) -> Place | None:
        """Rank, attempt and directories of the records; None while nothing is recorded or they are not known yet."""
        return None if self._recorder is None else self._recorder.place

    @property
    def num_steps(self) -> int:
        """Number of steps that have ended."""
        return 0 if self._recorder is None else self._recorder.steps.num_ended

    def __enter__(self) -> Self:
        self._entered += 1
        if self._entered == 1:
            guard(self._start)()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered -= 1
        if not self._entered:
            guard(self._stop)(kind, error, False)

    def end_with_the_process(self, error: BaseException | None) -> None:
        """End the run when the process exits. `error` is the exception that ended the process, if any.

        The exit code of the process is not known here.
        """
        guard(self._stop)(None if error is None else type(error), error, True)

    def __call__(self, function: F) -> F:
        """Decorate a function: with `@traincope.run()` every call of it is a run of its own.

        A generator or a coroutine does its work after its call, so it is returned unchanged.
        """
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            guard(logger.warning)("%s is not recorded: use `with traincope.run():` inside it", function.__qualname__)
            return function

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with Run(self._options):
                return function(*args, **kwargs)

        return cast(F, recorded)

    def step(self) -> None:
        """Mark the boundary between two training steps, once per iteration (at its end or at its start)."""
        if self._recorder is not None:
            _mark(self._recorder)

    def log(self, /, **values: Any) -> None:
        """Put numbers of this step on the timeline: `run.log(loss=loss, grad_norm=norm)`.

        A value may be a tensor of one element. From a GPU it is copied without waiting for the device.
        """
        if self._scalars is not None:
            for name, value in values.items():
                _log(self._scalars, name, value)

    def describe(self, **settings: Any) -> None:
        """Describe the training to the report: `tokens_per_step`, `model_flops_per_step`, `peak_flops`, `workflow`.

        `peak_flops` is the FLOP/s of one rank, a number or a table by dtype. `peak_source` names its source.
        """
        if self._recorder is not None:
            _describe(self._recorder, settings)

    def gives_way_to(self, _inner: "Run") -> bool:
        """Return whether this run has ended in favour of the inner run. Only the run of `traincope run` does so."""
        return False

    def _start(self) -> None:
        global _active, _recording, _is_compiling
        if os.environ.get(OFF_SWITCH, "").lower() in ("off", "0"):
            return
        if _active is not None and not _active.gives_way_to(self):
            logger.warning(
                "a traincope run is already recording to %s; the inner one records nothing", _active.directory
            )
            return
        guarding.begin_run()
        out = self._options.out or os.environ.get(OUT_VARIABLE)
        self._ship = resolved_ship(self._options) if resolved_agent(self._options) else None
        self._disk_budget, flops = resolved_disk_budget(self._options), resolved_flops(self._options)
        named = Path(out or DEFAULT_ROOT).absolute()
        local = guard(self._local_place)(named)
        place = named if local is None else local.directory
        try:
            recorder = Recorder(
                place if out else None,
                root=Path(DEFAULT_ROOT) if out else place,
                identity=identify(os.environ, run_id=self._options.run_id),
                disk_budget_bytes=self._disk_budget,
                on_settled=self._start_agent if resolved_agent(self._options) else None,
                witness=resolved_witness(self._options),
                named=None if local is None else named,
                for_store=self._ship is not None,
            )
        except OSError as error:
            if is_asynchronous(error):
                raise
            logger.warning(
                "traincope: this process is not recorded, because %s cannot be written: %s. The training goes on. "
                "Give another directory, e.g. by $%s",
                named,
                error.strerror if error.filename is None else f"{error.strerror} ({error.filename})",
                OUT_VARIABLE,
            )
            return
        recorder.module_depth, recorder.resolved_axes = (
            resolved_module_depth(self._options),
            resolved_axes(self._options),
        )
        recorder.trace_non_finite = resolved_trace_non_finite(self._options)
        recorder.signal_stacks = resolved_signal_stacks(self._options)
        recorder.keeps_messages = resolved_messages(self._options)
        recorder.corruption_check_steps = resolved_corruption_check_steps(self._options)
        if flops is not None:
            recorder.settings["model_flops_per_step"] = float(flops)
        recorder.settings |= workflow_settings(os.environ)
        meter.span_ns = _trial_of_a_span()
        self._recorder, self._scalars, _active, _recording = recorder, Scalars(recorder), self, recorder
        if resolved_agent(self._options):
            atexit.register(guard(self._await_shipping))  # before `stop_at_exit`, so that it is called after it
        self._not_at_exit = stop_at_exit(self.end_with_the_process)
        recorder.budget = resolved_budget(self._options)
        recorder.resets_memory_peaks = resolved_memory_peaks(self._options)
        sampling = Sampling(recorder.budget)
        self._probes = Probes(recorder, make_hooks(), level=resolved_level(self._options), sampling=sampling)
        self._probes.install()
        if "torch" in sys.modules:
            _is_compiling = sys.modules["torch"].compiler.is_dynamo_compiling
        recorder.write_metadata()

    def _local_place(self, named: Path) -> NodeLocal | None:
        """Choose the place of the records on this node. Only an agent ships them to where the user looks for them."""
        if not resolved_agent(self._options):
            return None
        local = local_place(named, local=resolved_local(self._options))
        if local is not None:
            self._disk_budget = thread_budget(
                local.directory, disk_budget_bytes=self._disk_budget, ranks=num_local_ranks() or 1
            )
        return local

    def _start_agent(self, place: Place) -> None:
        if place.named is not None or self._ship is not None:
            self._shipped_place = place
        guard(start_agent)(place, self._disk_budget, self._ship)

    def _await_shipping(self) -> None:
        place, self._shipped_place = self._shipped_place, None
        if place is not None and os.getpid() == self._pid:
            await_shipping(place)

    def _stop(self, kind: type[BaseException] | None, error: BaseException | None, with_process: bool) -> None:
        global _active, _recording
        recorder, scalars, self._recorder, self._scalars = self._recorder, self._scalars, None, None
        if recorder is None or scalars is None:
            return
        _active = _recording = None
        self._not_at_exit()
        try:
            if error is not None:
                write_last()
                recorder.fail()
            ending = guard(_ending)(recorder, kind, error) or Ending(name=CLEAN if kind is None else kind.__name__)
            if ending.details:  # first of all: a launcher may kill this rank soon
                guard(recorder.event)("exception", dict(ending.details))
            elif recorder.exit_call is not None:
                guard(_write_exit)(recorder, *recorder.exit_call)
        except BaseException:  # of the training, e.g. of its signal handler: the run can still be ended
            self._recorder, self._scalars = recorder, scalars
            raise
        if self._probes is not None:
            self._probes.remove()
        guard(scalars.finish)()
        recorder.probes |= guarding.failure_notes()
        recorder.close(ending=ending.name, with_process=with_process)
        guard(hide_recorder)(error)
        guard(_announce)(recorder)


def _announce(recorder: Recorder) -> None:
    """Say once per process where its run is, as rank 0 on a terminal. A command of traincope says it at its own end."""
    global _announced
    place = recorder.place
    if _announced or place is None or place.rank or _is_below_a_command():
        return
    terminal = sys.stderr
    if not isinstance(terminal, TextIOWrapper) or terminal.closed or not terminal.isatty():
        return  # an object of the training's may write what it gets into a file
    _announced = True
    run = place.named or place.run
    is_default = run.parent == Path(DEFAULT_ROOT).absolute()
    terminal.write(f"traincope: recorded; next: traincope report {run.name if is_default else run}\n")


def _is_below_a_command() -> bool:
    return any(name in os.environ for name in (NOTES_VARIABLE, FIRST_ATTEMPT_VARIABLE))


def _ending(recorder: Recorder, kind: type[BaseException] | None, error: BaseException | None) -> Ending:
    return ending_of(kind, error, messages=recorder.keeps_messages, handled=recorder.handled)


def _write_exit(recorder: Recorder, at_ns: int, details: dict[str, Any]) -> None:
    recorder.event(LEFT, details, at_ns=at_ns)


@overload
def run(out: F) -> F: ...


@overload
def run(
    out: str | os.PathLike[str] | None = None,
    *,
    run_id: str | None = None,
    level: int = DEFAULT_LEVEL,
    module_depth: int | None = None,
    axes: Mapping[str, str] | None = None,
    disk_budget: int = DEFAULT_DISK_BUDGET,
    budget: float | None = DEFAULT_BUDGET,
    flops: float | None = None,
    agent: bool = True,
    messages: bool = True,
    memory_peaks: bool = False,
    witness: bool = False,
    corruption_check_steps: int | None = None,
    trace_non_finite: bool = False,
    signal_stacks: bool = False,
    local: str = Local.AUTO,
    ship: str | None = None,
) -> Run: ...


def run(out: F | str | os.PathLike[str] | None = None, **options: Any) -> F | Run:
    """Record the training inside the `with`, or in the decorated function (`@traincope.run` with or without `()`).

    >>> with traincope.run() as run:
    ...     for batch in loader:
    ...         train(batch)
    ...         run.step()
    """
    if callable(out):
        return Run(with_site({}))(out)
    return Run(with_site({"out": out, **options}))


def active_run() -> Run | None:
    """Return the run that is recording in this process."""
    return _active


def step() -> None:
    """Call `run.step()` of the active run, from anywhere in the program. Does nothing without a run."""
    if _active is not None:
        _active.step()


def log(**values: Any) -> None:
    """Call `run.log(...)` of the active run. Does nothing without a run."""
    if _active is not None:
        _active.log(**values)


def rollout(
    lengths: Sequence[int],
    *,
    prompt_tokens: int = 0,
    discarded_tokens: int = 0,
    ids: Sequence[object] | None = None,
    tool_seconds: Sequence[float] | None = None,
) -> None:
    """Record the samples of one batch of rollouts, of this rank: call it once, after they are generated.

    `lengths`: generated tokens of each sample, without padding. `discarded_tokens`: those of them that are not trained.
    `ids` and `tool_seconds`, one per sample, name the longest ones; their text is never recorded.
    """
    if _active is not None and _active._recorder is not None:
        _write_rollout(_active, _active._recorder, lengths, prompt_tokens, discarded_tokens, ids, tool_seconds)


def event(name: str, **details: Any) -> None:
    """Record an event at this moment. `details` are kept as JSON.

    `event("resumed", step=n)` declares that the training continues from a state that has had n steps.
    `event("skipped step", why=reason)` declares that the open step updates no parameter.
    `event("rollback", step=n, why=reason)` declares that the training went back to a state that has had n steps. It
    undoes the open step and those before it.
    """
    if _active is not None and _active._recorder is not None:
        _write_event(_active._recorder, name, details)


class span:  # noqa: N801 - used as a function: `with traincope.span("tokenise"):`
    """Record the time inside the `with` under a name. Costs about a microsecond; does nothing without a run.

    In code that torch.compile compiles it records nothing and breaks no graph.
    """

    __slots__ = ("_name", "_slot")

    def __init__(self, name: str) -> None:
        self._name = name
        self._slot: Slot | None = None

    def __enter__(self) -> None:
        # A known name is unguarded to save 0.1 us: looking up a str and writing into a segment cannot raise.
        recorder = _recording
        if recorder is None or _is_compiling():
            return
        name = self._name
        number = recorder.names.numbers.get(name) if type(name) is str else None
        if number:
            self._slot = recorder.threads.writer.begin_span(number)
        else:
            self._slot = _begin_new_span(recorder, name)

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        # Unguarded to save 0.1 us: a slot's memory lives as long as the slot, so nothing here can raise.
        slot = self._slot
        if slot is not None:
            words, index = slot
            words[index] = monotonic_ns()
            self._slot = None  # the record is finished, also if the span is reused without a run


class phase(span):  # noqa: N801
    """Record the time inside the `with` as a part of the step that is not training. It owns all that happens inside.

    `generate`, `reward`, `logprob`, `advantage`, `weight_sync` and `environment` are terms of the ledger; any other
    name is the term `span.NAME`. FLOPs inside are not the model's. On another thread than the training's the part is
    recorded, and costs no step time.

    >>> with traincope.phase("reward"):
    ...     rewards = score(completions)
    """

    __slots__ = ("_parts",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._parts: list[Part | None] = []
        """Open parts: one object may be entered again inside itself."""

    def __enter__(self) -> None:
        recorder = _recording
        self._parts.append(None if recorder is None or _is_compiling() else begin_part(recorder, self._name))

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        part = self._parts.pop()
        if part is not None:
            part.end()


class wait_for(span):  # noqa: N801
    """Record the time inside the `with` as a wait for another job of the workflow, given its role.

    It is the ledger's term `job_wait`. On another thread than the training's it is recorded, and costs no step time.

    >>> with traincope.wait_for("actor"):
    ...     rollouts = queue.get()
    """

    __slots__ = ()

    def __enter__(self) -> None:
        recorder = _recording
        if recorder is not None and not _is_compiling():
            self._slot = _begin_job_wait(recorder, self._name)


def _trial_of_a_span() -> int:
    """Measure the cost of one span on this machine, in ns. The trial writes to private memory."""
    global _recording
    names, threads = SimpleNamespace(numbers={"trial": 1}), SimpleNamespace(writer=ThreadWriter.for_trial())
    _recording = cast(Recorder, SimpleNamespace(names=names, threads=threads))
    try:
        return trial_ns(_one_span)
    finally:
        _recording = None


def _one_span() -> None:
    with span("trial"):
        pass


@guard
def _begin_new_span(recorder: Recorder, name: str) -> Slot:
    return recorder.threads.writer.begin_span(recorder.names.intern(str(name)))


@guard
def _begin_job_wait(recorder: Recorder, role: str) -> Slot | None:
    if not recorder.active:
        return None
    recorder.before_work()
    return recorder.threads.writer.begin_phase(JOB_WAIT, recorder.names.intern(str(role)))


def _mark_step(recorder: Recorder) -> None:
    if recorder.active:
        recorder.steps.mark()
        recorder.tick()


_mark = guard(_mark_step, every=SAMPLING_INTERVAL)


@guard
def _log(scalars: Scalars, name: str, value: Any) -> None:
    scalars.log(name, value)


@guard
def _describe(recorder: Recorder, settings: dict[str, Any]) -> None:
    recorder.settings.update(json.loads(json.dumps(settings, default=str, skipkeys=True)))
    recorder.write_metadata()


@guard
def _write_rollout(
    run: Run,
    recorder: Recorder,
    lengths: Sequence[int],
    prompt_tokens: int,
    discarded_tokens: int,
    ids: Sequence[object] | None,
    tool_seconds: Sequence[float] | None,
) -> None:
    """Log the sums. Only a sample that is longer than all before is an event: there are few of them."""
    if not recorder.active or not len(lengths):
        return
    sums = rollout_sums(lengths, prompt_tokens=prompt_tokens, discarded_tokens=discarded_tokens)
    run.log(**sums)
    if sums[ROLLOUT_LONGEST] > recorder.longest_sample:
        recorder.longest_sample = sums[ROLLOUT_LONGEST]
        recorder.event(LONG_SAMPLE, longest_sample(lengths, ids, tool_seconds))


@guard
def _write_event(recorder: Recorder, name: str, details: dict[str, Any]) -> None:
    if recorder.active:
        declared = _declared(recorder, name, details) if threading.get_ident() == recorder.main_thread else None
        if declared is None:
            recorder.event(name, details, from_training=True)
        else:
            recorder.event(name, declared)


def _declared(recorder: Recorder, name: str, details: dict[str, Any]) -> dict[str, Any] | None:
    """Let the steps follow what the training declares. Returns the event's details; None for any other event."""
    step, why = details.get("step"), str(details.get("why", ""))
    if name == SKIPPED_STEP:
        recorder.steps.skipped()
        return {"why": why}
    if name == RESUMED and type(step) is int:
        recorder.steps.resumed(step)
        return {"step": step}
    if name == ROLLBACK and type(step) is int:
        undone = recorder.steps.rolled_back(step)
        return None if undone is None else {**details, "why": why, "undone": undone[0], "last": undone[1]}
    return None


@guard
def _after_fork() -> None:
    """Disable recording in a forked child (a DataLoader worker): it must not write into its parent's segments."""
    global _active, _recording
    if _active is not None and _active._recorder is not None:
        _active._recorder.abandon()
        _active._recorder = _active._scalars = None
    _active = _recording = None


os.register_at_fork(after_in_child=_after_fork)
