"""Export of a run as one trace for ui.perfetto.dev and chrome://tracing, in the JSON of torch's profiler.

Times count from `baseTimeNanoseconds`; all ranks share one axis.
"""

import json
from collections.abc import Iterator
from importlib.metadata import version

from traincope.errors import RunDirectoryError
from traincope.report.exports import TextExport
from traincope.timeline import Timeline, error_between_ns
from traincope_exporters.traces import chrome
from traincope_exporters.traces.events import Events

EVENTS_PER_CHUNK = 4096
"""Events per piece of text."""


def perfetto(timeline: Timeline) -> Iterator[str]:
    """The trace's text. Raises RunDirectoryError if the run has no event."""
    base_ns = _base_ns(timeline)
    yield json.dumps(_about(timeline, base_ns=base_ns))[:-1] + ', "traceEvents": [\n'
    lines: list[str] = []
    separator = ""
    ranks = {rank.rank for rank in timeline.ranks} | timeline.traces.ranks.keys()
    for event in Events(timeline, chrome, base_ns=base_ns).of(ranks):
        lines.append(event)
        if len(lines) == EVENTS_PER_CHUNK:
            yield separator + ",\n".join(lines)
            lines, separator = [], ",\n"
    yield (separator if lines else "") + ",\n".join(lines) + "\n]}\n"


def _base_ns(timeline: Timeline) -> int:
    threads = [records for rank in timeline.ranks for records in rank.threads.values()]
    traced = (trace for traces in timeline.traces.ranks.values() for trace in traces)
    starts = [int(records["start_ns"].min()) for records in threads if len(records)]
    starts += [int(trace.start_ns[0]) for trace in traced if len(trace)]
    if not starts:
        raise RunDirectoryError(f"{timeline.run.path} holds no events; try again once training has begun")
    return min(starts)


def _about(timeline: Timeline, *, base_ns: int) -> dict[str, object]:
    description = {
        "made by": f"traincope {version('traincope')}",
        "run": timeline.run.info.id,
        "world size": timeline.run.info.world_size,
        "maximum clock error between two ranks in ns": error_between_ns(timeline.clocks),
    }
    return {"displayTimeUnit": "ns", "baseTimeNanoseconds": base_ns, "otherData": description}


EXPORT = TextExport(
    suffix="perfetto.json", pieces=perfetto, hint="https://ui.perfetto.dev, which keeps it on this machine"
)
