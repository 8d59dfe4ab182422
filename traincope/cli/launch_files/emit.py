"""The options of a launch file, and the formats."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincope.cli.answers import write_answer
from traincope.cli.launch_files.job import LaunchJob
from traincope.cli.launch_files.mosaicml import mosaicml
from traincope.cli.launch_files.pods import kubeflow, kubernetes
from traincope.cli.launch_files.skypilot import skypilot
from traincope.cli.launch_files.slurm import slurm
from traincope.cli.launch_files.torchrun import torchrun
from traincope.errors import ConfigError, UsageError
from traincope.printable import printable

if TYPE_CHECKING:
    from traincope.engine.config import Config

MAX_GPUS_PER_NODE = 8
PORT = 29500
METRICS_PORT = 9400
SHM_SIZE = "16Gi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of launch files."""

    text: Callable[[LaunchJob], str]
    needs: frozenset[str] = frozenset()
    """Options that must be given."""
    takes: frozenset[str] = frozenset()
    """Options that may be given. Every format takes those outside of `SOME_FORMATS`."""


SOME_FORMATS = ("image", "gpu", "volume", "shm_size")
"""Options that not every format takes."""
_POD = {"needs": frozenset({"image", "volume", "shared"}), "takes": frozenset({"shm_size"})}
FORMATS: Mapping[str, Format] = {
    "torchrun": Format(text=torchrun),
    "slurm": Format(text=slurm),
    "k8s": Format(text=kubernetes, **_POD),
    "kubeflow": Format(text=kubeflow, **_POD),
    "skypilot": Format(text=skypilot, needs=frozenset({"gpu", "shared"}), takes=frozenset({"image", "volume"})),
    "mosaicml": Format(text=mosaicml, needs=frozenset({"image", "gpu", "shared"})),
}


def add_emit_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("launch file, instead of a training (docs/start/launch.md)")
    group.add_argument(
        "--emit", choices=FORMATS, help="write a file that starts this training on several hosts, and train nothing"
    )
    add_file_arguments(group)


