"""The end of a run: what is recorded of the exception that ended it, and the stop at the process's exit.

Of an exception, type, message and the places of its traceback are recorded, but no source and no local variables. The
message can be left out, because it may hold data of the training. The exceptions that it came from are recorded too
(`raise ... from ...`, and those that were being handled): a collective in a `finally` replaces the first cause by its
own error. An exception that was being handled before the last step began is not one of them.

A run that its `with` block does not leave (entered by hand, or held by a generator) ends with the process. When an
interpreter shuts down, it empties modules while the recorder's hooks would still be called. The exit code of a
`sys.exit(1)` is not visible here: the interpreter has dropped it by then. Only the parent process learns it.
"""

import atexit
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType, WrapperDescriptorType
from typing import Any

from traincope.events import CLEAN
from traincope.record.segments.names import MAX_DETAIL_CHARACTERS
from traincope.store.job.communication_errors import is_communication_error
from traincope.store.job.training_code import is_training

Detail = str | int | list[str] | list[dict[str, Any]]
Stop = Callable[[BaseException | None], object]

_RECORD = os.path.dirname(os.path.dirname(__file__))  # a `Path` would simplify what the files of code objects keep
RECORDER_FILES = (_RECORD + os.sep, os.path.join(os.path.dirname(_RECORD), "startup", ""))
"""Folders of the code that a training runs without calling it."""
CALLED_FILE = os.path.join(_RECORD, "run.py")
"""File of what a training calls itself."""

OUT_OF_MEMORY_PHRASES = ("out of memory", "allocate memory", "_STATUS_ALLOC_FAILED")
"""Phrases of torch, CUDA's libraries and the kernel for a shortage of memory.

They are needed where the type of the exception is general: a failed allocation on a CPU is a RuntimeError.
"""
MAX_MESSAGE_CHARACTERS = 2_000
"""Longer messages lose their middle: a data loader's ends with the traceback of its worker."""
MAX_FRAMES = 30
"""Number of frames of a traceback that are recorded: the innermost ones, those of the training first."""
MAX_CHAIN = 4
"""Number of exceptions behind the one that ended the run that are recorded, the nearest ones."""
FRAMES_IN_CHAIN, CHARACTERS_IN_CHAIN = 8, 500
"""Limits of each of these."""
CAUSE, CONTEXT, MEMBER = "cause", "context", "member"
"""Link of an exception to the one before it: `raise ... from` it, it was being handled, or that is a group of it."""
CHECKPOINT_ERROR = ("torch.distributed.checkpoint.api", "CheckpointException")
"""Module and name of torch's error of a distributed checkpoint. Its second argument has the error of each rank, and the
frames of that.
"""
PLAIN_TYPES = (str, bytes, int, float, bool, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The way a run ended."""

    name: str
    """`clean`, or the name of the exception."""
    details: Mapping[str, Detail] = field(default_factory=dict)
    """`type`, `at`, `message`, `traceback`, `out_of_memory` if the message names a memory shortage, `communication` if
    communication failed, `signal_handler` if a handler of that signal raised it, the `chain` behind it, and the
    first `failures` of ranks that it reports, of `num_failed`.

    A SystemExit also has its `code` and the exception that was being handled: `handling`, `handling_at`, ...
    """


def ending_of(
    kind: type[BaseException] | None, error: BaseException | None, *, messages: bool = True, handled: int = 0
) -> Ending:
    """Describe the end of a run from the arguments of `__exit__`. A SystemExit with exit code 0 is clean.

    `messages`: record the messages of exceptions. `handled`: identity of the exception that was being handled when the
    last step began; 0 without one.
    """
    if kind is None or (isinstance(error, SystemExit) and not exit_code(error)):
        return Ending(name=CLEAN)
    details: dict[str, Detail] = {"type": kind.__name__}
    if error is not None:
        details = _fitting(lambda limits: {"type": kind.__name__, **_all_of(error, limits, handled=handled)}, messages)
    return Ending(name=kind.__name__, details=details)


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of what is recorded of one exception."""

    frames: int = MAX_FRAMES
    characters: int = MAX_MESSAGE_CHARACTERS

    def within(self, frames: int, characters: int) -> "_Limits":
        return _Limits(min(self.frames, frames), min(self.characters, characters))


ALL_LIMITS = (_Limits(), _Limits(8, 500), _Limits(2, 100))
"""Limits that are tried until the details are short enough for one event."""


def _fitting(describe: Callable[[_Limits], dict[str, Detail]], messages: bool) -> dict[str, Detail]:
    details: dict[str, Detail] = {}
    for limits in ALL_LIMITS:
        details = describe(limits if messages else limits.within(MAX_FRAMES, 0))
        if len(json.dumps(details)) <= MAX_DETAIL_CHARACTERS:
            break
    return details


def leaving(error: SystemExit, *, messages: bool, handled: int) -> dict[str, Detail]:
    """Describe a call that ends the process, at the line that calls it; also one with code 0."""
    frames = [(frame, frame.f_lineno) for frame in _callers() if not is_of_recorder(frame.f_code)][::-1]
    places = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames]
    handler = handler_in(frame.f_code for frame, _ in frames)

    def describe(limits: _Limits) -> dict[str, Detail]:
        return {
            "type": SystemExit.__name__,
            **_all_of(error, limits, handled=handled),
            "at": _at(places),
            "traceback": _chosen(places, limits.frames),
            **({"signal_handler": handler} if handler else {}),
        }

    return _fitting(describe, messages)


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_of_recorder(code: CodeType) -> bool:
    return code.co_filename.startswith(RECORDER_FILES)


