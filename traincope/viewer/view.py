"""What is looked at, as the address has it: a page, a run, and the page's own parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, urlencode

RUN = "run"
MOST_RANKS = 1 << 20
MOST_DIGITS = 18
"""Of a number in an address: such a one fits into 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Of the address `/PAGE?run=1&ranks=0-7&from=0&to=1000`."""

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
        """A whole number; None where there is none."""
        text = self.text(name) or ""
        return int(text) if _short_number(text.removeprefix("-")) else None

    def ranks(self, name: str = "ranks") -> tuple[int, ...] | None:
        """`0-3,8` as numbers; None where nothing is said, or nothing that can be read."""
        return whole_numbers(self.text(name) or "")

    def on(self, page: str, **parameters: object) -> "View":
        """Another page of the same run; parameters that are None are left out."""
        kept = {name: values for name, values in self.parameters.items() if name == RUN}
        return View(page=page, parameters=kept).but(**parameters)

    def but(self, **parameters: object) -> "View":
        """The same with other parameters (a trailing underscore is left out, for `from` is a keyword)."""
        changed = {name.rstrip("_"): _texts(value) for name, value in parameters.items()}
        return replace(self, parameters={n: v for n, v in {**self.parameters, **changed}.items() if v})


def whole_numbers(text: str) -> tuple[int, ...] | None:
    """`0-3,8` -> (0, 1, 2, 3, 8); None where it is no such list."""
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        if not _short_number(first) or (dash and not _short_number(last)):
            return None
        begin, end = int(first), int(last or first)
        if end >= MOST_RANKS or len(found) + end - begin > MOST_RANKS:
            return None
        found.update(range(begin, end + 1))
    return tuple(sorted(found)) or None


def _short_number(text: str) -> bool:
    """Longer ones are no rank, and Python reads none of 5,000 digits."""
    return text.isdecimal() and len(text) <= MOST_DIGITS


def _texts(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else (str(value),)
