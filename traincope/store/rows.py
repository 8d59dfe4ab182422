"""Ledger rows: what a step came to on one rank, a JSON line each, written by the node's agent.

    [step, start, wall, own, anomalous, {"forward": 41000000, "exposed_wait[fsdp]": 200000, ...}]

About 200 bytes, all times in ns. Whole lines are added, and what a kill leaves of one is no row: whoever goes on
writing cuts it off first.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincope.store.layout import ROWS_FILE
from traincope.store.lines import parse

NUMBERS = 4
"""How many come before the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One finished step of one rank."""

    rank: int
    step: int
    start_ns: int
    """Wall time since the epoch."""
    wall_ns: int
    """From start to end, without evaluation."""
    own_ns: int
    """What the recorder spent in it."""
    anomalous: bool
    """It took far longer than others, or something went wrong in it, on any rank of the node."""
    terms: Mapping[str, int]
    """Ledger term -> ns; those that are not there had no time. They sum to `wall_ns`."""


def read_rows(directory: Path, *, rank: int) -> tuple[Row, ...]:
    """Of a rank's directory, by step; none where no agent wrote any. A line that is no row is left out."""
    try:
        lines = (directory / ROWS_FILE).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return ()
    rows = (_row(parse(line.decode(errors="replace")), rank=rank) for line in lines)
    by_step = {row.step: row for row in rows if row is not None}
    return tuple(by_step[step] for step in sorted(by_step))


def append_rows(directory: Path, rows: Iterable[Row]) -> None:
    """In one write. Raises OSError where they cannot be written."""
    text = "".join(f"{json.dumps(_fields(row), separators=(',', ':'))}\n" for row in rows)
    descriptor = os.open(directory / ROWS_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    with open(descriptor, "r+b", buffering=0) as file:
        _cut_torn_line(file.fileno())
        file.write(text.encode())


def _cut_torn_line(descriptor: int) -> None:
    """Behind the last line break, which somebody was killed before writing."""
    size = os.fstat(descriptor).st_size
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return
    content = os.pread(descriptor, size, 0)
    os.ftruncate(descriptor, content.rfind(b"\n") + 1)


def _fields(row: Row) -> list[object]:
    terms = {term: ns for term, ns in row.terms.items() if ns}
    return [row.step, row.start_ns, row.wall_ns, row.own_ns, int(row.anomalous), terms]


def _row(raw: Any, *, rank: int) -> Row | None:
    if not isinstance(raw, list) or len(raw) != NUMBERS + 2 or not isinstance(raw[-1], dict):
        return None
    if any(type(number) is not int for number in (*raw[:-1], *raw[-1].values())):
        return None
    step, start_ns, wall_ns, own_ns, anomalous, terms = raw
    return Row(
        rank=rank,
        step=step,
        start_ns=start_ns,
        wall_ns=wall_ns,
        own_ns=own_ns,
        anomalous=bool(anomalous),
        terms={str(term): ns for term, ns in terms.items()},
    )
