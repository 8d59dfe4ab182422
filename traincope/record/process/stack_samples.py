"""Samples of the training thread's Python stack: on every rank early and in a few blocks later, in the windows and on
the ranks of a request, and in steps that last much longer than the others.

A short run ends before a request, so the first steps after the warm-up are sampled, and then ever more rarely two
blocks, the same on all ranks: a rank may become slow. In the others, a thread looks whether the step under way is long,
each time when the last one that it saw would be: saves, logs and clean-ups stop a rank in few steps, which a request
may miss. To be woken costs up to 0.3 ms, so it is woken as rarely as that allows.

A thread asks for a sample every 10 ms. Python's main thread takes it itself, by a pending call at its next instruction.
No other thread reads its frames: in Python 3.11 a frame may end while it is read, even with the lock held. While the
main thread is in C, it cannot answer. The sample that follows shows the line of the call, and how long it waited. The
cost of the samples counts as the recorder's own time.
"""

import ast
import ctypes
import json
import linecache
import os
import random
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from time import monotonic_ns
from types import CodeType, FrameType
from typing import Any

from traincope.events import BLOCK_STEPS, EARLY_STEPS
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.own_threads import OwnThread
from traincope.record.instrumentation.raised_later import add_pending_call, hide_raising, raise_later
from traincope.record.instrumentation.torch_private import hide_from_compiler
from traincope.record.session.recorder import Recorder
from traincope.record.session.steps import Steps
from traincope.store.job.process import name_this_thread
from traincope.store.layout import stack_samples_file
from traincope.whole_files import write_whole

INTERVAL_SECONDS = 0.01
"""Mean pause between two requests. Equal pauses could keep step with the training."""
REQUESTED_SECONDS = 300.0
"""Longest time of the samples of a requested window."""
MAX_STACKS = 4_096
"""Distinct stacks of one window."""
MAX_DEPTH = 128
"""Frames of a stack. The outermost are left out first."""
JOIN_SECONDS = 1.0
OF_ITSELF_SECONDS = 10.0
"""Longest time of samples without a request."""
LEAST_SECONDS = 0.25
"""Age from which a step may be long at all. In this time, no sample of a long step is taken."""
LOOK_SECONDS = 5.0
"""Longest pause between two looks at the step under way: steps may become shorter."""
LONG = 4.0
"""Age of a step relative to the usual length from which it is long."""
LONG_SECONDS = 60.0
"""Longest time of the samples of long steps, together."""
OF_ONE_STEP = 100
"""Samples of one long step every 10 ms: one that lasts further is sampled every LEAST_SECONDS."""

Key = tuple[CodeType, int, int, int]
"""Code, line, instruction, and identity of the module that it is a method of; 0 for other code."""


