"""Other Python threads of a rank that compute: only the thread that holds the GIL runs, and each takes a core."""

from collections import Counter
from dataclasses import dataclass

from traincope.events import BUSY_THREAD, Kind
from traincope.timeline import Timeline
from traincope.units import share


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyThread:
    """Another Python thread of a rank, which computes while the training thread has work."""

    name: str
    runs: str
    """Qualified name of its function."""
    ratio: float
    """Part of the time in which it ran, or was ready and had no core, where it was looked at."""

    @property
    def phrase(self) -> str:
        return f"its thread {self.text} runs or waits for a core {share(self.ratio)} of the time"

    @property
    def text(self) -> str:
        return f"{self.name} ({self.runs})"


def busy_thread(timeline: Timeline, rank: int) -> BusyThread | None:
    """Return the other Python thread of a rank that was active longest. None if none was seen."""
    records = next(each for each in timeline.run.ranks if each.rank == rank)
    events = records.thread("main")
    busy_ns, of_ns = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for event in events[events["kind"] == Kind.EVENT]:
        details = records.details.get(int(event["group"]), {})
        if records.name(int(event["name"])) == BUSY_THREAD and isinstance(details.get("busy_ns"), int):
            thread = str(details.get("thread", "")), str(details.get("runs", ""))
            busy_ns[thread] += details["busy_ns"]
            of_ns[thread] += int(details.get("of_ns", 0))
    if not busy_ns:
        return None
    thread, longest_ns = busy_ns.most_common(1)[0]
    return BusyThread(name=thread[0], runs=thread[1], ratio=longest_ns / max(of_ns[thread], 1))
