"""Who is shown what the agent finds: one line each."""

from dataclasses import dataclass
from pathlib import Path

from traincope.live.window import Observer


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Where an agent is."""

    run: Path
    """Absolute."""
    attempt: int
    job: str
    """Names user, job and attempt among all on the node, for files that several share."""


def make_observers(_node: Node) -> tuple[Observer, ...]:
    return ()
