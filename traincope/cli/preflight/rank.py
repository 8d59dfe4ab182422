"""One rank of `traincope preflight`.

    python -m traincope.cli.preflight.rank CONFIG.toml [OPTIONS] --result FILE

is how the command starts it on one machine. Rank 0 writes the answer into the file, and the command prints it. If
torchrun started the command itself, each process is a rank, and rank 0 prints.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

import torch.distributed as dist

from traincope.cli.answers import write_answer
from traincope.cli.launch.worker_exit import end_with_starter, exit_now, exit_on_error, exit_worker
from traincope.cli.preflight.answer import written
from traincope.cli.preflight.options import add_options, settings_of
from traincope.cli.screen import make_safe
from traincope.engine.config.load import load_config
from traincope.engine.corpus import check_corpus
from traincope.engine.ranks.bootstrap import WorkerEnvironment, join
from traincope.engine.ranks.together import Together
from traincope.errors import ConfigError, DataError, TraincopeError, TrainingError, UsageError
from traincope.preflight.configuration import configured
from traincope.preflight.document import to_node_report
from traincope.preflight.judging.judgement import HostJudgement, Judgement, judge
from traincope.preflight.measurements import Measurements
from traincope.preflight.measuring.measure import measure
from traincope.record.session.identity import this_host
from traincope.whole_files import write_json


def main() -> None:
    """Parse the command line, measure, and end the process. A rank succeeds even if the judgement fails."""
    make_safe()
    arguments = _parser().parse_args()
    exit_on_error()
    end_with_starter(signal.SIGKILL)
    # The command removes its directory also if it ends this rank.
    tempfile.tempdir = str(arguments.result.parent)

    def save(judgement: Judgement, measured: Measurements) -> None:
        text = written(judgement, measured, format=arguments.format, width=arguments.width)
        write_json(arguments.result, {"passed": judgement.passed, "text": text})

    _answer(arguments, WorkerEnvironment.read(), save)
    exit_worker(0)


def answer_as_rank(arguments: argparse.Namespace) -> NoReturn:
    """Measure with the ranks that torchrun started, print on rank 0, and end the process: 1 if anything failed."""
    exit_on_error()

    def show(judgement: Judgement, measured: Measurements) -> None:
        write_answer(written(judgement, measured, format=arguments.format), arguments.output)
        sys.stdout.flush()

    judgement = _answer(arguments, WorkerEnvironment.read(), show)
    exit_worker(0 if judgement.passed else TraincopeError.exit_code)


def _answer(
    arguments: argparse.Namespace,
    environment: WorkerEnvironment,
    save: Callable[[Judgement, Measurements], None],
) -> Judgement:
    """Measure, and save the answer on rank 0, before the reports of the hosts. Ends the process on an error."""
    try:
        judgement, measured = _measured(arguments, environment)
        if environment.rank == 0:
            save(judgement, measured)
        if arguments.node_reports is not None and environment.local_rank == 0:
            _write_node_report(arguments.node_reports, _own_host(judgement), measured)
        with _lost_ranks(environment, ["waiting for the other ranks"]):
            dist.barrier()
    except TraincopeError as error:
        _end(error, environment)
    return judgement


def _measured(arguments: argparse.Namespace, environment: WorkerEnvironment) -> tuple[Judgement, Measurements]:
    settings = settings_of(arguments)
    config = load_config(arguments.config, overrides=arguments.overrides)
    config.parallel.check_world_size(environment.world_size)
    check_corpus(config.data, sequence=config.model.sequence)
    begun = ["connecting the ranks"]

    def report(what: str) -> None:
        begun.append(f"measuring {what}")
        if environment.rank == 0:
            print(f"measuring {what}", file=sys.stderr, flush=True)

    with _lost_ranks(environment, begun):
        device = join(environment)
        world = dist.group.WORLD
        assert world is not None
        Together(world).do(lambda: _check_node_reports(arguments.node_reports, environment))
        measured = measure(config, settings, local_rank=environment.local_rank, device=device, report=report)
    return judge(measured, configured(config), settings), measured


@contextmanager
def _lost_ranks(environment: WorkerEnvironment, begun: Sequence[str]) -> Iterator[None]:
    """Raise TrainingError for torch's RuntimeError: a lost connection, or a device without memory or in error.

    `begun`: the parts that have begun, the last one last.
    """
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"rank {environment.rank} on {this_host().name} failed while {begun[-1]}: {reason}; look at the  "
            "rank that ended first, and at its host"
        ) from error


def _own_host(judgement: Judgement) -> HostJudgement:
    hosts: Mapping[str, HostJudgement] = {host.host: host for host in judgement.hosts}
    return hosts[this_host().name]


def _check_node_reports(directory: Path | None, environment: WorkerEnvironment) -> None:
    """Write a file into the directory, so that an unusable one costs no measurement. Raises UsageError."""
    if directory is not None and environment.local_rank == 0:
        with _usable(directory):
            directory.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=directory) as file:
                file.write(b"1")


def _write_node_report(directory: Path, host: HostJudgement, measured: Measurements) -> None:
    path = directory / f"{host.host}.json"
    with _usable(path):
        write_json(path, to_node_report(host, measured))


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {path} on {this_host().name}: {error.strerror or error}; give another --node-reports"
        ) from error


def _end(error: TraincopeError, environment: WorkerEnvironment) -> NoReturn:
    """End a rank. The first rank of each host prints what meets all ranks. Bad input has the code of bad use."""
    if environment.local_rank == 0 or isinstance(error, TrainingError):
        print(f"traincope preflight: {error}", file=sys.stderr)
    bad_input = isinstance(error, ConfigError | DataError)
    exit_now(UsageError.exit_code if bad_input else error.exit_code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m traincope.cli.preflight.rank",
        description="One rank of traincope preflight; started by torchrun.",
        epilog="example: traincope preflight examples/demo.toml --steps 20",
    )
    add_options(parser)
    parser.add_argument("--width", type=int, metavar="COLUMNS", help="width of the text")
    parser.add_argument("--result", type=Path, required=True, metavar="FILE")
    return parser


if __name__ == "__main__":
    main()
