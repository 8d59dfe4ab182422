"""Export of a profile of each thread of each rank for speedscope.

Evented profiles by https://www.speedscope.app/file-format-schema.json, with times in ns since the run's first event.
The frames follow the profiles because they are complete only then.
"""

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version

from traincope.report.exports import TextExport, require_steps
from traincope.timeline import RankTimeline, Timeline
from traincope.timeline.timeline import TRAINING_THREAD
from traincope_exporters.traces.balance import balanced
from traincope_exporters.traces.intervals import Interval, in_thread, intervals, steps

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
EVENTS_PER_CHUNK = 4096
"""Events per piece of text."""


def speedscope(timeline: Timeline) -> Iterator[str]:
    """The file's text. Raises RunDirectoryError if the run has no complete step."""
    require_steps(timeline, export="speedscope")
    about = {"$schema": SCHEMA, "exporter": f"traincope {version('traincope')}", "name": timeline.run.info.id}
    yield json.dumps(about)[:-1] + ', "activeProfileIndex": 0, "profiles": ['
    frames: dict[str, int] = {}
    separator = "\n"
    for rank in timeline.ranks:
        for thread in rank.threads:
            shown = _shown(rank, thread)
            if shown:
                yield separator
                yield from _profile(_name(rank, thread), shown, frames, start_ns=timeline.start_ns)
                separator = ",\n"
    listed = [{"name": name} for name in frames]
    yield f'\n], "shared": {{"frames": {json.dumps(listed)}}}}}\n'


def _name(rank: RankTimeline, thread: str) -> str:
    return f"rank {rank.rank}" if thread == TRAINING_THREAD else f"rank {rank.rank}, {thread}"


def _shown(rank: RankTimeline, thread: str) -> list[Interval]:
    """Intervals of a thread. The training thread also has its steps."""
    inside = list(intervals(rank, in_thread(rank, thread)))
    if thread != TRAINING_THREAD:
        return inside
    return sorted((*intervals(rank, steps(rank)), *inside), key=lambda interval: (interval.start_ns, -interval.end_ns))


def _profile(name: str, shown: Sequence[Interval], frames: dict[str, int], *, start_ns: int) -> Iterator[str]:
    first, last = shown[0].start_ns - start_ns, max(interval.end_ns for interval in shown) - start_ns
    about = {"type": "evented", "name": name, "unit": "nanoseconds", "startValue": first, "endValue": last}
    yield json.dumps(about)[:-1] + ', "events": [\n'
    numbers = [frames.setdefault(_frame(interval), len(frames)) for interval in shown]
    lines: list[str] = []
    separator = ""
    for edge in balanced([interval.start_ns for interval in shown], [interval.end_ns for interval in shown]):
        kind = "O" if edge.begins else "C"
        lines.append(f'{{"type": "{kind}", "frame": {numbers[edge.number]}, "at": {edge.at_ns - start_ns}}}')
        if len(lines) == EVENTS_PER_CHUNK:
            yield separator + ",\n".join(lines)
            lines, separator = [], ",\n"
    yield (separator if lines else "") + ",\n".join(lines) + "\n]}"


def _frame(interval: Interval) -> str:
    """Name of the frame. Waits on different axes are different frames."""
    return interval.name if interval.axis is None else f"{interval.name} [{interval.axis}]"


EXPORT = TextExport(
    suffix="speedscope.json", pieces=speedscope, hint="https://www.speedscope.app, or npx speedscope FILE"
)
