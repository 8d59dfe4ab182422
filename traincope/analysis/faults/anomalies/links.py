"""The hosts' links as the kernel counts them, and faults of these: errors, lost links, links slower than they could be.

Only what grew during the run counts. A speed counts as low only next to the same port or card of other hosts, or to
what the link had before: a port may have a lower speed by design.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, TypeVar

from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.events import KERNEL_LOG, LINK_CHANGED, LINK_ERRORS, NO_STEP
from traincope.store.segments.segments import recorder_events
from traincope.timeline import RankTimeline, Timeline
from traincope.units import duration

LINK_EVENTS = frozenset({LINK_CHANGED, LINK_ERRORS, KERNEL_LOG})
"""Events that are read here."""
FEW = 100
"""Errors of one kind below which nothing is said: sound links have some. Ours."""
FEW_PER_HOUR = 10
"""The same per hour of a longer run. Ours."""
MIN_RETRANSMITTED = 0.005
"""Share of what was sent, from which what TCP, or EFA, sends again is a fault: both do without loss too. Ours."""
MIN_PEERS = 2
"""Fewest other hosts with which a link is compared."""
MIN_STEPS, LONGER = 5, 1.2
"""Fewest steps, with errors and without, and the ratio of their times from which it is mentioned."""
MUCH_SLOWER = 0.1
"""Rate of errors relative to the highest one below which steps count as those without."""

LOST = frozenset({"link_downed", "carrier_down_count"})
SURE = frozenset({"uncorrected errors"})
"""Counts of which one is enough."""
BY_SHARE = frozenset({"retransmitted segments", "retrans_pkts"})
COUNTS = {
    "symbol_error": "symbol errors",
    "link_error_recovery": "recoveries of the link",
    "port_rcv_errors": "damaged packets received",
    "port_xmit_discards": "packets dropped before they were sent",
    "local_link_integrity_errors": "errors of the local link",
    "packet_seq_err": "requests to send again after a gap",
    "local_ack_timeout_err": "timeouts after which packets were sent again",
    "implied_nak_seq_err": "packets sent again after a later answer",
    "rx_icrc_encapsulated": "RoCE packets with a wrong checksum",
    "retrans_pkts": "packets sent again",
    "retrans_timeout_events": "timeouts after which packets were sent again",
    "rx_errors": "damaged frames received",
    "tx_errors": "frames that could not be sent",
    "tx_carrier_errors": "frames lost with the carrier",
    "retransmitted segments": "segments sent again",
    "corrected errors": "corrected errors on the PCIe bus",
    "uncorrected errors": "uncorrected errors on the PCIe bus",
}
"""The kernel's name of a count -> what it counts."""
TCP = "TCP"
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Errors of a link between two readings."""

    since_ns: int
    at_ns: int
    step: int
    counts: Mapping[str, int]
    sent_packets: int | None
    """Packets, or TCP's segments, sent meanwhile; None if they are unknown."""

    @property
    def per_second(self) -> float:
        return sum(self.counts.values()) * 1e9 / max(self.at_ns - self.since_ns, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """A port or slot of a host during a run. None: unknown."""

    host: str
    ranks: tuple[int, ...]
    """Ranks of the host; of a GPU's slot, the rank that uses it."""
    name: str
    """`mlx5_0/1` (device/port), a network interface, `TCP`, or a PCI address."""
    of: str
    """`InfiniBand`, `RoCE`, `Ethernet`, `TCP`, or what the slot holds; empty if its state is not in the records."""
    card: str = ""
    is_up: bool | None = None
    """At the last reading."""
    went_down_ns: int | None = None
    """First reading at which it was down, of a port that was up."""
    bits_per_second: int | None = None
    """Lowest speed while it was up."""
    first_bits_per_second: int | None = None
    is_gpu: bool = False
    """True for the slot of a GPU."""
    transfers: float | None = None
    """Lowest speed of a slot in GT/s; of a GPU's the highest, because one without work is slower."""
    width: int | None = None
    """Lowest number of lanes."""
    max_transfers: float | None = None
    max_width: int | None = None
    is_used: bool = False
    """True for the slot of a GPU that a rank uses. One without work lowers its speed."""
    sent_bytes: int | None = None
    """Bytes until `rank.json` was last written: those of the run, after a clean end."""
    received_bytes: int | None = None
    slowed_ns: int | None = None
    """First reading with less than at first, or than it can have."""
    known_errors: Mapping[str, int] = field(default_factory=dict)
    """Those in `rank.json`."""
    growths: tuple[Growth, ...] = ()

    @property
    def counts(self) -> Mapping[str, int]:
        """Errors of the whole run by the kernel's names. Those of `rank.json` lack the last ones of a killed run, and
        events a few.
        """
        total: Counter[str] = Counter()
        for growth in self.growths:
            total.update(growth.counts)
        return total | Counter(self.known_errors)

    @property
    def is_slot(self) -> bool:
        return self.max_width is not None or self.max_transfers is not None

    @property
    def title(self) -> str:
        """Return `port mlx5_0/1 of host a`."""
        if self.is_slot:
            return f"the PCIe slot {self.name} ({self.of}) of host {self.host}"
        return f"TCP on host {self.host}" if TCP in (self.name, self.of) else f"port {self.name} of host {self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    name: str
    at_ns: int
    step: int
    details: Mapping[str, Any]


def host_links(timeline: Timeline) -> tuple[HostLink, ...]:
    """Links of all hosts whose first rank read them, by host and name."""
    hosts: dict[str, list[int]] = defaultdict(list)
    users = {}
    for each in timeline.run.ranks:
        hosts[each.info.host.name].append(each.rank)
        users[each.info.host.name, each.info.device.get("slot")] = each.rank
    timelines = {rank.rank: rank for rank in timeline.ranks}
    found: dict[tuple[str, str], HostLink] = {}
    for records in sorted(timeline.run.ranks, key=lambda each: each.rank):
        host, rank = records.info.host.name, timelines.get(records.rank)
        events = [] if rank is None else [each for each in _events(rank, records.details) if each.name != KERNEL_LOG]
        names = dict.fromkeys([*records.info.links, *(str(each.details.get("port", "")) for each in events)])
        for name in filter(None, names):
            user = users.get((host, name))
            ranks = tuple(sorted(hosts[host])) if user is None else (user,)
            link = _read(records.info.links.get(name, {}), host=host, name=name, ranks=ranks, is_used=user is not None)
            for event in events:
                link = _with(link, event) if event.details.get("port") == name else link
            found.setdefault((host, name), link)
    return tuple(found[key] for key in sorted(found))


def _read(state: Mapping[str, Any], *, host: str, name: str, ranks: tuple[int, ...], is_used: bool) -> HostLink:
    """Return the link by its state in `rank.json`."""
    return HostLink(
        host=host,
        ranks=ranks,
        name=name,
        of=str(state.get("kind") or state.get("holds") or ""),
        card=str(state.get("card") or ""),
        is_up=state.get("up"),
        bits_per_second=state.get("bits_per_second"),
        first_bits_per_second=state.get("first_bits_per_second"),
        is_gpu=state.get("gpu") is True,
        is_used=is_used,
        transfers=state.get("transfers"),
        width=state.get("width"),
        max_transfers=state.get("max_transfers"),
        max_width=state.get("max_width"),
        sent_bytes=state.get("sent_bytes"),
        received_bytes=state.get("received_bytes"),
        known_errors=state.get("errors") or {},
    )


def _events(rank: RankTimeline, details_by_group: Mapping[int, Mapping[str, Any]]) -> list[_Event]:
    events = []
    for records in rank.threads.values():
        for record in recorder_events(records):
            name = rank.name(int(record["name"]))
            if name in LINK_EVENTS:
                details = details_by_group.get(int(record["group"]), {})
                at_ns, step = int(record["start_ns"]), int(record["step"])
                events.append(_Event(name=name, at_ns=at_ns, step=step, details=details))
    return sorted(events, key=lambda event: event.at_ns)


def _with(link: HostLink, event: _Event) -> HostLink:
    """Return the link after an event."""
    details = event.details
    if event.name == LINK_ERRORS:
        growth = Growth(
            since_ns=event.at_ns - round(float(details.get("seconds") or 0) * 1e9),
            at_ns=event.at_ns,
            step=event.step,
            counts=details.get("counts") or {},
            sent_packets=details.get("sent_packets"),
        )
        return replace(link, growths=(*link.growths, growth))
    is_up = details.get("up", True)
    speed, width = (details.get(key) if is_up else None for key in ("bits_per_second", "width"))
    is_slower = _below(speed, link.first_bits_per_second) or _below(width, link.max_width or link.width)
    is_slower |= _below(details.get("transfers"), link.max_transfers)
    return replace(
        link,
        is_up=details.get("up"),
        went_down_ns=event.at_ns
        if details.get("was_up") and not is_up and not link.went_down_ns
        else link.went_down_ns,
        bits_per_second=_lower(link.bits_per_second, speed),
        width=_lower(link.width, width),
        transfers=link.transfers if link.is_gpu else _lower(link.transfers, details.get("transfers")),
        slowed_ns=event.at_ns if is_slower and link.slowed_ns is None else link.slowed_ns,
    )


def _below(now: float | None, before: float | None) -> bool:
    return now is not None and before is not None and now < before


def _lower(known: Number | None, now: Number | None) -> Number | None:
    return min((value for value in (known, now) if value is not None), default=None)


def link_faults(timeline: Timeline) -> Iterator[Fault]:
    """Faults of all links and lines of the kernel's logs, unordered. The ranks of a fault are those of the host."""
    links = host_links(timeline)
    first_ns, last_ns = timeline.extent_ns
    hours = (last_ns - first_ns) / 3.6e12
    for link in links:
        yield from _errors(link, timeline, hours=hours)
        yield from _lost(link)
        yield from _slow(link, links, first_ns=first_ns)
    yield from _logged(timeline)


def many_errors(link: HostLink, *, hours: float) -> Mapping[str, int]:
    """Errors of a link that are more than a sound link has, by the kernel's names."""
    sent = [growth.sent_packets for growth in link.growths]
    total = None if None in sent else sum(number or 0 for number in sent)
    many = max(FEW, FEW_PER_HOUR * hours)
    return {
        name: count
        for name, count in link.counts.items()
        if name not in LOST
        and (count >= many or name in SURE)
        and (name not in BY_SHARE or (total is not None and count >= MIN_RETRANSMITTED * total))
    }


def _errors(link: HostLink, timeline: Timeline, *, hours: float) -> Iterator[Fault]:
    errors = many_errors(link, hours=hours)
    growths = [growth for growth in link.growths if errors.keys() & growth.counts.keys()]
    if not growths:
        return
    first, last = growths[0], growths[-1]
    sent = [growth.sent_packets for growth in growths]
    total = None if None in sent else sum(number or 0 for number in sent)
    counts = ", ".join(
        f"{count:,} {counted(name, count)}"
        + (f" ({100 * count / total:.1f} % of those sent)" if name in BY_SHARE and total else "")
        for name, count in sorted(errors.items(), key=lambda pair: -pair[1])
    )
    within = duration(last.at_ns - first.since_ns)
    counted_by = f"counted by the kernel ({', '.join(sorted(errors))}) within {within}"
    yield Fault(
        kind=FaultKind.LINK_ERRORS,
        at_ns=first.at_ns,
        ranks=link.ranks,
        step=None if first.step == NO_STEP else first.step,
        what=f"{link.title}: {counts}",
        evidence="; ".join(filter(None, (counted_by, _steps_meanwhile(growths, timeline, link.ranks)))),
        confidence=HIGH,
    )


def counted(name: str, number: int) -> str:
    """Return what a count of the kernel counts, in words for this number."""
    words = COUNTS.get(name, name)
    return words.replace("errors", "error", 1) if number == 1 else words


def _steps_meanwhile(growths: Sequence[Growth], timeline: Timeline, ranks: Sequence[int]) -> str:
    """Compare the steps in which the errors grew with the others of the first rank. Where they grew much slower than at
    most, the steps count as others.
    """
    most = max(growth.per_second for growth in growths)
    growths = [growth for growth in growths if growth.per_second >= MUCH_SLOWER * most]
    steps = next((rank.steps for rank in timeline.ranks if rank.rank in ranks), ())
    inside: list[int] = []
    outside: list[int] = []
    for step in steps[1:]:
        grew = any(step.start_ns < growth.at_ns and step.end_ns > growth.since_ns for growth in growths)
        (inside if grew else outside).append(step.end_ns - step.start_ns)
    if min(len(inside), len(outside)) < MIN_STEPS:
        return ""
    ratio = median(inside) / max(median(outside), 1)
    if ratio < LONGER:
        return "the steps meanwhile do not last longer than the others"
    return f"the steps meanwhile last {ratio:.2f} times as long as the others"


def _lost(link: HostLink) -> Iterator[Fault]:
    growths = [growth for growth in link.growths if growth.counts.keys() & LOST]
    times = sum(count for growth in growths for name, count in growth.counts.items() if name in LOST)
    if not times and link.went_down_ns is None:
        return
    at_ns = growths[0].since_ns if growths else link.went_down_ns or 0
    step = growths[0].step if growths else NO_STEP
    how = f"lost its link {times} times" if times > 1 else "lost its link"
    state = "" if link.is_up is None else "; it is up again" if link.is_up else "; it stays down"
    yield Fault(
        kind=FaultKind.LINK_DOWN,
        at_ns=at_ns,
        ranks=link.ranks,
        step=None if step == NO_STEP else step,
        what=f"{link.title} {how}{state}",
        evidence="counted by the kernel" if times else "its state by the kernel",
        confidence=HIGH,
    )


def _slow(link: HostLink, links: Sequence[HostLink], *, first_ns: int) -> Iterator[Fault]:
    """Return less speed than at first, or than the same link has on most hosts, or a slot below what it can do."""
    peers = [other for other in links if other.host != link.host and _is_same(other, link)]
    own, usual = _speed(link), _usual([_speed(other) for other in peers])
    before = link.first_bits_per_second
    what, confidence, at_ns = "", HIGH, first_ns
    if link.is_slot:
        if link.is_gpu and not link.is_used:
            return
        can = (link.max_transfers or 0.0) * (link.max_width or 0)
        if own is None or not can or own >= can or (len(peers) >= MIN_PEERS and usual is not None and own >= usual):
            return
        confidence = HIGH if (usual is not None and usual > own) or link.slowed_ns is not None else MEDIUM
        what = f"runs at {lanes(link.transfers, link.width)}, and can do {lanes(link.max_transfers, link.max_width)}"
        at_ns = link.slowed_ns or at_ns
    elif before is not None and link.bits_per_second is not None and link.bits_per_second < before:
        what = f"fell from {_rate(before)} to {_rate(link.bits_per_second)}"
        at_ns = link.slowed_ns or at_ns
    elif len(peers) >= MIN_PEERS and own is not None and usual is not None and own < usual:
        what = f"runs at {_rate(own)}, and at {_rate(usual)} on most of the other hosts"
    if what:
        yield Fault(
            kind=FaultKind.LINK_SLOW,
            at_ns=at_ns,
            ranks=link.ranks,
            what=f"{link.title} {what}",
            evidence="speed and width by the kernel",
            confidence=confidence,
        )


def _is_same(other: HostLink, link: HostLink) -> bool:
    """Return whether they are the same kind of link: a slot's by the card, a port's by its name and card."""
    return (
        other.is_slot is link.is_slot
        and (other.card, other.of) == (link.card, link.of)
        and bool(link.card)
        and (link.is_slot or other.name == link.name)
    )


def _speed(link: HostLink) -> float | None:
    if not link.is_slot:
        return link.bits_per_second
    return None if link.transfers is None or link.width is None else link.transfers * link.width


def _usual(speeds: Sequence[float | None]) -> float | None:
    """Return the speed that more than half of these have; None without one."""
    known = Counter(speed for speed in speeds if speed is not None)
    speed, number = next(iter(known.most_common(1)), (None, 0))
    return speed if 2 * number > len(speeds) else None


def _rate(bits_per_second: float) -> str:
    return f"{bits_per_second / 1e9:g} Gb/s"


def lanes(transfers: float | None, width: int | None) -> str:
    """Return a slot's speed per lane and its number of lanes, e.g. `16 GT/s x8`."""
    return f"{'?' if transfers is None else f'{transfers:g}'} GT/s x{'?' if width is None else width}"


def _logged(timeline: Timeline) -> Iterator[Fault]:
    """Lines of the kernel's logs. NVML also reports an XID: then the line repeats it."""
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    hosts = {rank.rank: rank.info.host.name for rank in timeline.run.ranks}
    seen = set()
    for rank in timeline.ranks:
        for event in _events(rank, details[rank.rank]):
            line = str(event.details.get("kernel_message", ""))
            key = hosts[rank.rank], line, event.at_ns // 1_000_000_000
            if event.name == KERNEL_LOG and key not in seen:
                seen.add(key)
                kind = event.details.get("of", "an error")
                yield Fault(
                    kind=FaultKind.KERNEL_ERROR,
                    at_ns=event.at_ns,
                    ranks=tuple(sorted(number for number, host in hosts.items() if host == hosts[rank.rank])),
                    step=None if event.step == NO_STEP else event.step,
                    what=f"the kernel of host {hosts[rank.rank]} logged: {kind}",
                    evidence=line,
                    confidence=HIGH,
                )
