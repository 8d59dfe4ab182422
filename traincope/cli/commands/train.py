"""`traincope train`: train a configuration file on this machine and record it, or write a file that launches it."""

import argparse
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from traincope.analysis import analyze
from traincope.cli.launch.hang_exit import add_on_hang_argument
from traincope.cli.launch.injecting import add_fault_argument
from traincope.cli.launch.outcome import run_name
from traincope.cli.launch.training import Job, add_overrides, check_out, program, require_torch, train
from traincope.cli.launch_files.emit import add_emit_arguments, check_not_emitting, emit
from traincope.cli.screen import make_console
from traincope.errors import RunDirectoryError, TrainingError, UsageError
from traincope.report.text.brief import render_brief
from traincope.store.layout import DEFAULT_ROOT
from traincope.store.places.names import new_run
from traincope.timeline import open_run


class Train:
    name = "train"
    example = "traincope train examples/fsdp.toml --set train.steps=50 --out traincope_runs/fsdp"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("config", type=Path, metavar="CONFIG.toml", help="model, data and layout to train")
        add_overrides(parser)
        parser.add_argument(
            "--out", type=Path, metavar="DIR", help="run directory (default: traincope_runs/CONFIG-DAY-TIME)"
        )
        parser.add_argument(
            "--max-restarts",
            type=int,
            default=0,
            metavar="N",
            help="restart all ranks up to N times if one fails, from the newest checkpoint if the configuration has a "
            "table [checkpoint] (default: 0)",
        )
        parser.add_argument(
            "--resume",
            action="store_true",
            help="continue from the newest checkpoint of [checkpoint], in the run directory --out as one more attempt; "
            "without a checkpoint, begin anew",
        )
        add_fault_argument(parser)
        add_on_hang_argument(parser)
        add_emit_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        out = arguments.out or new_run(Path(DEFAULT_ROOT), arguments.config.stem)
        if arguments.emit is not None:
            if arguments.fault is not None:
                raise UsageError("--fault injects on this machine only; leave out --fault or --emit")
            require_torch()
            emit(arguments, out=out)
            return 0
        check_not_emitting(arguments)
        check_out(out, resume=arguments.resume)
        job = Job(
            config=arguments.config,
            out=out,
            overrides=tuple(arguments.overrides),
            max_restarts=arguments.max_restarts,
            fault=arguments.fault,
            resume=arguments.resume,
            on_hang=arguments.on_hang,
        )
        console = make_console()
        try:
            train(job, console=console)
        except TrainingError:
            _end(out, console)
            raise
        _end(out, console)
        return 0


def _end(out: Path, console: Console) -> None:
    """Print the run, its brief and the next command, if ranks recorded."""
    with suppress(RunDirectoryError):
        run = open_run(out)
        console.print(f"\nrecorded in {out}", highlight=False, markup=False)
        render_brief(analyze(run), console)
        console.print(f"next: {program()} report {run_name(out)}", highlight=False, markup=False)