def add_file_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the options of a file, without the choice of its format."""
    group.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write (default: standard output)")
    group.add_argument(
        "--gpus-per-node",
        type=int,
        metavar="N",
        help=f"GPUs, and ranks, of each host (default: {MAX_GPUS_PER_NODE}, or all ranks if they are fewer)",
    )
    group.add_argument("--spare-nodes", type=int, metavar="N", help="hosts that wait as hot spares (default: 0)")
    group.add_argument(
        "--min-nodes",
        type=int,
        metavar="N",
        help="go on with N hosts or more if others are lost and no spare is left; the data-parallel axis gets smaller "
        "(default: all hosts are needed)",
    )
    group.add_argument("--port", type=int, metavar="PORT", help=f"port of the rendezvous (default: {PORT})")
    group.add_argument(
        "--shared",
        type=Path,
        metavar="DIR",
        help="folder that all hosts reach, in which the training runs (torchrun, slurm: default this directory)",
    )
    group.add_argument("--volume", metavar="NAME", help="volume (k8s: its claim) that is mounted at --shared")
    group.add_argument("--image", metavar="IMAGE", help="container image in which traincope is installed")
    group.add_argument("--gpu", metavar="NAME", help="name of the GPUs in skypilot or mosaicml, for example H100")
    group.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help=f"port of --metrics-access (default: {METRICS_PORT})",
    )
    group.add_argument(
        "--metrics-access",
        metavar="PLACE",
        help="serve metrics to other machines with the files tls.crt, tls.key and users (lines user:password) of this "
        "folder on each host; in pods, of this Secret",
    )
    group.add_argument(
        "--peer-key",
        metavar="PLACE",
        help="let agents keep copies for each other with this key: a file of mode 600 on each host; in pods, a Secret "
        "with the item `key`",
    )
    group.add_argument("--shm-size", metavar="SIZE", help=f"size of /dev/shm in a pod (default: {SHM_SIZE})")


OPTIONS = (
    *("output", "gpus_per_node", "spare_nodes", "min_nodes", "port", "shared", "volume"),
    *("image", "gpu", "metrics_port", "metrics_access", "peer_key", "shm_size"),
)


def emit(arguments: argparse.Namespace, *, out: Path) -> None:
    """Write the launch file. Raises UsageError or ConfigError."""
    from traincope.engine.config.load import load_config

    chosen = FORMATS[arguments.emit]
    _check_options(arguments, chosen, more=(arguments.config, *arguments.overrides))
    config = load_config(arguments.config, overrides=arguments.overrides)
    job = _job(arguments, config=config, out=out)
    if chosen.needs:
        _check_shared(job, config)
    write_answer(chosen.text(job), arguments.output)


def emit_command(arguments: argparse.Namespace, *, command: tuple[str, ...], nodes: int, out: Path) -> None:
    """Write the file that starts a torchrun command on `nodes` hosts. Raises UsageError or ConfigError."""
    chosen = FORMATS[arguments.emit]
    _check_options(arguments, chosen, more=command)
    if arguments.min_nodes is not None and arguments.min_nodes > nodes:
        raise UsageError(f"--min-nodes is {arguments.min_nodes}, but --nodes is {nodes}; give at most {nodes}")
    job = LaunchJob(
        command=command,
        resume=False,
        nodes=nodes,
        min_nodes=arguments.min_nodes or nodes,
        gpus_per_node=arguments.gpus_per_node or MAX_GPUS_PER_NODE,
        **_common(arguments, out=out),
    )
    if chosen.needs:
        _check_below(job, {"--out": job.out})
    write_answer(chosen.text(job), arguments.output)


def check_not_emitting(arguments: argparse.Namespace) -> None:
    """Raise UsageError if an option of a launch file is given without --emit."""
    for option in OPTIONS:
        if getattr(arguments, option) is not None:
            raise UsageError(f"{_flag(option)} belongs to a launch file; add --emit, or leave it out")


def _check_options(arguments: argparse.Namespace, chosen: Format, *, more: Sequence[object] = ()) -> None:
    """`more`: other texts that go into the file."""
    for option in sorted(chosen.needs):
        if getattr(arguments, option) is None:
            raise UsageError(f"{arguments.emit} needs {_flag(option)}; --help describes it")
    for option in SOME_FORMATS:
        if getattr(arguments, option) is not None and option not in chosen.needs | chosen.takes:
            raise UsageError(f"{arguments.emit} does not use {_flag(option)}; leave it out")
    if arguments.metrics_port is not None and arguments.metrics_access is None:
        raise UsageError("--metrics-port serves other machines, which needs --metrics-access; give both, or neither")
    for option in ("gpus_per_node", "min_nodes", "port", "metrics_port"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UsageError(f"{_flag(option)} is {value}; it must be at least 1")
    for option in ("spare_nodes", "max_restarts"):
        if (getattr(arguments, option) or 0) < 0:
            raise UsageError(f"{_flag(option)} is {getattr(arguments, option)}; it must be at least 0")
    texts = (*more, arguments.out, *(getattr(arguments, name) for name in OPTIONS))
    for text in map(str, texts):
        if not text.isprintable():
            raise UsageError(f"{printable(text)!r} contains a character that does not print; a launch file needs text")


def _job(arguments: argparse.Namespace, *, config: "Config", out: Path) -> LaunchJob:
    ranks = config.parallel.world_size
    gpus_per_node = arguments.gpus_per_node or min(ranks, MAX_GPUS_PER_NODE)
    if ranks % gpus_per_node:
        raise UsageError(
            f"{ranks} ranks do not fill hosts of {gpus_per_node} GPUs; change [parallel] or give --gpus-per-node"
        )
    nodes = ranks // gpus_per_node
    min_nodes = arguments.min_nodes or nodes
    _check_fewer_hosts(config, min_nodes=min_nodes, nodes=nodes)
    return LaunchJob(
        config=arguments.config.absolute(),
        config_text=arguments.config.read_text(encoding="utf-8"),
        overrides=tuple(arguments.overrides),
        nodes=nodes,
        min_nodes=min_nodes,
        gpus_per_node=gpus_per_node,
        resume=config.checkpoint is not None,
        **_common(arguments, out=out),
    )


def _common(arguments: argparse.Namespace, *, out: Path) -> dict[str, Any]:
    """Fields of a job that the options give, whatever it trains."""
    return {
        "out": out,
        "shared": Path.cwd() if arguments.shared is None else arguments.shared.absolute(),
        "spare_nodes": arguments.spare_nodes or 0,
        "max_restarts": arguments.max_restarts,
        "on_hang": arguments.on_hang,
        "port": arguments.port or PORT,
        "metrics_port": None if arguments.metrics_access is None else arguments.metrics_port or METRICS_PORT,
        "metrics_access": arguments.metrics_access,
        "image": arguments.image,
        "gpu": arguments.gpu,
        "volume": arguments.volume,
        "peer_key": arguments.peer_key,
        "shm_size": arguments.shm_size or SHM_SIZE,
    }


def _check_fewer_hosts(config: "Config", *, min_nodes: int, nodes: int) -> None:
    """Check that the training fits each number of hosts with which torchrun may start it."""
    if min_nodes > nodes:
        raise UsageError(f"--min-nodes is {min_nodes}, but the training has {nodes} hosts; give at most {nodes}")
    for hosts in range(min_nodes, nodes):
        try:
            config.on_ranks(config.parallel.world_size // nodes * hosts)
        except ConfigError as error:
            raise ConfigError(f"--min-nodes {min_nodes} allows {hosts} hosts, but {error}") from error


def _check_shared(job: LaunchJob, config: "Config") -> None:
    """Check that the run and its checkpoints are below the shared folder, because a container's own disk is lost."""
    directory = None if config.checkpoint is None else config.checkpoint.directory
    _check_below(job, {"--out": job.out, "checkpoint.directory": None if directory is None else Path(directory)})


def _check_below(job: LaunchJob, places: Mapping[str, Path | None]) -> None:
    for name, place in places.items():
        if place is not None and not Path(os.path.normpath(job.shared / place)).is_relative_to(job.shared):
            raise ConfigError(f"{name} = {place} is not below --shared {job.shared}; a container would lose it")


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
