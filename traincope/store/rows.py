"""Ledger rows: what a step came to on one rank, a JSON line each, written by the node's agent.

    [step, start, wall, own, anomalous, {"forward": 41000000, "exposed_wait[fsdp]": 200000, ...}]

About 200 bytes, all times in ns. Whole lines are added, and what a kill leaves of one is no row: whoever goes on
writing cuts it off first. Of steps long past a line tells of many (`thinning.py`), and has three fields more:

    [last step, first start, wall, own, 0, {"forward": 29520000000, ...}, 720, [[50000000, 700], ...], {"wall": [...]}]
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincope.store.layout import ROWS_FILE
from traincope.store.lines import parse

ONE, SEVERAL = 6, 9
"""Fields of a line, by how many steps it tells of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """What is still known of single steps, where a row is of several."""

    num_steps: int
    lengths_ns: Mapping[int, int]
    """Upper bound of steps' wall times -> how many of them lie below it, and above the bound before."""
    quantiles_ns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """"wall" or a term -> at each of `thinning.QUANTILES`, what a step took of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One finished step of one rank, or several that are long past."""

    rank: int
    step: int
    """Of several the last."""
    start_ns: int
    """Wall time since the epoch; of several when the first began."""
    wall_ns: int
    """From start to end, without evaluation; of several the sum, as all that follows."""
    own_ns: int
    """What the recorder spent in it."""
    anomalous: bool
    """It took far longer than others, or something went wrong in it, on any rank of the node."""
    terms: Mapping[str, int]
    """Ledger term -> ns; those that are not there had no time. They sum to `wall_ns`."""
    many: Many | None = None
    """None: it is of one step."""

    @property
    def num_steps(self) -> int:
        return 1 if self.many is None else self.many.num_steps

    @property
    def lengths_ns(self) -> Mapping[int, int]:
        """As of `Many`: of one step its wall time itself."""
        return {self.wall_ns: 1} if self.many is None else self.many.lengths_ns


def read_rows(directory: Path, *, rank: int) -> tuple[Row, ...]:
    """Of a rank's directory, by step; none where no agent wrote any. A line that is no row is left out."""
    try:
        lines = (directory / ROWS_FILE).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return ()
    rows = (_row(parse(line.decode(errors="replace")), rank=rank) for line in lines)
    by_step = {row.step: row for row in rows if row is not None}
    return tuple(by_step[step] for step in sorted(by_step))


def line_of(row: Row) -> bytes:
    """With its break."""
    return json.dumps(_fields(row), separators=(",", ":")).encode() + b"\n"


def append_rows(directory: Path, rows: Iterable[Row]) -> None:
    """In one write. Raises OSError where they cannot be written."""
    text = b"".join(map(line_of, rows))
    descriptor = os.open(directory / ROWS_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    with open(descriptor, "r+b", buffering=0) as file:
        _cut_torn_line(file.fileno())
        file.write(text)


def _cut_torn_line(descriptor: int) -> None:
    """Behind the last line break, which somebody was killed before writing."""
    size = os.fstat(descriptor).st_size
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return
    content = os.pread(descriptor, size, 0)
    os.ftruncate(descriptor, content.rfind(b"\n") + 1)


def _fields(row: Row) -> list[object]:
    terms = {term: ns for term, ns in row.terms.items() if ns}
    one = [row.step, row.start_ns, row.wall_ns, row.own_ns, int(row.anomalous), terms]
    return one if row.many is None else [*one, *_fields_of_many(row.many)]


def _fields_of_many(many: Many) -> list[object]:
    return [many.num_steps, list(many.lengths_ns.items()), many.quantiles_ns]


def _row(raw: Any, *, rank: int) -> Row | None:
    if not isinstance(raw, list) or len(raw) not in (ONE, SEVERAL) or not isinstance(raw[ONE - 1], dict):
        return None
    (*numbers, terms), many = raw[:ONE], raw[ONE:]
    if any(type(number) is not int for number in (*numbers, *terms.values())):
        return None
    step, start_ns, wall_ns, own_ns, anomalous = numbers
    try:
        return Row(
            rank=rank,
            step=step,
            start_ns=start_ns,
            wall_ns=wall_ns,
            own_ns=own_ns,
            anomalous=bool(anomalous),
            terms={str(term): ns for term, ns in terms.items()},
            many=_many(*many) if many else None,
        )
    except (AttributeError, TypeError, ValueError):
        return None


def _many(num_steps: Any, lengths: Any, quantiles: Any) -> Many:
    return Many(
        num_steps=int(num_steps),
        lengths_ns={int(bound): int(count) for bound, count in lengths},
        quantiles_ns={str(term): tuple(map(int, values)) for term, values in quantiles.items()},
    )
