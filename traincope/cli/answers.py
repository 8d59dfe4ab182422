"""Write a command's answer: as text or as JSON, to the screen or to a file."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from traincope.cli.screen import make_console, print_bytes, print_exactly
from traincope.errors import UsageError
from traincope.whole_files import output

A = TypeVar("A")


def add_format(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add `--format` with text, JSON and the formats in `more`."""
    parser.add_argument(
        "--format", choices=("text", "json", *more), default="text", help="output format (default: text)"
    )


def print_answer(answer: A, show: Callable[[A, Console], None], *, format: str) -> None:
    """Print `answer` as JSON, or as text with `show`."""
    if format == "json":
        print(json.dumps(answer, indent=2))
    else:
        show(answer, make_console())


def write_answer(content: str | bytes, path: Path | None, *, is_drawn: bool = False) -> None:
    """Write to the file that the user named, or to standard output. Raises UsageError.

    `is_drawn`: a console of ours drew it. Any other text is data. It reaches a file or a pipe unchanged.
    """
    if path is None:
        if isinstance(content, bytes):
            print_bytes(content)
        elif is_drawn or not sys.stdout.isatty():
            print_exactly(content)
        else:
            sys.stdout.write(content)
        return
    try:
        with output(path) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; give another file") from error
