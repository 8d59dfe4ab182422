"""Hardware: hosts, devices and software of the run, links, GPU samples over the steps, and the driver's events."""

from collections.abc import Iterator

from traincope.analysis import gpu_samples
from traincope.analysis.faults.anomalies.links import HostLink, counted, host_links, lanes
from traincope.analysis.faults.faults import OF_HARDWARE
from traincope.report.sections.faults import job_ns
from traincope.report.sections.section import Drawing, Lines, Part, Section, Table, rows
from traincope.report.sections.source import Source
from traincope.units import MISSING, count, numbers, size

NAME, TITLE = "hardware", "Hardware"
NOTHING = "No hardware was recorded."
NO_EVENT = "No throttling, GPU error or lost GPU was reported by an NVIDIA driver."
MAX_ROWS = 64


def hardware(source: Source) -> Section:
    if not source.analysis.timeline.run.ranks:
        return Section(name=NAME, title=TITLE, missing=NOTHING)
    return Section(name=NAME, title=TITLE, parts=(*_hosts(source), *_links(source), _samples(source), _events(source)))


def _hosts(source: Source) -> Iterator[Part]:
    run = source.analysis.timeline.run
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank in run.ranks:
        device = str(rank.info.device.get("name") or "unknown")
        ranks.setdefault((rank.info.host.name, device), []).append(rank.rank)
    yield Table(
        caption="Hosts and devices",
        heads=("host", "device", "ranks"),
        rows=rows((*place, numbers(members, "rank")) for place, members in list(ranks.items())[:MAX_ROWS]),
        left=frozenset({0, 1, 2}),
    )
    if len(ranks) > MAX_ROWS:
        yield Lines((f"and {count(len(ranks) - MAX_ROWS, 'more row')}",))
    versions = rows(sorted(run.info.versions.items()))
    yield Table(caption="Software", heads=("software", "version"), rows=versions, left=frozenset({0, 1}))


def _links(source: Source) -> Iterator[Part]:
    """Links with errors first, then those of most traffic. Unused links are left out."""
    links = [each for each in host_links(source.analysis.timeline) if each.is_slot or each.is_up or each.counts]
    if not links:
        return
    links.sort(key=lambda each: (-sum(each.counts.values()), each.is_slot, -(each.sent_bytes or 0)))
    yield Table(
        caption="Links of the hosts, by the kernel's counts while the run was recorded",
        heads=("host", "link", "kind", "speed", "sent", "received", "errors"),
        rows=rows(map(_link, links[:MAX_ROWS])),
        left=frozenset({0, 1, 2, 3, 6}),
    )
    if len(links) > MAX_ROWS:
        yield Lines((f"and {count(len(links) - MAX_ROWS, 'more link')}",))


def _link(link: HostLink) -> tuple[str, ...]:
    speed = MISSING if link.bits_per_second is None else f"{link.bits_per_second / 1e9:g} Gb/s"
    if link.width is not None:
        speed = f"{speed} x{link.width}"
    if link.is_slot:
        can = "" if link.max_width is None else f" of {lanes(link.max_transfers, link.max_width)}"
        speed = f"{lanes(link.transfers, link.width)}{can}"
    errors = ", ".join(f"{number:,} {counted(name, number)}" for name, number in link.counts.items())
    kind = f"PCIe of {link.of}" if link.is_slot else link.of or "unknown"
    return (link.host, link.name, kind, speed, size(link.sent_bytes), size(link.received_bytes), errors or "none")


def _samples(source: Source) -> Part:
    samples = gpu_samples(source.analysis.timeline)
    if samples:
        caption = "GPU samples; line: mean over ranks; band: lowest to highest rank"
        return Drawing(figure="readings", of=(samples,), caption=caption)
    probes = source.document["recorder"]["probes"]
    states = "; ".join(dict.fromkeys(probe["state"] for probe in probes if probe["name"] == "hardware")) or "missing"
    return Lines((f"GPU power, clock, temperature and utilization were not recorded. Hardware probe: {states}.",))


def _events(source: Source) -> Part:
    events = [fault for fault in source.analysis.faults if fault.kind in OF_HARDWARE]
    if not events:
        return Lines((NO_EVENT,))
    caption = f"{count(len(events), 'event')} of throttling, power limits and errors by rank; Faults lists each"
    return Drawing(figure="driver", of=(events, *job_ns(source.analysis)), caption=caption)
