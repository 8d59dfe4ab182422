"""`traincope demo`: a real training with several kinds of parallelism on this machine, then its report."""

import argparse
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryFile

from rich.console import Console

from traincope.analysis import analyze
from traincope.cli.launch.injecting import add_fault_argument
from traincope.cli.launch.outcome import run_name
from traincope.cli.launch.training import Job, check_out, program, require_torch, stopped_in, train
from traincope.cli.screen import make_console
from traincope.errors import TrainingError, UsageError
from traincope.report.text.first_screen import render_first_screen
from traincope.report.text.text import render
from traincope.store.layout import DEFAULT_ROOT
from traincope.store.places.names import new_run
from traincope.timeline import open_run

LAYOUTS = {8: "pipeline 2 x FSDP 2 x tensor 2", 4: "pipeline 2 x FSDP 2"}
"""Ranks -> their layout; `demo-RANKS.toml` in this folder configures it."""
RANKS = 8
ROLLOUT_RANKS, ROLLOUT_STEPS = 2, 60
ASKED_SECONDS = 10
"""Wait for ranks that were asked to end."""
MAX_ERROR = 2000
"""Characters of a failed training's errors that are shown."""


class Demo:
    name = "demo"
    example = "traincope demo --out traincope_runs/demo"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: traincope_runs/demo-TIME)")
        parser.add_argument(
            "--ranks", type=int, choices=LAYOUTS, help=f"number of ranks: {RANKS} (default), or 4, which is faster"
        )
        parser.add_argument(
            "--rl",
            action="store_true",
            help=f"instead train with reinforcement (GRPO) on {ROLLOUT_RANKS} ranks: generate, score, train",
        )
        parser.add_argument("--full", action="store_true", help="print the whole report, not only its first screen")
        parser.add_argument(
            "--steps",
            type=int,
            metavar="N",
            help=f"training steps (default: 20 with 8 ranks, 30 with 4, {ROLLOUT_STEPS} with --rl)",
        )

        add_fault_argument(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.steps is not None and arguments.steps < 2:
            raise UsageError(
                f"--steps {arguments.steps} leaves nothing to report after the warm-up step; give 2 or more"
            )
        if arguments.rl and (arguments.ranks is not None or arguments.fault):
            raise UsageError(f"--rl has {ROLLOUT_RANKS} ranks and injects no fault; leave out --ranks and --fault")
        require_torch()
        out = arguments.out or new_run(Path(DEFAULT_ROOT), self.name)
        check_out(out)
        console = make_console()
        if arguments.rl:
            _train_with_rollouts(out, console, steps=arguments.steps or ROLLOUT_STEPS)
            _report(out, console, full=arguments.full)
            return 0
        ranks = arguments.ranks or RANKS
        layout = f"{ranks} ranks, {LAYOUTS[ranks]}"
        console.print(f"Training a GPT on the source of Python's standard library: {layout}\n", highlight=False)
        overrides = () if arguments.steps is None else (f"train.steps={arguments.steps}",)
        with as_file(files("traincope.cli.commands") / f"demo-{ranks}.toml") as config:
            job = Job(config=config, out=out, overrides=overrides, fault=arguments.fault)
            _train(job, console) if arguments.fault else train(job, console=console)
        _report(out, console, full=arguments.full)
        return 0


def _train_with_rollouts(out: Path, console: Console, *, steps: int) -> None:
    """Run the small loop of GRPO as a user would: under `traincope run`, by torchrun."""
    console.print(f"Training a GPT with GRPO: {ROLLOUT_RANKS} ranks, {steps} steps\n", highlight=False)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ROLLOUT_RANKS)]
    program = ["-m", "traincope.cli.launch.grpo", "--steps", str(steps)]
    recorder = [sys.executable, "-m", "traincope.cli.main", "run", "--out", str(out), "--"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with TemporaryFile("w+", errors="replace") as errors:
        job = subprocess.Popen(
            [*recorder, sys.executable, *launcher, *program], env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        try:
            with console.status("training"):
                code = job.wait()
        except KeyboardInterrupt as stopped:
            _let_end(job)
            raise KeyboardInterrupt(stopped_in(out)) from stopped
        finally:
            job.kill()
        if code:
            errors.seek(0)
            raise TrainingError(f"the training ended with {code}: {errors.read().strip()[-MAX_ERROR:]}")


def _let_end(job: "subprocess.Popen[bytes]") -> None:
    """Let the ranks end and their end be recorded. A terminal's Ctrl-C has reached them too; another one has not."""
    with suppress(subprocess.TimeoutExpired):
        job.wait(ASKED_SECONDS)
        return
    job.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        job.wait(ASKED_SECONDS)


def _train(job: Job, console: Console) -> None:
    """Train with an injected fault, which may end the training, or stop it until the user does."""
    console.print(f"Injecting {job.fault}. If the training stands still, end it with Ctrl-C.\n", highlight=False)
    try:
        train(job, console=console)
    except (TrainingError, KeyboardInterrupt) as error:
        console.print(f"\n{error}", highlight=False, markup=False)


def _report(out: Path, console: Console, *, full: bool) -> None:
    console.print()
    (render if full else render_first_screen)(analyze(open_run(out)), console)
    what = "the same again" if full else "the whole report"
    console.print(
        f"\nnext: {program()} report {run_name(out)}    {what}", highlight=False, markup=False, soft_wrap=True
    )
