"""An answer to a question, as text for people or as JSON for programs."""

import argparse
import json
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console

A = TypeVar("A")


def add_format(parser: argparse.ArgumentParser, *more: str) -> None:
    """Every command tells text and JSON; some `more` than that."""
    parser.add_argument("--format", choices=("text", "json", *more), default="text", help="default: text")


def tell(answer: A, show: Callable[[A, Console], None], *, format: str) -> None:
    if format == "json":
        print(json.dumps(answer, indent=2))
    else:
        show(answer, Console())
