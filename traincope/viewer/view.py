"""The current view as the address holds it: a page, a run, and the page's parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, urlencode

RUN = "run"
MAX_RANKS = 1 << 20
MAX_DIGITS = 18
"""Digits of a number in an address; a number of so many digits fits into 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The view of an address such as `/PAGE?run=1&ranks=0-7&from=0&to=1000`."""

    page: str = ""
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, pathname: str | None, search: str | None) -> "View":
        raw = parse_qs((search or "").removeprefix("?"), keep_blank_values=False)
        return cls(page=(pathname or "").strip("/"), parameters={name: tuple(values) for name, values in raw.items()})

    @property
    def address(self) -> str:
        search = urlencode([(name, value) for name, values in self.parameters.items() for value in values])
        return f"/{self.page}{'?' if search else ''}{search}"

    @property
    def run(self) -> int:
        """Position among the runs that were opened."""
        return self.whole(RUN) or 0

    def text(self, name: str) -> str | None:
        values = self.parameters.get(name)
        return values[-1] if values else None

    def texts(self, name: str) -> tuple[str, ...]:
        return self.parameters.get(name, ())

    def whole(self, name: str) -> int | None:
        """A whole number; None where the parameter is missing or not a whole number."""
        text = self.text(name) or ""
        return int(text) if _short_number(text.removeprefix("-")) else None

    def stretch(self, name: str) -> tuple[int, int] | None:
        """`5-900` as begin and end, ns; None where the parameter is missing or not a stretch."""
        begin, _, end = (self.text(name) or "").partition("-")
        both = _short_number(begin) and _short_number(end) and int(begin) < int(end)
        return (int(begin), int(end)) if both else None

    def ranks(self, name: str = "ranks") -> tuple[int, ...] | None:
        """`0-3,8` as numbers; None where the parameter is missing or invalid."""
        return whole_numbers(self.text(name) or "")

    def on(self, page: str, **parameters: object) -> "View":
        """The view of another page of the same run; parameters that are None are omitted."""
        remaining = {name: values for name, values in self.parameters.items() if name == RUN}
        return View(page=page, parameters=remaining).but(**parameters)

    def but(self, **parameters: object) -> "View":
        """A copy with other parameters; a trailing underscore is removed, because `from` is a keyword."""
        changed = {name.rstrip("_"): _texts(value) for name, value in parameters.items()}
        return replace(self, parameters={n: v for n, v in {**self.parameters, **changed}.items() if v})


def whole_numbers(text: str) -> tuple[int, ...] | None:
    """`0-3,8` -> (0, 1, 2, 3, 8); None for any other text."""
    numbers: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        if not _short_number(first) or (dash and not _short_number(last)):
            return None
        begin, end = int(first), int(last or first)
        if end >= MAX_RANKS or len(numbers) + end - begin > MAX_RANKS:
            return None
        numbers.update(range(begin, end + 1))
    return tuple(sorted(numbers)) or None


def _short_number(text: str) -> bool:
    """True for digits short enough for a rank; Python refuses to convert 5,000 digits."""
    return text.isdecimal() and len(text) <= MAX_DIGITS


def _texts(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else (str(value),)
