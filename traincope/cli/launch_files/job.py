"""A training of several hosts, as every launch file describes it."""

import re
from dataclasses import dataclass
from pathlib import Path

from traincope.cli.launch.hang_exit import EXIT

MAX_NAME = 40
"""Schedulers add a number to the name, and a host's name has at most 63 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchJob:
    """A training that a scheduler starts. Each host runs one torchrun; hosts that are not needed wait as hot spares."""

    config: Path | None = None
    """Configuration file of the engine on this machine, absolute; None with a `command`."""
    config_text: str = ""
    """Content of the configuration file."""
    command: tuple[str, ...] = ()
    """Command of torchrun instead of the engine: its own options, the script, and the script's arguments."""
    overrides: tuple[str, ...] = ()
    """Overrides of the configuration, each `table.key=value`."""
    out: Path
    """Run directory on the hosts. A relative one is below `shared`."""
    shared: Path
    """Folder that all hosts reach under this path. The training runs in it."""
    nodes: int
    """Hosts that train at the same time."""
    min_nodes: int
    """Hosts with which it goes on if others are lost. Equal to `nodes`: with all."""
    spare_nodes: int = 0
    """Hosts that wait until one that trains is lost."""
    gpus_per_node: int
    """Ranks, and GPUs, of each host."""
    resume: bool
    """The configuration has checkpoints, so every start continues from the newest."""
    max_restarts: int = 0
    """Restarts by torchrun, and again by the scheduler."""
    on_hang: str
    """Reaction to a hang (`hang_exit`)."""
    port: int
    """Port of the rendezvous, on the first host."""
    metrics_port: int | None = None
    """Port at which each agent serves its metrics to other machines. None: only to its own host."""
    metrics_access: str | None = None
    """Certificate and passwords of these servers: a folder on each host; for pods, the name of a Secret."""
    image: str | None = None
    """Container image with traincope."""
    gpu: str | None = None
    """The GPUs' name in the scheduler."""
    volume: str | None = None
    """Name of the volume that is mounted at `shared`."""
    peer_key: str | None = None
    """The key of the agents: a file of mode 600 on each host; for pods, the name of a Secret."""
    shm_size: str
    """Size of /dev/shm in a pod."""

    @property
    def hosts(self) -> int:
        """Hosts that the scheduler must provide."""
        return self.nodes + self.spare_nodes

    @property
    def name(self) -> str:
        """Name of the job, as a part of a host name: lower-case letters, digits and hyphens, a letter first."""
        words = re.sub(r"[^a-z0-9]+", "-", self.out.name.lower()).strip("-")
        return (words if words[:1].isalpha() else f"run-{words}")[:MAX_NAME].strip("-")

    @property
    def restarts_after_hang(self) -> int:
        """Starts that the scheduler repeats after a hang was ended."""
        return self.max_restarts if self.on_hang == EXIT else 0