def _all_of(error: BaseException, limits: _Limits, *, handled: int) -> dict[str, Detail]:
    """Describe an exception and those behind it."""
    details = _describe(error, limits)
    if isinstance(error, SystemExit):
        details["code"] = exit_code(error)
        behind = error.__context__  # mostly it is the cause of the `sys.exit(1)`
        if behind is None or id(behind) == handled:
            return details
        details |= {"handling": type(behind).__name__, **_describe(behind, limits, prefix="handling_")}
        error = behind
    inner = limits.within(FRAMES_IN_CHAIN, CHARACTERS_IN_CHAIN)
    chain = [
        {"type": type(each).__name__, "link": link, **_describe(each, inner)}
        for link, each in _chain(error, handled=handled)
    ]
    return details | ({"chain": chain} if chain else {}) | _failures(error, inner)


def _failures(error: BaseException, limits: _Limits) -> dict[str, Detail]:
    """Describe what ranks failed by, as torch's error of a distributed checkpoint has it from them, and count them."""
    if (type(error).__module__, type(error).__name__) != CHECKPOINT_ERROR:
        return {}
    failures = next((arg for arg in error.args if type(arg) is dict), {})
    return {"failures": list(_described(failures, limits)), "num_failed": len(failures)} if failures else {}


def _described(failures: Mapping[int, Any], limits: _Limits) -> Iterator[dict[str, Detail]]:
    for rank, (failed, frames) in sorted(failures.items())[:MAX_CHAIN]:
        places = [(frame.filename, frame.lineno or 0, frame.name) for frame in frames]
        message = message_of(failed, limits.characters) if limits.characters else ""
        yield {
            "rank": rank,
            "type": type(failed).__name__,
            "at": _at(places),
            **({"message": message} if message else {}),
            "traceback": _chosen(places, limits.frames),
        }


def _chain(error: BaseException, *, handled: int) -> Iterator[tuple[str, BaseException]]:
    """Yield the exceptions behind this one, the nearest first, as Python prints them."""
    seen = {id(error), handled}
    for _ in range(MAX_CHAIN):
        link, behind = _behind(error)
        if behind is None or id(behind) in seen:
            return
        seen.add(id(behind))
        yield link, behind
        error = behind


def _behind(error: BaseException) -> tuple[str, BaseException | None]:
    """Return the exception that is behind this one: of a group, whose message names none, the first that was raised."""
    if isinstance(error, BaseExceptionGroup):
        return MEMBER, BaseExceptionGroup.exceptions.__get__(error)[0]  # a class of its own may have another property
    suppressed = error.__suppress_context__ or error.__cause__ is not None
    return (CAUSE, error.__cause__) if suppressed else (CONTEXT, error.__context__)


def exit_code(error: SystemExit) -> int:
    """Return the process's exit code: 0 for None, the last 8 bits of a number, 1 for anything else."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _describe(error: BaseException, limits: _Limits, *, prefix: str = "") -> dict[str, Detail]:
    message = message_of(error, limits.characters) if limits.characters else ""
    handler = handler_in(frame.f_code for frame, _ in _frames(error.__traceback__))
    return {
        f"{prefix}at": place_of(error.__traceback__),
        **({f"{prefix}message": message} if message else {}),
        f"{prefix}traceback": frames_of(error.__traceback__, limits.frames),
        **({"signal_handler": handler} if handler else {}),
        **_memory_shortage(error),
        **_communication(error),
    }


def message_of(error: BaseException, num_characters: int = MAX_MESSAGE_CHARACTERS) -> str:
    """Return an exception's message, without calling code of the training: a `__str__` of its own is not called."""
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return ""
    args = [arg for arg in error.args if type(arg) in PLAIN_TYPES]
    is_plain = isinstance(type(error).__str__, WrapperDescriptorType) and len(args) == len(error.args)
    text = str(error) if is_plain else ", ".join(map(str, args))
    half = num_characters // 2
    return text if len(text) <= num_characters else f"{text[:half]} [...] {text[-half:]}"


