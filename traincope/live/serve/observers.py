"""Registry of the agent's observers, one line each."""

import os
from dataclasses import dataclass
from pathlib import Path

from traincope.live.node.noticing.anomaly_windows import AnomalyWindows
from traincope.live.peers.peers import Peers, peers_or_none
from traincope.live.peers.settings import peer_settings
from traincope.live.serve.exporting import Exporting
from traincope.live.serve.latest_scalars import LatestScalars
from traincope.live.serve.standing import Standing
from traincope.live.window import Observer
from traincope.record.session.identity import this_host


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLocation:
    """Location of an agent."""

    run: Path
    """Run directory, an absolute path."""
    attempt: int
    job: str
    """Name of user, job and attempt, unique on the node, for files that several jobs share."""


def make_peers(key: str | None = None) -> Peers:
    """`key`: with which the agents of the job's hosts recognize each other, from the rank that started this one."""
    return peers_or_none(lambda: peer_settings(os.environ, key=key), host=this_host())


def make_observers(location: AgentLocation, *, peers: Peers) -> tuple[Observer, ...]:
    host = this_host().name
    exporting = Exporting(job=location.job, host=host)
    return (exporting, Standing(exporting.samples), LatestScalars(host=host), AnomalyWindows(), peers)
