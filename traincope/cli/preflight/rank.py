"""One rank of `traincope preflight`.

    python -m traincope.cli.preflight.rank CONFIG.toml [OPTIONS] --result FILE

is how the command starts it on one machine. Rank 0 writes the answer into the file, and the command prints it. If
torchrun started the command itself, each process is a rank, and rank 0 prints.
"""

import argparse
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from traincope.cli.answers import write_answer
from traincope.cli.launch.worker_exit import end_with_parent, exit_now, exit_on_error, exit_worker
from traincope.cli.preflight.answer import written
from traincope.cli.preflight.options import add_options, settings_of
from traincope.engine.config.load import load_config
from traincope.engine.corpus import check_corpus
from traincope.engine.ranks.bootstrap import WorkerEnvironment, join
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
    arguments = _parser().parse_args()
    exit_on_error()
    end_with_parent(signal.SIGKILL)
    environment = WorkerEnvironment.read()
    try:
        judgement, measured = _measured(arguments, environment)
        if environment.rank == 0:
            text = written(judgement, measured, format=arguments.format, width=arguments.width)
            arguments.result.write_text(json.dumps({"passed": judgement.passed, "text": text}), encoding="utf-8")
    except TraincopeError as error:
        _end(error, environment)
    dist.barrier()
    exit_worker(0)


def answer_as_rank(arguments: argparse.Namespace) -> NoReturn:
    """Measure with the ranks that torchrun started, print on rank 0, and end the process: 1 if anything failed."""
    exit_on_error()
    environment = WorkerEnvironment.read()
    judgement = None
    try:
        judgement, measured = _measured(arguments, environment)
        if environment.rank == 0:
            write_answer(written(judgement, measured, format=arguments.format), arguments.output)
    except TraincopeError as error:
        _end(error, environment)
    dist.barrier()
    exit_worker(0 if judgement.passed else TraincopeError.exit_code)


def _measured(arguments: argparse.Namespace, environment: WorkerEnvironment) -> tuple[Judgement, Measurements]:
    settings = settings_of(arguments)
    config = load_config(arguments.config, overrides=arguments.overrides)
    config.parallel.check_world_size(environment.world_size)
    check_corpus(config.data, sequence=config.model.sequence)
    device = join(environment)

    begun = ["the ranks"]

    def report(what: str) -> None:
        begun.append(what)
        if environment.rank == 0:
            print(f"measuring {what}", file=sys.stderr, flush=True)

    try:
        measured = measure(config, settings, local_rank=environment.local_rank, device=device, report=report)
    except RuntimeError as error:
        # torch raises it for a lost connection, and for a device without memory or in error.
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"rank {environment.rank} on {this_host().name} failed while measuring {begun[-1]}: {reason}; look at the "
            "rank that ended first, and at its host"
        ) from error
    judgement = judge(measured, configured(config), settings)
    if arguments.node_reports is not None and environment.local_rank == 0:
        _write_node_report(arguments.node_reports, _own_host(judgement), measured)
    return judgement, measured


def _own_host(judgement: Judgement) -> HostJudgement:
    hosts: Mapping[str, HostJudgement] = {host.host: host for host in judgement.hosts}
    return hosts[this_host().name]


def _write_node_report(directory: Path, host: HostJudgement, measured: Measurements) -> None:
    path = directory / f"{host.host}.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(path, to_node_report(host, measured))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; give another --node-reports") from error


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