def _memory_shortage(error: BaseException) -> dict[str, bool]:
    """Detect a memory shortage from the exception's arguments. `__str__` may be the training's code."""
    if not isinstance(error, RuntimeError | OSError):
        return {}
    names_memory = any(words in part for part in error.args if type(part) is str for words in OUT_OF_MEMORY_PHRASES)
    return {"out_of_memory": True} if names_memory else {}


def _communication(error: BaseException) -> dict[str, bool]:
    """Detect an error of the communication itself: mostly another rank is its cause."""
    text = " ".join(part for part in error.args if type(part) is str)
    failed = is_communication_error((each.__name__ for each in type(error).__mro__), text)
    return {"communication": True} if failed else {}


def handler_in(codes: Iterable[CodeType]) -> str:
    """Return the name of the signal whose handler in Python is one of these codes; empty without one."""
    running = set(codes)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if getattr(getattr(handler, "__func__", handler), "__code__", None) in running:
            return getattr(number, "name", f"signal {number}")  # real-time signals have no names
    return ""


def place_of(traceback: TracebackType | None) -> str:
    """Return file and line of the raise, without the recorder's own frames."""
    return _at(list(_places(traceback)))


def frames_of(traceback: TracebackType | None, num_frames: int = MAX_FRAMES) -> list[str]:
    """Return file, line and function of the innermost frames, innermost last: half of `num_frames` whatever they are,
    and of the others those of the training before those of libraries.
    """
    return _chosen(list(_places(traceback)), num_frames)


Place = tuple[str, int, str]
"""File, line and function."""


def _at(places: Sequence[Place]) -> str:
    return f"{os.path.basename(places[-1][0])}:{places[-1][1]}" if places else ""


def _chosen(places: Sequence[Place], num_frames: int) -> list[str]:
    num_inner = min(num_frames // 2, len(places))
    outer = range(len(places) - num_inner)
    by_worth = sorted(outer, key=lambda at: (is_training(places[at][0]), at), reverse=True)
    kept = [*sorted(by_worth[: num_frames - num_inner]), *range(len(outer), len(places))]
    return [f"{path}:{line} in {function}" for path, line, function in (places[at] for at in kept)]


def _places(traceback: TracebackType | None) -> Iterator[Place]:
    """Yield the place of each frame that is not the recorder's, outermost first."""
    for frame, line in _frames(traceback):
        yield frame.f_code.co_filename, line, frame.f_code.co_name


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        if not is_of_recorder(traceback.tb_frame.f_code):
            yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def hide_recorder(error: BaseException | None) -> None:
    """Remove the recorder's lines from the tracebacks of an exception and of those behind it.

    They are shown as without the recorder. An error of a call of traincope keeps the lines of that call.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = _without_recorder(each.__traceback__)
            members = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
            waiting += each.__cause__, each.__context__, *members


def _without_recorder(traceback: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        is_called = code.co_filename == CALLED_FILE or (kept and is_of_recorder(kept[-1].tb_frame.f_code))
        if is_called or not is_of_recorder(code):
            kept.append(traceback)
        traceback = traceback.tb_next
    for place, following in zip(kept, [*kept[1:], None], strict=True):
        if place.tb_next is not following:
            place.tb_next = following
    return kept[0] if kept else None


def fatal_error() -> BaseException | None:
    """Return the exception that ended the main thread, if one did."""
    return None if is_interactive() else getattr(sys, "last_value", None)


def is_interactive() -> bool:
    """Return whether a person types (a Python prompt, IPython, a notebook). An error there ends no process."""
    return hasattr(sys, "ps1")


def stop_at_exit(stop: Stop) -> Callable[[], None]:
    """Call `stop` before the interpreter shuts down, with the exception that ended the main thread.

    Returns a function that cancels this.
    """

    def end() -> None:
        stop(fatal_error())

    atexit.register(end)
    return lambda: atexit.unregister(end)
