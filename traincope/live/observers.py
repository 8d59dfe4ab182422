"""Who is shown what the agent finds: one line each."""

from dataclasses import dataclass
from pathlib import Path

from traincope.live.exporting import Exporting
from traincope.live.window import Observer
from traincope.record.identity import this_host


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Where an agent is."""

    run: Path
    """Absolute."""
    attempt: int
    job: str
    """Names user, job and attempt among all on the node, for files that several share."""


def make_observers(node: Node) -> tuple[Observer, ...]:
    return (Exporting(job=node.job, host=this_host().name),)
