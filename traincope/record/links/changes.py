"""Changes between readings of a host's links, as the details of events.

Counts are totals since long before the run: only their growth counts. What grows is written at once, and then at most
every `WRITE_NS` per port, because broken links make errors all the time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from traincope.events import HOST_PORT, HOST_SLOT, LINK_ERRORS
from traincope.record.links.ports import GPU, Port, Slot, find_slots, read_ports, read_slot
from traincope.record.process.host_limits import ROOT

WRITE_NS = 30_000_000_000
"""Least time between two events of one port's errors."""

LinkEvent = tuple[str, dict[str, object]]
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
    packets: int | None = 0
    """Packets sent since; None if they are unknown."""


class LinkChanges:
    """The host's links between looks."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._slots = find_slots(root)
        self._errors: dict[str, _Errors] = {}
        self._states: dict[str, Mapping[str, object]] = {}
        """State of each port and slot as it was written."""
        self._first: dict[str, Port] = {}
        self._fastest: dict[str, float] = {}
        """PCI address of a GPU -> its highest speed so far: one without work is slower."""
        self._began_ns: int | None = None

    def look(self, now_ns: int, *, is_last: bool = False) -> Iterator[LinkEvent]:
        """Yield the events since the last look. The first one has the states. `is_last`: all states, and all errors."""
        self._began_ns = now_ns if self._began_ns is None else self._began_ns
        for port in read_ports(self._root):
            first = self._first.setdefault(port.name, port)
            traffic = {**_traffic(port, first), "seconds": round((now_ns - self._began_ns) / 1e9, 3)}
            yield from self._state(HOST_PORT, port.name, _port_state(port), traffic, always=is_last)
            yield from self._grown(port.name, port.errors, port.sent_packets, now_ns, is_last=is_last)
        for folder, holds in self._slots:
            slot = read_slot(folder, holds)
            yield from self._state(HOST_SLOT, slot.address, self._slot_state(slot), {}, always=False)
            yield from self._grown(slot.address, slot.errors, None, now_ns, is_last=is_last)

    def _state(
        self, name: str, key: str, state: Mapping[str, object], more: Mapping[str, object], *, always: bool
    ) -> Iterator[LinkEvent]:
        if always or self._states.get(key) != state:
            self._states[key] = state
            yield name, {**state, **more}

    def _slot_state(self, slot: Slot) -> dict[str, object]:
        transfers = slot.transfers
        if slot.holds == GPU and transfers is not None:
            transfers = self._fastest[slot.address] = max(transfers, self._fastest.get(slot.address, 0.0))
        return {
            "slot": slot.address,
            "card": slot.card,
            "holds": slot.holds,
            "gpu": slot.holds == GPU,
            "transfers": transfers,
            "width": slot.width,
            "max_transfers": slot.max_transfers,
            "max_width": slot.max_width,
        }

    def _grown(
        self, key: str, errors: Mapping[str, int], sent_packets: int | None, now_ns: int, *, is_last: bool
    ) -> Iterator[LinkEvent]:
        """A count that has shrunk was reset, and starts again."""
        known = self._errors.get(key)
        if known is None:
            self._errors[key] = _Errors(before=errors, sent_packets=sent_packets, since_ns=now_ns)
            return
        grown = {name: count - known.before.get(name, count) for name, count in errors.items()}
        known.grown.update({name: more for name, more in grown.items() if more > 0})
        sent = None if sent_packets is None or known.sent_packets is None else sent_packets - known.sent_packets
        known.packets = None if sent is None or sent < 0 or known.packets is None else known.packets + sent
        known.before, known.sent_packets = errors, sent_packets
        if not known.grown:
            known.since_ns, known.packets = now_ns, 0
        elif is_last or known.written_ns is None or now_ns - known.written_ns >= WRITE_NS:
            seconds = round((now_ns - known.since_ns) / 1e9, 3)
            counts = dict(known.grown)
            yield LINK_ERRORS, {"port": key, "counts": counts, "sent_packets": known.packets, "seconds": seconds}
            known.grown, known.packets, known.since_ns, known.written_ns = Counter(), 0, now_ns, now_ns


def _port_state(port: Port) -> dict[str, object]:
    return {
        "port": port.name,
        "port_kind": port.kind.value,
        "card": port.card,
        "slot": port.slot,
        "up": port.is_up,
        "bits_per_second": port.bits_per_second,
        "width": port.width,
    }


def _traffic(port: Port, first: Port) -> dict[str, int | None]:
    """Bytes since the first reading. None if they are unknown, or if the counts were reset."""
    pairs = {
        "sent_bytes": (first.sent_bytes, port.sent_bytes),
        "received_bytes": (first.received_bytes, port.received_bytes),
    }
    return {
        name: None if before is None or now is None or now < before else now - before
        for name, (before, now) in pairs.items()
    }
