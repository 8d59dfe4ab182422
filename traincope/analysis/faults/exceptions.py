"""Exceptions of a rank: the one that ended it, those that it came from, and the one that counts.

Where the communication failed while another exception was being handled (a collective in a `finally` or an `except`),
the first one counts: the failure is its consequence. Where an exception came from a failure of the communication, the
failure counts. Of a group of exceptions (`asyncio.TaskGroup`) the first one counts: the group only says that some
failed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from textwrap import shorten
from typing import Any

from traincope.events import EXCEPTION, LEFT, THREAD_ENDED
from traincope.store import RankRecords
from traincope.store.job.training_code import is_training
from traincope.store.segments.segments import recorder_events
from traincope.timeline import RankTimeline

MAX_MESSAGE_CHARACTERS = 200
"""Longer messages are cut where they are part of a sentence."""
NUM_CALLERS = 3
"""Number of an exception's calling frames that are named."""
MAX_BEHIND = 2
"""Number of exceptions behind the one that counts that are named."""
SOURCE = re.compile(r"^\[[^\]\s]*\.(?:cc|cpp|h|hpp):\d+\] ")
"""Line of C++ in front of a message."""
PADDING = re.compile(r"\. This is typically caused by .*", re.DOTALL)
"""General remarks of gloo behind a message."""
LINKS = {"cause": "caused by", "context": "while handling"}
MEMBER = "member"
EXIT = "SystemExit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """One exception, as the rank recorded it."""

    kind: str
    """Its type."""
    message: str = ""
    at: str = ""
    """File and line of the raise."""
    traceback: tuple[str, ...] = ()
    """File, line and function of its frames, innermost last."""
    code: int | None = None
    """Exit code of a SystemExit."""
    call: str = ""
    """`sys.exit` or `os._exit`, if that raised it or took its place."""
    link: str = ""
    """`cause` or `context` of the one before it, or `member` of that group."""
    handler: str = ""
    """Signal whose handler raised it."""
    out_of_memory: bool = False
    of_communication: bool = False

    @property
    def place(self) -> str:
        """The training's innermost line, and the line of the raise if that is another."""
        own = next((frame for frame in reversed(self.traceback) if is_training(_path(frame))), None)
        if own is None or _site(own) == self.at or not self.at:
            return self.at
        return f"{_site(own)} (raised at {self.at})"

    @property
    def site(self) -> str:
        """The training's innermost line, or the line of the raise."""
        return self.place.partition(" ")[0]

    def __str__(self) -> str:
        subject = self.kind if self.code is None else f"exited with code {self.code}"
        if self.call:
            subject = f"left by {self.call}({self.code})"
        message = shortened(self.message)
        by_handler = f" in its handler of {self.handler}" if self.handler else ""
        return f"{subject}{f': {message}' if message else ''}{f' at {self.place}' if self.place else ''}{by_handler}"

    @property
    def callers(self) -> str:
        """The training's calls that led to its line, the nearest first; all calls if none of its frames is known."""
        own = [frame for frame in self.traceback if is_training(_path(frame))] or self.traceback
        nearest = [f"{_site(frame)} in {frame.rpartition(' in ')[2]}" for frame in own[-2 : -2 - NUM_CALLERS : -1]]
        return f"called from {', '.join(nearest)}" if nearest else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """An exception that ended a rank, and those behind it, the nearest first."""

    raised: tuple[Raised, ...]
    failures: tuple[tuple[int, Raised], ...] = ()
    """Ranks and what they raised, the first ones, if it is an error that torch raises on all ranks because of these."""
    num_failed: int = 0
    """Number of all these ranks."""

    @property
    def last(self) -> Raised:
        """The one that ended the rank."""
        return self.raised[0]

    @property
    def counted(self) -> Raised:
        """The one that counts."""
        return self.raised[self._at]

    @property
    def hidden_by(self) -> Raised | None:
        """The failure of the communication that took its place; None without one."""
        before = self.raised[self._at - 1] if self._at else None
        hides = before is not None and before.of_communication and not self.counted.of_communication
        return before if hides else None

    @property
    def behind(self) -> str:
        """Those that the one that counts came from."""
        rest = self.raised[self._at + 1 : self._at + 1 + MAX_BEHIND]
        return "".join(
            [f", in {self.raised[self._at - 1].kind}"] * (self.counted.link == MEMBER)
            + [f", {LINKS.get(each.link, 'after')} {each}" for each in rest]
            + [f", because rank {rank} raised {each}" for rank, each in self.failures[:MAX_BEHIND]]
        )

    @property
    def _at(self) -> int:
        first = int(self.last.kind == EXIT and len(self.raised) > 1)
        while first + 1 < len(self.raised) and self.raised[first + 1].link == MEMBER:
            first += 1
        failed = [at for at in range(first, len(self.raised)) if self.raised[at].of_communication]
        return min(failed[-1] + 1, len(self.raised) - 1) if failed else first


