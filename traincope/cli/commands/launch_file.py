"""`traincope launch-file FORMAT -- torchrun ...`: a file that starts a torchrun command on several hosts."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from traincope.cli.command import EXAMPLE, Help
from traincope.cli.launch.hang_exit import add_on_hang_argument
from traincope.cli.launch_files.emit import FORMATS, add_file_arguments, emit_command
from traincope.errors import UsageError
from traincope.store.layout import DEFAULT_ROOT
from traincope.store.places.names import new_run

LAUNCHERS = (("torchrun",), ("python", "-m", "torch.distributed.run"), ("python3", "-m", "torch.distributed.run"))
WHAT: Mapping[str, str] = {
    "torchrun": "a shell script to start on each host",
    "slurm": "a script for sbatch",
    "k8s": "a Service and an indexed Job of Kubernetes",
    "kubeflow": "a PyTorchJob of Kubeflow",
    "skypilot": "a task for sky jobs launch",
    "mosaicml": "a run for mcli run",
}
TAKEN = {"--nproc-per-node": "gpus_per_node", "--nnodes": "nodes", "--max-restarts": "max_restarts"}
"""Option of torchrun -> the argument that it gives here."""
DROPPED = "--standalone"
"""It means one host. The file has a rendezvous."""
WITH_VALUE = ("--tee", "-t", "--redirects", "-r", "--log-dir", "--monitor-interval", "--start-method", "--role")
"""Other options of torchrun with a value."""
OURS = (
    *("--rdzv-backend", "--rdzv-id", "--rdzv-endpoint", "--rdzv-conf"),
    *("--node-rank", "--master-addr", "--master-port"),
)
"""Options of torchrun that the file sets."""


class LaunchFile:
    name = "launch-file"
    example = "traincope launch-file slurm --nodes 4 --gpus-per-node 8 -o train.sbatch -- torchrun train.py --lr 3e-4"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        formats = parser.add_subparsers(title="formats", dest="emit", metavar="FORMAT", required=True)
        for name in FORMATS:
            parsed = formats.add_parser(
                name,
                help=WHAT[name],
                description=f"write {WHAT[name]}",
                epilog=f"{EXAMPLE}{self.example}",
                formatter_class=Help,
            )
            _add_options(parsed)

    def run(self, arguments: argparse.Namespace) -> int:
        command, taken = _started(arguments.words)
        for name, value in {"nodes": 1, "max_restarts": 0, **taken}.items():
            if getattr(arguments, name) is None:
                setattr(arguments, name, value)
        if arguments.nodes < 1:
            raise UsageError(f"--nodes is {arguments.nodes}; it must be at least 1")
        script = next((word for word in command if word.endswith(".py")), "train")
        emit_command(
            arguments,
            command=command,
            nodes=arguments.nodes,
            out=arguments.out or new_run(Path(DEFAULT_ROOT), script),
        )
        return 0


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, metavar="N", help="hosts that train (default: 1)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help=f"run directory (default: {DEFAULT_ROOT}/SCRIPT-DAY-TIME)"
    )
    parser.add_argument("--max-restarts", type=int, metavar="N", help="restarts of all ranks if one fails (default: 0)")
    add_on_hang_argument(parser)
    add_file_arguments(parser.add_argument_group("file (docs/start/launch.md)"))
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- torchrun ...", help="the command as you start it on one host"
    )


def _started(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """The words after torchrun, and the numbers that its options give.

    Raises UsageError without torchrun or a script, and for options that the file sets.
    """
    given = list(words[1:] if words[:1] == ["--"] else words)
    launcher = next((start for start in LAUNCHERS if tuple(given[: len(start)]) == start), None)
    if launcher is None:
        raise UsageError(f"give the command after --, and begin it with torchrun, e.g. {LaunchFile.example}")
    rest, kept, taken = given[len(launcher) :], [], dict[str, int]()
    while rest and rest[0].startswith("-"):  # up to the script; what follows belongs to it
        word = rest.pop(0)
        option, is_joined, value = word.partition("=")
        option = option.replace("_", "-")
        if option in OURS:
            raise UsageError(f"the file sets {option}; leave it out")
        if option in TAKEN:
            taken[TAKEN[option]] = _number(option, value if is_joined else rest.pop(0) if rest else "")
        elif option in ("-m", "--module"):
            kept.append(word)
            break
        elif option != DROPPED:
            kept.append(word)
            if not is_joined and option in WITH_VALUE and rest:
                kept.append(rest.pop(0))
    if not rest:
        raise UsageError(f"torchrun lacks its script; give it, e.g. {LaunchFile.example}")
    return (*kept, *rest), taken


def _number(option: str, value: str) -> int:
    if not value.isdecimal():
        raise UsageError(f"{option} is {value!r}; a launch file needs a number")
    return int(value)
