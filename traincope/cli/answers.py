"""Print a command's answer as text or as JSON."""

import argparse
import json
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console

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
        show(answer, Console())
