"""Contents of `run.json` and `rank.json`, decoded and type-checked."""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from traincope.errors import RunDirectoryError, VersionError
from traincope.events import FORMAT_VERSION, READABLE_VERSIONS
from traincope.plan.measured_peaks import measured_flops
from traincope.store.job.process import Process
from traincope.store.layout import RANK_FILE, RUN_FILE, SIGNAL_FILES, attempt_number, rank_number
from traincope.store.lines import read_object
from traincope.topology import ClusterNode, Host, RankCoord, Scheduler

NODE_NAME = re.compile(r"\w[\w.-]{0,252}", re.ASCII)
HEXADECIMAL = re.compile(r"[0-9a-f]+")
MAX_RANKS = 1 << 20
"""A larger size means a damaged file."""
MARK = "~"
"""Between the name and the digest in the label of a run."""
DIGEST_DIGITS = 4
MAX_LOOKED_AT = 8
"""Ranks of the first attempt in which its launch is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Contents of `run.json`."""

    id: str
    world_size: int
    mesh: dict[str, int]
    """Axis -> size, outermost first; empty if the run has no DeviceMesh."""
    started_wall_ns: int
    versions: dict[str, str]
    command: str
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables that change how training runs; never a secret."""
    git_revision: str | None = None
    settings: dict[str, Any]
    """Settings given to `run.describe()`: tokens per step, model FLOPs, peak, ..."""
    imported: bool = False
    """True if the run was imported from records of another tool. A missing rank then only means that it was not given.
    """
    begun_by: str | None = None
    """What no other run has: the random name of the first attempt's launch. None if it is not known."""

    @property
    def label(self) -> str:
        """The id with a digest of `begun_by`, such as `nanogpt-1128-1324~3f2a`: the same on all nodes and in all
        attempts, and another one in a run of the same name elsewhere.
        """
        if self.begun_by is None:
            return self.id
        return f"{self.id}{MARK}{hashlib.sha256(self.begun_by.encode()).hexdigest()[:DIGEST_DIGITS]}"

    @property
    def workflow(self) -> str | None:
        """Name that jobs which work together share; None without one."""
        return self._text("workflow")

    @property
    def role(self) -> str | None:
        """Name of this job among them; None without one."""
        return self._text("role")

    def _text(self, setting: str) -> str | None:
        """`describe(workflow=7)` and TRAINCOPE_WORKFLOW=7 give the same name."""
        value = self.settings.get(setting)
        return None if value in (None, "") else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """Contents of `rank.json`."""

    version: int = FORMAT_VERSION
    coord: RankCoord
    host: Host
    node: ClusterNode | None = None
    """None if no scheduler names the host, and in older runs."""
    pid: int
    process: Process | None = None
    """Identity of the rank's process; None in older runs, and on systems without /proc."""
    started_wall_ns: int
    ended_wall_ns: int | None
    """None while the process has not ended cleanly (still running, or killed)."""
    ending: str | None
    """`clean`, or the exception that left the `with` block; None as above."""
    with_process: bool = False
    """True if the run ended with its process instead of its `with` block. The recorder then did not see the exit code.
    """
    probes: dict[str, str]
    """Probe -> `on`, or the reason why it is absent."""
    recorder: dict[str, Any]
    """The recorder's own counters at a clean end; empty before."""
    launch: str | None = None
    """Random name of the job's launch, the same on all ranks; None if this one could not learn it."""
    level: int | None = None
    """Level of recording; None: unknown."""
    budget: float | None = None
    """Largest share of a step that the recorder may take on average; None: no limit, or unknown."""
    device: dict[str, Any] = field(default_factory=dict)
    """`name` and `count` of the accelerator, or of the processor and its cores; of a processor also torch's `threads`,
    and `measured_flops`, their FLOP/s by dtype, once measured."""
    cpu_limits: dict[str, Any] = field(default_factory=dict)
    """`allowed`: numbers of the cores that the training thread may run on; `cores`: number of the host's; `quota`: most
    cores of CPU time that its cgroup gets, None without a limit. Empty: unknown."""
    links: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name of each link of the host -> its state, from the rank that reads them. A port of the network has `kind` (a
    `PortKind`), `card` (vendor and device), `up`, `bits_per_second` (the lowest while it was up, and the first one as
    `first_bits_per_second`), `width` (lanes), and the bytes of the run, `sent_bytes` and `received_bytes`. The slot of
    a card has `holds`, `card`, `gpu`, its lowest speed `transfers` (GT/s; of a GPU the highest) and `width`, and those
    that it can have, `max_transfers` and `max_width`. Both have `errors`, the kernel's name of a count -> its growth.
    None: unknown."""
    issued_collectives: dict[str, int] = field(default_factory=dict)
    """torch's name of a group -> its count of collectives on it, at the end of the run; empty before."""
    signals: dict[str, str] = field(default_factory=dict)
    """Signal that arrived -> the stacks at that time."""


def read_run_info(root: Path) -> RunInfo:
    """Read `run.json`. Raises VersionError, or RunDirectoryError if it cannot be read."""
    info = parse_run_info(read_object(root / RUN_FILE), root=root)
    return replace(info, begun_by=_first_launch(root, world_size=info.world_size))


