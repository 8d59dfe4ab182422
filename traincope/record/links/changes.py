"""Changes between readings of a host's links, as the details of events, and the state of each link for `rank.json`.

Counts are totals since long before the run: only their growth counts. Sound links have a few errors, which are in the
state alone. More of them are written at once, and then at most every `WRITE_NS` per port, because broken links make
errors all the time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from traincope.events import LINK_CHANGED, LINK_ERRORS
from traincope.record.links.ports import (
    CARRIER_LOSSES,
    GPU,
    LINK_DOWNED,
    UNCORRECTED,
    Port,
    Slot,
    find_slots,
    read_ports,
    read_slot,
)
from traincope.record.process.host_limits import ROOT

WRITE_NS = 30_000_000_000
"""Least time between two events of one port's errors."""
MIN_WRITTEN = 20
"""Errors of a link from which they are an event. Ours."""
WHILE_UP = ("bits_per_second", "width")
Number = TypeVar("Number", int, float)

SERIOUS = frozenset({CARRIER_LOSSES, LINK_DOWNED, UNCORRECTED})
"""Counts of which one is an event."""

LinkEvent = tuple[str, dict[str, Any]]
"""An event's name and details."""


@dataclass(slots=True, kw_only=True)
class _Errors:
    """Errors of one port or slot that are not written yet."""

    before: Mapping[str, int]
    sent_packets: int | None
    since_ns: int
    """Time of the last reading whose errors are written, or that had none."""
    written_ns: int | None = None
    grown: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)
    """Errors since the first look, also those that are written."""
    packets: int | None = 0
    """Packets sent since; None if they are unknown."""


class LinkChanges:
    """The host's links between looks."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._slots = find_slots(root)
        self._errors: dict[str, _Errors] = {}
        self._states: dict[str, dict[str, Any]] = {}
        """State of each port and slot at the last look."""
        self._first: dict[str, Port] = {}
        self.links: dict[str, dict[str, Any]] = {}
        """Links as in `RankInfo.links`. Each look makes it anew."""

    def look(self, now_ns: int, *, is_last: bool = False) -> Iterator[LinkEvent]:
        """Yield the events since the last look; the first one has none. `is_last`: all errors are written."""
        links: dict[str, dict[str, Any]] = {}
        for port in read_ports(self._root):
            yield from self._changed(port.name, {"up": port.is_up, **{name: getattr(port, name) for name in WHILE_UP}})
            yield from self._grown(port.name, port.errors, port.sent_packets, now_ns, is_last=is_last)
            links[port.name] = {**self._port(port), "errors": dict(self._errors[port.name].total)}
        for folder, holds in self._slots:
            slot = read_slot(folder, holds)
            speed = {} if holds == GPU else {"transfers": slot.transfers}
            yield from self._changed(slot.address, {**speed, "width": slot.width})
            yield from self._grown(slot.address, slot.errors, None, now_ns, is_last=is_last)
            links[slot.address] = {**self._slot(slot), "errors": dict(self._errors[slot.address].total)}
        self.links = links

    def _port(self, port: Port) -> dict[str, Any]:
        """Speed and lanes are the lowest while it was up, bytes those since the first look."""
        first, known = self._first.setdefault(port.name, port), self.links.get(port.name, {})
        now = {name: getattr(port, name) if port.is_up else None for name in WHILE_UP}
        return {
            "kind": port.kind.value,
            "card": port.card,
            "up": port.is_up,
            **{name: lower(known.get(name), value) for name, value in now.items()},
            "first_bits_per_second": known.get("first_bits_per_second") or now["bits_per_second"],
            "sent_bytes": _since(first.sent_bytes, port.sent_bytes),
            "received_bytes": _since(first.received_bytes, port.received_bytes),
        }

    def _slot(self, slot: Slot) -> dict[str, Any]:
        """Speed and lanes are the lowest. The speed of a GPU is the highest after the first look: one without work is
        slower, as most are when a run begins.
        """
        known, transfers = self.links.get(slot.address, {}), slot.transfers
        if slot.holds == GPU and not known:
            transfers = None
        fastest = max((each for each in (known.get("transfers"), transfers) if each is not None), default=None)
        return {
            "holds": slot.holds,
            "card": slot.card,
            "gpu": slot.holds == GPU,
            "transfers": fastest if slot.holds == GPU else lower(known.get("transfers"), transfers),
            "width": lower(known.get("width"), slot.width),
            "max_transfers": slot.max_transfers,
            "max_width": slot.max_width,
        }

    def _changed(self, name: str, state: dict[str, Any]) -> Iterator[LinkEvent]:
        before = self._states.get(name)
        self._states[name] = state
        if before is not None and before != state:
            yield LINK_CHANGED, {"port": name, "was_up": before.get("up"), **state}

    def _grown(
        self, name: str, errors: Mapping[str, int], sent_packets: int | None, now_ns: int, *, is_last: bool
    ) -> Iterator[LinkEvent]:
        """A count that has shrunk was reset, and starts again."""
        known = self._errors.get(name)
        if known is None:
            self._errors[name] = _Errors(before=errors, sent_packets=sent_packets, since_ns=now_ns)
            return
        grown = {kind: count - known.before.get(kind, count) for kind, count in errors.items()}
        more = {kind: number for kind, number in grown.items() if number > 0}
        known.grown.update(more)
        known.total.update(more)
        sent = None if sent_packets is None or known.sent_packets is None else sent_packets - known.sent_packets
        known.packets = None if sent is None or sent < 0 or known.packets is None else known.packets + sent
        known.before, known.sent_packets = errors, sent_packets
        if not known.grown:
            known.since_ns, known.packets = now_ns, 0
        elif sum(known.grown.values()) < MIN_WRITTEN and not known.grown.keys() & SERIOUS:
            return
        elif is_last or known.written_ns is None or now_ns - known.written_ns >= WRITE_NS:
            seconds = round((now_ns - known.since_ns) / 1e9, 3)
            counts = dict(known.grown)
            yield LINK_ERRORS, {"port": name, "counts": counts, "sent_packets": known.packets, "seconds": seconds}
            known.grown, known.packets, known.since_ns, known.written_ns = Counter(), 0, now_ns, now_ns


def lower(known: Number | None, now: Number | None) -> Number | None:
    """Return the lower of the known numbers."""
    return min((each for each in (known, now) if each is not None), default=None)


def _since(first: int | None, now: int | None) -> int | None:
    """Return the growth of a count. None if it is unknown, or was reset."""
    return None if first is None or now is None or now < first else now - first
