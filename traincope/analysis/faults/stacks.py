"""Place of a thread in stacks of a process: a signal wrote them, its own thread did, or they were read from outside."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from pathlib import PurePath

from traincope.store.job.outside_stacks import HOLDS_LOCK
from traincope.store.job.training_code import is_training

MAIN_ALONE = "Stack (most recent call first):"
"""Head of the main thread's stack where no other thread was read."""
HEAD = re.compile(
    rf"^(?:(?:Current thread|Thread) 0x\w+.*\(most recent call first\):|{re.escape(MAIN_ALONE)})$", re.MULTILINE
)
FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
COMMUNICATION = (
    "/torch/distributed/",
    "/torch/_ops.py",
    "/torch/nn/parallel/distributed.py",
    "/traincope/record/communication/",
    "/traincope/record/instrumentation/",
)
BACKWARD = ("/torch/autograd/",)
TEARDOWN = "destroy_process_group"
DEBUGGERS = ("/pdb.py", "/bdb.py", "/debugpy/", "/pydevd")


class Place(Enum):
    """Code in which a thread stood."""

    OUTSIDE = auto()
    """Code that does not communicate: the training's own, Python's, or torch's modules."""
    COMMUNICATION = auto()
    BACKWARD = auto()
    """In autograd's C++ code, which computes, or waits for DDP's collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    path: str
    line: int
    """0 for a frame of C."""
    function: str

    @property
    def site(self) -> str:
        name = PurePath(self.path).name
        return f"{name}:{self.line}" if self.line else name

    def __str__(self) -> str:
        return f"{self.function} ({self.site})"

    @property
    def is_training(self) -> bool:
        """True for code that belongs to neither Python, torch nor the recorder."""
        return is_training(self.path)

    @property
    def is_teardown(self) -> bool:
        """True for torch's end of its process groups."""
        return self.function == TEARDOWN and COMMUNICATION[0] in self.path

    @property
    def is_debugger(self) -> bool:
        return any(part in self.path for part in DEBUGGERS)


def training_thread(text: str) -> tuple[Frame, ...]:
    """Frames of the main thread, the innermost first; empty without a stack.

    `text`: what `faulthandler` wrote. It lists the newest thread first, so the main thread is the last one.
    """
    return next(reversed(_threads(text)), ())


def shows_all_threads(text: str) -> bool:
    """False if the main thread alone was read, because the training handles the signal itself and goes on."""
    return MAIN_ALONE not in text


def other_threads(text: str) -> tuple[tuple[Frame, ...], ...]:
    """Frames of all threads but the main one."""
    return tuple(_threads(text)[:-1])


def holds_lock(text: str) -> bool:
    """True if the text says that the main thread holds Python's lock."""
    heads = HEAD.findall(text)
    return bool(heads) and HOLDS_LOCK in heads[-1]


def interrupted_thread(text: str) -> tuple[Frame, ...]:
    """Frames of the thread that the signal interrupted, if the text names it; otherwise of the main thread."""
    heads = [head.group() for head in HEAD.finditer(text)]
    current = (frames for head, frames in zip(heads, _threads(text), strict=True) if head.startswith("Current"))
    return next(current, training_thread(text))


def is_outside_of_python(text: str) -> bool:
    """True if the signal met a thread that runs no Python, e.g. one of gloo."""
    return not any(head.group().startswith("Current") for head in HEAD.finditer(text))


def fatal_error(text: str) -> str | None:
    """Name of a fatal signal by its first line, e.g. "Segmentation fault"."""
    match = FATAL.search(text)
    return match.group(1).strip() if match else None


def place_of(frames: tuple[Frame, ...]) -> Place | None:
    """Decide by the frames that are inside the innermost frame of the training; None without frames."""
    if not frames:
        return None
    inner = []
    for frame in frames:
        if frame.is_training:
            break
        inner.append(frame)
    if any(part in frame.path for frame in inner for part in COMMUNICATION):
        return Place.COMMUNICATION
    if any(part in frame.path for frame in inner for part in BACKWARD):
        return Place.BACKWARD
    return Place.OUTSIDE


def call_site(frames: tuple[Frame, ...]) -> str | None:
    """The innermost line of the training's own code."""
    return next((frame.site for frame in frames if frame.is_training), None)


def _threads(text: str) -> list[tuple[Frame, ...]]:
    bounds = [(head.start(), head.end()) for head in HEAD.finditer(text)] + [(len(text), len(text))]
    return [tuple(_frames(text[begin:end])) for (_, begin), (end, _) in pairwise(bounds)]


def _frames(text: str) -> Iterator[Frame]:
    for path, line, function in FRAME.findall(text):
        yield Frame(path=path, line=int(line), function=function)
