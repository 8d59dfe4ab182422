"""Hardware: hosts, devices and software of the run, GPU samples over the steps, and the driver's events."""

from collections.abc import Iterator

from traincope.analysis import gpu_samples
from traincope.analysis.faults.faults import OF_HARDWARE
from traincope.report.sections.faults import job_ns
from traincope.report.sections.section import Drawing, Lines, Part, Section, Table, rows
from traincope.report.sections.source import Source
from traincope.units import count, numbers

NAME, TITLE = "hardware", "Hardware"
NOTHING = "No hardware was recorded."
NO_EVENT = "No throttling, GPU error or lost GPU was reported by an NVIDIA driver."
MAX_ROWS = 64


def hardware(source: Source) -> Section:
    if not source.analysis.timeline.run.ranks:
        return Section(name=NAME, title=TITLE, missing=NOTHING)
    return Section(name=NAME, title=TITLE, parts=(*_hosts(source), _samples(source), _events(source)))


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