def exception_of(rank: RankTimeline, records: RankRecords) -> tuple[int, Chain] | None:
    """Time and chain of the exception that ended the rank's run; None if no event has it."""
    for event in reversed(recorder_events(rank.main)):
        details = records.details.get(int(event["group"]), {})
        if rank.name(int(event["name"])) == EXCEPTION and details.get("type") == rank.ending:
            return int(event["start_ns"]), chain_of(details)
    return None


def exit_of(rank: RankTimeline, records: RankRecords) -> tuple[int, Chain] | None:
    """Time and chain of the call that ended the process; None without one, or if the rank began work after it."""
    events = [
        (int(event["start_ns"]), records.details.get(int(event["group"]), {}))
        for each in rank.threads.values()
        for event in recorder_events(each)
        if rank.name(int(event["name"])) == LEFT
    ]
    at_ns, details = max(events, key=lambda event: event[0], default=(0, {}))
    return (at_ns, chain_of(details)) if details and not _began_after(rank, at_ns) else None


def ended_threads(rank: RankTimeline, records: RankRecords) -> Iterator[tuple[int, str]]:
    """Time and description of each exception that ended another thread of the rank."""
    for each in rank.threads.values():
        for event in recorder_events(each):
            details = records.details.get(int(event["group"]), {})
            if rank.name(int(event["name"])) == THREAD_ENDED and details:
                chain = chain_of(details)
                yield int(event["start_ns"]), f"its thread {details.get('thread')} ended by {chain.counted}"


def chain_of(details: Mapping[str, Any]) -> Chain:
    """Read the details of the event of an exception or of an exit."""
    first = [_raised(details)]
    if "handling" in details:
        first.append(_raised(details, prefix="handling_"))
    behind = details.get("chain")
    rest = [_raised(each) for each in behind if isinstance(each, dict)] if isinstance(behind, list) else []
    failures = details.get("failures")
    failed = [each for each in failures if isinstance(each, dict)] if isinstance(failures, list) else []
    return Chain(
        raised=(*first, *rest),
        failures=tuple((each["rank"], _raised(each)) for each in failed if isinstance(each.get("rank"), int)),
        num_failed=number if isinstance(number := details.get("num_failed"), int) else 0,
    )


def shortened(message: str) -> str:
    """Return a message on one line: its first line, and the last one of a traceback inside, which a worker adds."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    text = f"{lines[0]} ... {lines[-1]}" if "Traceback (most recent call last)" in message else lines[0]
    return shorten(PADDING.sub("", SOURCE.sub("", text)), MAX_MESSAGE_CHARACTERS, placeholder=" [...]")


def _raised(details: Mapping[str, Any], *, prefix: str = "") -> Raised:
    kind = str(details.get("handling" if prefix else "type"))
    message, at = (str(details.get(f"{prefix}{key}") or "") for key in ("message", "at"))
    frames, code = details.get(f"{prefix}traceback"), details.get("code")
    behind = "handling" in details and not prefix
    return Raised(
        kind=kind,
        message=message,
        at=at,
        traceback=tuple(map(str, frames)) if isinstance(frames, list) else (),
        code=code if isinstance(code, int) and not prefix else None,
        call=str(details.get("call") or "") if not prefix else "",
        link=str(details.get("link") or ""),
        handler=str(details.get("signal_handler") or "") if not prefix else "",
        out_of_memory=bool(details.get("out_of_memory")) and not behind,
        of_communication=bool(details.get("communication")) and not behind,
    )


def _began_after(rank: RankTimeline, at_ns: int) -> bool:
    return any(step.start_ns > at_ns for step in rank.steps) or any(
        record.start_ns > at_ns for record in rank.open_records
    )


def _path(frame: str) -> str:
    return frame.partition(" in ")[0].rpartition(":")[0]


def _site(frame: str) -> str:
    return PurePath(frame.partition(" in ")[0]).name