def is_sampled(block: int) -> bool:
    """Return whether a later block of steps is sampled without a request: those with the numbers 16, 24, 32, 48, 64, 96
    and so on, each with the next one. Fewer steps than those of two blocks are not compared.
    """
    return any(each >= 16 and each & ((1 << (each.bit_length() - 2)) - 1) == 0 for each in (block, block - 1))


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is sampled."""

    seconds: float = 0.0
    """Longest time of all samples; 0 for none."""
    requested: bool = False
    of_long_steps: bool = False


_NONE = _Kind()


class StackSampling:
    """Hook that samples early, and in requested windows."""

    name = "stack_samples"
    level = 1

    def __init__(self) -> None:
        self._sampler: _Sampler | None = None
        self._present = _NONE
        self._installed = False

    def install(self, recorder: Recorder) -> None:
        """Raises OSError outside of the main thread: Python runs pending calls only there."""
        if recorder.main_thread != threading.main_thread().ident:
            raise OSError("the training does not run in Python's main thread")
        self._recorder, self._installed = recorder, True
        self._start = guard(self._start_sampler)
        recorder.at_blocks(self._prepare)

    def remove(self) -> None:
        self._installed = False
        self._stop(wait=True)

    def _prepare(self, detailed: bool) -> bool:
        """Begin to sample in early blocks and those whose request names this rank, and end after them. In the others,
        sample long steps.
        """
        recorder = self._recorder
        place, step = recorder.place, recorder.shared.step
        in_main_thread = recorder.main_thread == threading.main_thread().ident
        wanted = _NONE
        if place is not None and in_main_thread and self._installed:
            requested = any(place.rank in request.stacks for request in recorder.control.requests_at(step))
            of_itself = place.world_size > 1 and (step in EARLY_STEPS or is_sampled(step // BLOCK_STEPS))
            if detailed and (of_itself or requested):
                seconds = REQUESTED_SECONDS if requested else OF_ITSELF_SECONDS
                wanted = _Kind(seconds=seconds, requested=requested)
            elif place.world_size > 1 and step >= EARLY_STEPS.stop:
                wanted = _Kind(seconds=LONG_SECONDS, of_long_steps=True)
        if wanted != self._present:
            self._stop(wait=False)
            self._present = wanted
            if wanted.seconds:
                self._start(step)
        return True

    def _start_sampler(self, step: int) -> None:
        hide_from_compiler(_answer, calls_too=True)  # a compiled region may be running
        hide_raising()
        path = self._recorder.directory / stack_samples_file(step)
        sampler = _Sampler(path, self._present, self._recorder.steps)
        sampler.start()
        self._sampler = sampler

    def _stop(self, *, wait: bool) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop(wait=wait)


class _Sampler:
    """A thread that asks for samples until it is stopped, and then writes the file."""

    def __init__(self, path: Path, kind: _Kind, steps: Steps) -> None:
        self._path, self._kind, self._max_samples = path, kind, round(kind.seconds / INTERVAL_SECONDS)
        self._steps = steps if kind.of_long_steps else None
        self._long_step, self._left = -1, 0
        """The latest long step, and how many samples of it are to be taken every 10 ms."""
        self._stacks: dict[tuple[Key, ...], int] = {}
        self._times_ns: list[int] = []
        self._waited_ns: list[int] = []
        self._stack: list[int] = []
        self._modules: dict[int, weakref.ref[Any]] = {}
        self._roots: dict[int, weakref.ref[Any]] = {}
        self._asked_ns: int | None = None
        """Time of the request that the main thread has not answered."""
        self._stopped = threading.Event()
        self._thread = OwnThread(self._run)
        self.answer = guard(self._sample)

    def start(self) -> None:
        """Raises RuntimeError if no thread can be started."""
        self._thread.start()

    def stop(self, *, wait: bool) -> None:
        self._stopped.set()
        if wait:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        name_this_thread()
        ask, write, draw = guard(self._ask), guard(self._write), random.Random()
        pause_seconds = INTERVAL_SECONDS
        while len(self._times_ns) < self._max_samples and not self._stopped.wait(pause_seconds):
            pause_seconds = 0.0 if self._steps is None else self._until_long(self._steps)
            if not pause_seconds:
                ask()
                every_seconds = INTERVAL_SECONDS if self._steps is None or self._left else LEAST_SECONDS
                pause_seconds = every_seconds * (0.5 + draw.random())
        if self._steps is None or self._times_ns:
            write()

    def _until_long(self, steps: Steps) -> float:
        """Return after how many seconds to look again, when the step under way will be long; 0 if it is. Then count
        down what is left to be sampled of it.
        """
        number, age_ns, usual_ns = steps.under_way()
        missing_seconds = max(LONG * usual_ns / 1e9, LEAST_SECONDS) - age_ns / 1e9
        if missing_seconds > 0:
            self._left = 0
            return min(max(missing_seconds, INTERVAL_SECONDS), LOOK_SECONDS)
        self._left = OF_ONE_STEP if number != self._long_step else max(self._left - 1, 0)
        self._long_step = number
        return 0.0

    def _ask(self) -> None:
        if self._asked_ns is None:
            self._asked_ns = monotonic_ns()
            _answering[0] = self
            if add_pending_call(_PENDING, None):
                self._asked_ns = None  # too many calls are pending

    def _sample(self) -> None:
        """Take a sample, on the main thread."""
        asked_ns, self._asked_ns = self._asked_ns, None
        if asked_ns is None or self._stopped.is_set():
            return
        now, keys = monotonic_ns(), tuple(self._keys())
        number = self._stacks.get(keys)
        if number is None:
            if len(self._stacks) >= MAX_STACKS:
                return
            number = self._stacks[keys] = len(self._stacks)
        self._times_ns.append(now)
        self._waited_ns.append(now - asked_ns)
        self._stack.append(number)

    def _keys(self) -> Iterator[Key]:
        """Yield the frames of the calling thread below those of this module, innermost first."""
        calls = _module_calls()
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename in OWN_FILES:
            frame = frame.f_back
        root, depth = None, 0
        while frame is not None and depth < MAX_DEPTH:
            module = frame.f_locals.get("self") if frame.f_code in calls else None
            if module is not None:
                self._modules[id(module)] = weakref.ref(module)
                root = module
            yield frame.f_code, frame.f_lineno or 0, frame.f_lasti, id(module) if module is not None else 0
            frame, depth = frame.f_back, depth + 1
        if root is not None:
            self._roots[id(root)] = weakref.ref(root)

    def _write(self) -> None:
        names = self._names()
        sites: dict[tuple[str, int, str, str, str], int] = {}
        stacks = []
        for keys in tuple(self._stacks):
            numbers, inside = [], ""
            for at, (code, line, instruction, module) in reversed(list(enumerate(keys))):
                inside = names.get(module, inside)
                called = _called(code, instruction) if at == 0 else ""
                site = (code.co_filename, line, code.co_qualname, inside, called)
                numbers.append(sites.setdefault(site, len(sites)))
            stacks.append(numbers[::-1])
        content = {
            "interval_ns": round(INTERVAL_SECONDS * 1e9),
            "requested": self._kind.requested,
            "of_long_steps": self._kind.of_long_steps,
            "sites": [list(site) for site in sites],
            "stacks": stacks,
            "times_ns": self._times_ns[: len(self._stack)],
            "waited_ns": self._waited_ns[: len(self._stack)],
            "stack": self._stack,
        }
        write_whole(self._path, json.dumps(content, separators=(",", ":")).encode())

    def _names(self) -> dict[int, str]:
        """Identity of each module that was seen in a call -> its name below the outermost one."""
        roots = [root for reference in self._roots.values() if (root := reference()) is not None]
        names = {id(module): name for root in roots for name, module in root.named_modules() if name}
        return {number: name for number, name in names.items() if number in self._modules}


_answering: list[_Sampler | None] = [None]
"""The sampler that asked last."""


def _answer(_: object) -> int:
    """Answer, and raise nothing: ctypes would print it, and the training would never see it."""
    sampler = _answering[0]
    if sampler is not None:
        try:
            sampler.answer()
        except RecursionError:  # the training is close to the limit, which it may never reach
            pass
        except BaseException as error:  # noqa: BLE001 - only the training's own passes the guard
            raise_later(error)
    return 0


_ANSWER = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_answer)
"""It lives as long as the process: a pending call may outlive its sampler."""
_PENDING = ctypes.cast(_ANSWER, ctypes.c_void_p)
OWN_FILES = frozenset({__file__, guard.__code__.co_filename})


def _forked() -> None:
    """Answer nothing in a forked child: it is not the rank."""
    _answering[0] = None


os.register_at_fork(after_in_child=_forked)


def _module_calls() -> frozenset[CodeType]:
    """Return the code in which torch calls a module's forward. Its locals live as long as the call in any case."""
    torch_module = sys.modules.get("torch.nn.modules.module")
    return frozenset() if torch_module is None else frozenset({torch_module.Module._call_impl.__code__})


@cache
def _called(code: CodeType, instruction: int) -> str:
    """Name the function that the line calls at this instruction, from its source; empty if it is not a plain name."""
    position = next(islice(code.co_positions(), instruction // 2, None), (None, None, None, None))
    line, end_line, column, end_column = position
    if line is None or line != end_line or column is None:
        return ""
    text = linecache.getline(code.co_filename, line).encode()[column:end_column].decode(errors="replace")
    try:
        expression = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(expression, ast.Call):
        return ""
    names, part = [], expression.func
    while isinstance(part, ast.Attribute):
        names.append(part.attr)
        part = part.value
    return ".".join([part.id, *reversed(names)]) if isinstance(part, ast.Name) else ""
