"""`traincope explain`: what a kind of finding or fault means, how it is known, what to do, and how to check it."""

import argparse
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from rich.markdown import Markdown
from rich.text import Text

from traincope.cli.screen import make_console
from traincope.errors import UsageError
from traincope.explanations import Explanation, explanations
from traincope.lines import Trimmed

MAX_WIDTH = 100
CLOSE = 0.7
"""Likeness of a kind that an unknown one may mean."""


class Explain:
    name = "explain"
    example = "traincope explain straggler"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "kinds",
            nargs="*",
            metavar="KIND",
            help="kind of a finding or fault, as the report names it; without any, all kinds are listed",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        console = make_console()
        console = make_console(width=min(console.width, MAX_WIDTH))
        if not arguments.kinds:
            for line in _list():
                console.print(line)
        for position, entry in enumerate(_chosen(arguments.kinds)):
            if position:
                console.print()
            console.print(Text(entry.title, style="bold"), Text(", ".join(entry.kinds), style="dim"), sep="  ")
            console.print()
            console.print(Trimmed(Markdown(entry.text)), end="")
        return 0


def _chosen(kinds: Sequence[str]) -> list[Explanation]:
    """The entries of these kinds, each once. Raises UsageError for an unknown kind."""
    known = explanations()
    names = [kind.lower().replace("-", "_").replace(" ", "_") for kind in kinds]
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, cutoff=CLOSE)
            meant = f"{' or '.join(close)}? " if close else ""
            raise UsageError(f"unknown kind {name}; {meant}`traincope explain` lists all kinds")
    return list({known[name].place: known[name] for name in names}.values())


def _list() -> Iterator[Text]:
    """The kinds by theme."""
    theme = ""
    for entry in dict.fromkeys(explanations().values()):
        if entry.theme != theme:
            theme = entry.theme
            yield Text(f"{theme}", style="bold")
        yield Text(f"  {', '.join(entry.kinds)}").append(f"  {entry.title}", style="dim")
