"""Metrics of the node's links, by the kernel: traffic, errors, state and speed of ports, and narrow slots."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from traincope.live.metrics.series import SeriesKey, series_key
from traincope.live.window import RankStatus
from traincope.metrics import catalogue
from traincope.record.links.ports import Port, find_slots, read_ports, read_slot
from traincope.record.process.host_limits import ROOT

BITS = 8


class HostLinks:
    """Links of the node. Errors from before the agent do not count."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._slots: tuple[tuple[Path, str], ...] | None = None
        self._before: dict[tuple[str, str], int] = {}
        """(port or slot, count) -> its last value."""
        self._grown: dict[tuple[str, str], int] = {}
        self._were_up: set[str] = set()
        self._narrow: set[str] = set()
        """Slots that were narrower than they can be."""

    def is_needed(self, _ranks: Sequence[RankStatus]) -> bool:
        return True

    def look(self, _ranks: Sequence[RankStatus]) -> Mapping[SeriesKey, float]:
        return dict(self._values())

    def close(self) -> None:
        """There is nothing to close."""

    def _values(self) -> Iterator[tuple[SeriesKey, float]]:
        if self._slots is None:
            self._slots = find_slots(self._root)
        for port in read_ports(self._root):
            self._count(port.name, port.errors)
            yield from self._port(port)
        for folder, holds in self._slots:
            slot = read_slot(folder, holds)
            self._count(slot.address, slot.errors)
            if slot.width is not None and slot.max_width is not None:
                if slot.width < slot.max_width:
                    self._narrow.add(slot.address)
                if slot.address in self._narrow:
                    ratio = slot.width / slot.max_width
                    yield series_key(catalogue.SLOT_WIDTH, slot.address, holds), ratio
        for (name, kind), grown in self._grown.items():
            yield series_key(catalogue.LINK_ERRORS, name, kind), grown

    def _port(self, port: Port) -> Iterator[tuple[SeriesKey, float]]:
        for direction, total in (("sent", port.sent_bytes), ("received", port.received_bytes)):
            if total is not None and port.is_up is not False:
                yield series_key(catalogue.LINK_TRAFFIC, port.name, direction), total
        if port.is_up:
            self._were_up.add(port.name)
        if port.name in self._were_up:
            yield series_key(catalogue.LINK_UP, port.name), float(bool(port.is_up))
        if port.is_up and port.bits_per_second is not None:
            yield series_key(catalogue.LINK_SPEED, port.name), port.bits_per_second / BITS

    def _count(self, name: str, errors: Mapping[str, int]) -> None:
        """Add the growth of these counts. One that has shrunk was reset."""
        for kind, count in errors.items():
            grown = count - self._before.get((name, kind), count)
            self._before[name, kind] = count
            if grown > 0:
                self._grown[name, kind] = self._grown.get((name, kind), 0) + grown
