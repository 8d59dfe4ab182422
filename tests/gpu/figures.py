"""Measurements of the tests of the GPU path, as the table of docs/develop/gpu.md."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    what: str
    measured: str
    held_to: str


class Figures:
    """The figures of one session, in order."""

    def __init__(self) -> None:
        self.taken: list[Figure] = []

    def take(self, what: str, *, measured: str, held_to: str) -> None:
        self.taken.append(Figure(what=what, measured=measured, held_to=held_to))


def as_markdown(versions: dict[str, str], figures: list[Figure]) -> str:
    """Format a line of versions, and one row per figure.

    >>> print(as_markdown({"GPU": "X"}, [Figure(what="a", measured="1", held_to="2")]))
    GPU X
    <BLANKLINE>
    | what | measured | held to |
    |---|---|---|
    | a | 1 | 2 |
    """
    rows = [f"| {figure.what} | {figure.measured} | {figure.held_to} |" for figure in figures]
    head = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join([head, "", "| what | measured | held to |", "|---|---|---|", *rows])