def _first_launch(root: Path, *, world_size: int) -> str | None:
    """Launch of the run's first attempt, from its ranks. A rank without others has no launch, but its start."""
    with suppress(OSError):  # of another user, or deleted meanwhile
        numbered = {number: path for path in root.iterdir() if (number := attempt_number(path)) is not None}
        for directory in islice(numbered[min(numbered)].iterdir() if numbered else (), MAX_LOOKED_AT):
            with suppress(RunDirectoryError):
                raw = read_object(directory / RANK_FILE)
                launch = _launch(raw.get("launch"))
                if launch is not None or world_size == 1:
                    return launch or str(raw.get("started_wall_ns"))
    return None


def parse_run_info(raw: Mapping[str, Any], *, root: str | Path) -> RunInfo:
    """Decode `run.json`. `root`: path or URL of the run, for the message. Raises as `read_run_info`."""
    version = raw.get("version")
    if version not in READABLE_VERSIONS:
        raise VersionError(
            f"{root} was written in format {version}, this traincope reads format {FORMAT_VERSION} and older; "
            "open it with the traincope that wrote it, or a newer one"
        )
    try:
        return RunInfo(
            id=str(raw["id"]),
            world_size=_size(raw["world_size"]),
            mesh={str(axis): _size(size) for axis, size in raw["mesh"].items()},
            started_wall_ns=int(raw["started_wall_ns"]),
            versions={str(k): str(v) for k, v in raw["versions"].items()},
            command=str(raw["command"]),
            environment={str(k): str(v) for k, v in raw.get("environment", {}).items()},
            git_revision=None if raw.get("git_revision") is None else str(raw["git_revision"]),
            settings=dict(raw["settings"]),
            imported=raw.get("imported") is True,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RunDirectoryError(
            f"{root}/{RUN_FILE} has a missing or damaged value: {error}; restore it from a copy of the run"
        ) from error


def _size(raw: Any) -> int:
    size = int(raw)
    if not 0 < size <= MAX_RANKS:
        raise ValueError(f"a size of {size}")
    return size


def read_rank_info(directory: Path) -> RankInfo:
    """Read `rank.json`. Raises RunDirectoryError if it cannot be read.

    A peak that was measured on this rank's host after the run is added to its device.
    """
    info = parse_rank_info(
        read_object(directory / RANK_FILE), path=directory / RANK_FILE, signals=_read_signals(directory)
    )
    measured = None if "measured_flops" in info.device else measured_flops(info.host.name, info.device)
    return info if measured is None else replace(info, device={**info.device, "measured_flops": measured})


def parse_rank_info(raw: Mapping[str, Any], *, path: Path, signals: Mapping[str, str]) -> RankInfo:
    """Decode `rank.json`. `path`: where it is, for the message. Raises RunDirectoryError if it is damaged."""
    try:
        return RankInfo(
            version=int(raw.get("version", FORMAT_VERSION)),
            coord=RankCoord(rank=int(raw["rank"]), coords={str(k): int(v) for k, v in raw["coords"].items()}),
            host=Host(name=str(raw["host"]), boot_id=str(raw["boot_id"])),
            node=_node(raw.get("node")),
            pid=int(raw["pid"]),
            process=Process.read(raw.get("process")),
            started_wall_ns=int(raw["started_wall_ns"]),
            ended_wall_ns=None if raw.get("ended_wall_ns") is None else int(raw["ended_wall_ns"]),
            ending=None if raw.get("ending") is None else str(raw["ending"]),
            with_process=raw.get("with_process") is True,
            probes={str(k): str(v) for k, v in raw.get("probes", {}).items()},
            recorder={str(k): v for k, v in raw.get("recorder", {}).items() if type(v) is int},
            launch=_launch(raw.get("launch")),
            level=raw["level"] if type(raw.get("level")) is int else None,
            budget=float(raw["budget"]) if type(raw.get("budget")) in (int, float) else None,
            device=dict(raw.get("device", {})),
            cpu_limits=dict(raw.get("cpu_limits") or {}),
            links=dict(raw.get("links") or {}),
            issued_collectives={str(k): int(v) for k, v in raw.get("issued_collectives", {}).items()},
            signals=dict(signals),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RunDirectoryError(
            f"{path} (rank {rank_number(path.parent)}) has a missing or damaged value: {error}; restore it from a copy "
            "of the run"
        ) from error


def _launch(raw: Any) -> str | None:
    return raw if isinstance(raw, str) and HEXADECIMAL.fullmatch(raw) else None


def _node(raw: Any) -> ClusterNode | None:
    """None for a name that could be more than one word of a command."""
    if not isinstance(raw, dict) or raw.get("scheduler") not in list(Scheduler):
        return None
    name = raw.get("name")
    if not isinstance(name, str) or not NODE_NAME.fullmatch(name):
        return None
    return ClusterNode(scheduler=Scheduler(raw["scheduler"]), name=name)


def _read_signals(directory: Path) -> dict[str, str]:
    stacks = {path.stem.removeprefix("signal-"): path for path in sorted(directory.glob(SIGNAL_FILES))}
    return {name: path.read_text(errors="replace") for name, path in stacks.items() if path.stat().st_size}
