"""`traincope demo`: a real pipeline x FSDP training on this machine, then where its time went."""

import argparse
import time
from importlib.resources import as_file, files
from pathlib import Path

from rich.console import Console

from traincope.analysis import analyze
from traincope.cli.training import Job, check_out, program, train
from traincope.errors import UsageError
from traincope.report import render
from traincope.timeline import open_run


class Demo:
    name = "demo"
    help = "train a small GPT on 4 ranks (2 pipeline stages x FSDP over 2) on real text, and report on it"
    example = "traincope demo --out traincope_runs/demo"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: traincope_runs/demo-TIME)")
        parser.add_argument("--steps", type=int, metavar="N", help="training steps (default: as demo.toml says)")

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.steps is not None and arguments.steps < 2:
            raise UsageError(
                f"--steps {arguments.steps} leaves nothing to report after the warm-up step; give 2 or more"
            )
        out = arguments.out or Path("traincope_runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
        check_out(out)
        console = Console()
        console.print(
            "Training a GPT on the source of Python's own library: 4 ranks, pipeline 2 x FSDP 2\n",
            highlight=False,
        )
        overrides = () if arguments.steps is None else (f"train.steps={arguments.steps}",)
        with as_file(files("traincope.cli") / "demo.toml") as config:
            train(Job(config=config, out=out, overrides=overrides), console=console)
        _report(out, console)
        return 0


def _report(out: Path, console: Console) -> None:
    console.print()
    render(analyze(open_run(out)), console)
    traincope = program()
    commands = {
        f"{traincope} report {out}": "this report again",
        f"{traincope} report {out} --format json": "every number of it",
        f"{traincope} train CONFIG.toml": "your own layout (see examples/)",
    }
    width = max(len(command) for command in commands)
    lines = "".join(f"  {command:{width}}  {what}\n" for command, what in commands.items())
    console.print(f"\nWhat to type next:\n{lines}", highlight=False, markup=False, soft_wrap=True, end="")
