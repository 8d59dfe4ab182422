"""The only way to standard output and standard error. No name from a run can command the terminal.

`make_safe()` replaces both streams, so that everything that Python prints passes it: answers, messages of argparse and
logging, tracebacks, and what libraries print. Only the consoles of `make_console()` may write sequences for colours and
progress bars. They take them from rich, and never from a text.
"""

import io
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from traincope.printable import visible

if TYPE_CHECKING:
    from rich.console import Console


class Screen(io.TextIOWrapper):
    """A text stream that makes control characters visible, and those that the encoding lacks."""

    def write(self, text: str) -> int:
        return super().write(visible(text))

    def write_exactly(self, text: str) -> int:
        return super().write(text)

    def close(self) -> None:
        """Keep the stream that this one writes to: it belongs to the process."""
        self.flush()


class ErrorScreen(Screen):
    """Standard error. Nothing is left to report an error to if it is closed, full, or without a reader."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            super().write(text)
        return len(text)

    def write_exactly(self, text: str) -> int:
        with suppress(OSError, ValueError):
            super().write_exactly(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            super().flush()


def make_safe() -> None:
    """Let what this process prints pass this module. A closed stream swallows it."""
    sys.stdout = _safe(sys.stdout, Screen)
    sys.stderr = _safe(sys.stderr, ErrorScreen)


def make_console(*, stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> "Console":
    """A rich console for standard output, standard error or a file in memory."""
    if file is None:
        stream = sys.stderr if stderr else sys.stdout
        file = cast("IO[str]", _Exactly(stream)) if isinstance(stream, Screen) else None
    return _console_class()(stderr=stderr, file=file, width=width)


def print_exactly(text: str) -> None:
    """Write data, or what a console drew, to standard output."""
    if isinstance(sys.stdout, Screen):
        sys.stdout.write_exactly(text)
    else:
        sys.stdout.write(text)


def print_bytes(data: bytes) -> None:
    """Write data to standard output."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def print_past_redirection(text: str) -> None:
    """Write to the process's real standard error, also where `sys.stderr` is replaced."""
    print(visible(text), end="", file=sys.__stderr__, flush=True)


def drop_output() -> None:
    """Let standard output swallow the rest. Without this, Python prints an error at exit."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)


class _Exactly:
    """A stream that writes what a console drew, and is otherwise the given one."""

    def __init__(self, stream: Screen) -> None:
        self._stream = stream
        self.write = stream.write_exactly

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _safe(stream: TextIO | None, kind: type[Screen]) -> TextIO:
    if isinstance(stream, Screen):
        return stream
    if stream is None:
        return kind(open(os.devnull, "wb"), encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return kind(
        stream.buffer,
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


@cache
def _console_class() -> "type[Console]":
    """Define the class of safe consoles on demand: rich is slow to import."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                is_safe = segment.control or segment.text.isprintable()
                yield segment if is_safe else Segment(visible(segment.text), segment.style)

    return SafeConsole
