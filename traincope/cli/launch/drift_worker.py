"""One rank of `traincope drift`, which torchrun starts: it trains in each format, one after the other.

    python -m traincope.cli.launch.drift_worker CONFIG.toml [--set a.b=value] --result FILE --progress FILE

Rank 0 writes the `Drift` as JSON to the result file, and one JSON object per step to the progress.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch import Tensor

from traincope.cli.launch.worker_exit import end_with_starter, exit_now, exit_on_error, exit_worker
from traincope.cli.screen import make_safe
from traincope.engine.config import Config
from traincope.engine.config.load import load_config
from traincope.engine.optimizer.clipping import global_norm
from traincope.engine.precision.drift import Drift, FormatDrift, Range, loss_distance
from traincope.engine.precision.formats import FORMATS
from traincope.engine.precision.observed import Counts, Observer, add
from traincope.engine.ranks.bootstrap import WorkerEnvironment, join
from traincope.engine.trainer import Trainer
from traincope.errors import ConfigError, TraincopeError


def main() -> None:
    """Parse the command line, train in all formats, and end the process."""
    make_safe()
    arguments = _parser().parse_args()
    exit_on_error()
    end_with_starter(signal.SIGKILL)
    try:
        config = load_config(arguments.config, overrides=arguments.overrides)
        environment = WorkerEnvironment.read()
        config.parallel.check_world_size(environment.world_size)
        device = join(environment)
        with arguments.progress.open("a", encoding="utf-8") as progress:
            drift = measure(config, device=device, report=_reporter(progress, rank=environment.rank))
        if environment.rank == 0:
            arguments.result.write_text(json.dumps(drift.document()), encoding="utf-8")
    except TraincopeError as error:
        print(f"error: {error}", file=sys.stderr)
        exit_now(error.exit_code)
    exit_worker(0)


def in_formats(config: Config) -> tuple[dict[str, Config], dict[str, str]]:
    """The configuration in each format that it allows, and the refusals of the others."""
    allowed, refused = {}, {}
    for name in FORMATS:
        try:
            allowed[name] = _in_format(config, name)
        except ConfigError as error:
            refused[name] = str(error)
    return allowed, refused


def _in_format(config: Config, name: str) -> Config:
    train = replace(config.train, precision=name, log_every=1, evaluate_every=None)  # type: ignore[arg-type]
    own = name == config.train.precision
    scaling = config.scaling if own else type(config.scaling)()
    return replace(config, train=train, scaling=scaling, checkpoint=None)


def measure(config: Config, *, device: torch.device, report: Callable[[int, float], None]) -> Drift:
    """Train in each format on all ranks, which call it together."""
    allowed, refused = in_formats(config)
    start: dict[str, Tensor] = {}
    reference: dict[str, Tensor] = {}
    results: list[FormatDrift] = []
    moved = 0.0
    for name, each in allowed.items():
        trainer = Trainer(each, device=device)
        observer = Observer(FORMATS[name])
        observer.watch(trainer.modules)
        if not start:
            start = _copies(trainer)
        losses, skipped = [], 0
        for result in trainer.steps():
            losses.append(result.loss if result.loss is not None else float("nan"))
            skipped += result.overflowed
            report(len(results) * config.train.steps + result.step, losses[-1])
        if not reference:
            reference = _copies(trainer)
            moved = _distance(trainer, start)
        distance = _distance(trainer, reference) / moved if moved else float("nan")
        curve = tuple(losses)
        results.append(
            FormatDrift(
                precision=name,
                losses=curve,
                skipped=skipped,
                loss_distance=loss_distance(curve, results[0].losses if results else curve),
                parameter_distance=distance if distance < float("inf") else None,
                layers=_ranges(observer.counts),
            )
        )
    return Drift(steps=config.train.steps, formats=tuple(results), refused=refused)


def _copies(trainer: Trainer) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer.parameters.items()}


def _distance(trainer: Trainer, others: dict[str, Tensor]) -> float:
    """2-norm of the difference of all parameters of the model, the same on all ranks."""
    differences = [parameter.detach() - others[name] for name, parameter in trainer.parameters.items()]
    return global_norm(differences, layout=trainer.layout).item()


def _ranges(counts: Counts) -> dict[str, dict[str, Range]]:
    """Sum over all ranks."""
    received: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(received, counts)
    total: Counts = {}
    for name, kind, more in _entries(received):
        add(total, name, kind, more)
    return {
        name: {
            kind: Range(numbers=count or 0, saturated=saturated or 0, underflowed=underflowed)
            for kind, (count, saturated, underflowed) in kinds.items()
        }
        for name, kinds in total.items()
    }


def _entries(received: list[Counts]) -> Iterator[tuple[str, str, list[int | None]]]:
    for counts in received:
        for name, kinds in counts.items():
            for kind, more in kinds.items():
                yield name, kind, more


def _reporter(progress: TextIO, *, rank: int) -> Callable[[int, float], None]:
    def report(step: int, loss: float) -> None:
        if rank == 0:
            print(json.dumps({"step": step, "loss": loss}), file=progress, flush=True)

    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m traincope.cli.launch.drift_worker",
        description="One rank of traincope drift; started by torchrun.",
        epilog="example: traincope drift --steps 50",
    )
    parser.add_argument("config", help="configuration file (TOML)")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="TABLE.KEY=VALUE")
    parser.add_argument("--result", type=Path, required=True, metavar="FILE")
    parser.add_argument("--progress", type=Path, required=True, metavar="FILE")
    return parser


if __name__ == "__main__":
    main()
