"""Samples of the training thread's Python stack, on the ranks and in the windows that a request names.

A thread reads the stack every 10 ms, with Python's lock and without a call of the training's code. It asks for the
frame of one thread: `sys._current_frames` reads all threads, and in Python 3.11 it deadlocks if it starts the garbage
collector. What the samples cost counts as the recorder's own time.
"""

import ast
import ctypes
import linecache
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns
from types import CodeType, FrameType
from typing import Any

from traincope.record.instrumentation.guard import guard
from traincope.record.session.recorder import Recorder
from traincope.store.layout import stack_samples_file
from traincope.whole_files import write_json

INTERVAL_SECONDS = 0.01
MAX_SAMPLES = 30_000
"""Samples of one window: five minutes."""
MAX_STACKS = 4_096
"""Distinct stacks of one window."""
MAX_DEPTH = 128
"""Frames of a stack. The outermost are left out first."""
JOIN_SECONDS = 1.0

Key = tuple[CodeType, int, int, int]
"""Code, line, instruction, and identity of the module that it is a method of; 0 for other code."""


class StackSampling:
    """Hook that samples in requested windows."""

    name = "stack_samples"
    level = 1

    def __init__(self) -> None:
        self._sampler: _Sampler | None = None
        self._installed = False

    def install(self, recorder: Recorder) -> None:
        """Raises OSError without Python's lock, which keeps frames from changing while they are read."""
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            raise OSError("this Python has no global lock")
        self._recorder, self._installed = recorder, True
        self._thread_state = _thread_state()
        recorder.at_blocks(self._prepare)

    def remove(self) -> None:
        self._installed = False
        self._stop(wait=True)

    def _prepare(self, detailed: bool) -> bool:
        """Begin to sample in a block whose request names this rank, and end after it."""
        recorder = self._recorder
        rank, step = None if recorder.place is None else recorder.place.rank, recorder.shared.step
        wanted = detailed and any(rank in request.stacks for request in recorder.control.requests_at(step))
        if not wanted or not self._installed:
            self._stop(wait=False)
        elif self._sampler is None:
            self._sampler = _Sampler(self._thread_state, recorder.directory / stack_samples_file(step))
        return True

    def _stop(self, *, wait: bool) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop(wait=wait)


class _Sampler:
    """A thread that samples until it is stopped, and then writes the file."""

    def __init__(self, thread_state: int, path: Path) -> None:
        self._thread_state, self._path = thread_state, path
        self._stacks: dict[tuple[Key, ...], int] = {}
        self._times_ns: list[int] = []
        self._stack: list[int] = []
        self._modules: dict[int, weakref.ref[Any]] = {}
        self._roots: dict[int, weakref.ref[Any]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traincope stack samples", daemon=True)
        self._thread.start()

    def stop(self, *, wait: bool) -> None:
        self._stopped.set()
        if wait:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        sample, write = guard(self._sample), guard(self._write)
        while not self._stopped.wait(INTERVAL_SECONDS) and len(self._times_ns) < MAX_SAMPLES:
            sample()
        write()

    def _sample(self) -> None:
        now, keys = monotonic_ns(), tuple(self._keys())
        number = self._stacks.get(keys)
        if number is None:
            if len(self._stacks) >= MAX_STACKS:
                return
            number = self._stacks[keys] = len(self._stacks)
        self._times_ns.append(now)
        self._stack.append(number)

    def _keys(self) -> Iterator[Key]:
        """Yield the frames of the training thread, innermost first. None outlives the call."""
        calls = _module_calls()
        frame, root, depth = _frame(self._thread_state), None, 0
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
        for keys in self._stacks:
            numbers, inside = [], ""
            for at, (code, line, instruction, module) in reversed(list(enumerate(keys))):
                inside = names.get(module, inside)
                called = _called(code, instruction) if at == 0 else ""
                site = (code.co_filename, line, code.co_qualname, inside, called)
                numbers.append(sites.setdefault(site, len(sites)))
            stacks.append(numbers[::-1])
        write_json(
            self._path,
            {
                "interval_ns": round(INTERVAL_SECONDS * 1e9),
                "sites": [list(site) for site in sites],
                "stacks": stacks,
                "times_ns": self._times_ns,
                "stack": self._stack,
            },
        )

    def _names(self) -> dict[int, str]:
        """Identity of each module that was seen in a call -> its name below the outermost one."""
        roots = [root for reference in self._roots.values() if (root := reference()) is not None]
        names = {id(module): name for root in roots for name, module in root.named_modules() if name}
        return {number: name for number, name in names.items() if number in self._modules}


def _thread_state() -> int:
    """Return Python's state of the calling thread. It stays valid as long as the thread."""
    get = ctypes.pythonapi.PyThreadState_Get
    get.restype, get.argtypes = ctypes.c_void_p, []
    return int(get())


def _frame(thread_state: int) -> FrameType | None:
    get = ctypes.pythonapi.PyThreadState_GetFrame
    get.restype, get.argtypes = ctypes.py_object, [ctypes.c_void_p]
    frame = get(thread_state)
    return frame if isinstance(frame, FrameType) else None


def _module_calls() -> frozenset[CodeType]:
    """Return the code in which torch calls a module's forward. Its locals live as long as the call in any case."""
    torch_module = sys.modules.get("torch.nn.modules.module")
    return frozenset() if torch_module is None else frozenset({torch_module.Module._call_impl.__code__})


def _called(code: CodeType, instruction: int) -> str:
    """Name the function that the line calls at this instruction, from its source; empty if it is not a plain name."""
    line, end_line, column, end_column = list(code.co_positions())[instruction // 2]
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
