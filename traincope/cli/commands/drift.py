"""`traincope drift`: train a configuration in each number format, and compare with fp32."""

import argparse
import json
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from traincope.cli.answers import add_format, write_answer
from traincope.cli.launch.training import add_overrides, override_words, progress_bar, require_torch
from traincope.cli.quantities import whole
from traincope.cli.screen import make_console
from traincope.errors import UsageError

if TYPE_CHECKING:
    from traincope.engine.precision.drift import Drift, FormatDrift

WORKER = "traincope.cli.launch.drift_worker"
HTML = "html"
STEPS = 200


class DriftCommand:
    name = "drift"
    example = "traincope drift --steps 50 --format html -o drift.html"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "config",
            type=Path,
            nargs="?",
            metavar="CONFIG.toml",
            help="model, data and layout to train (default: a small GPT on one rank)",
        )
        add_overrides(parser)
        parser.add_argument(
            "--steps", type=whole, default=STEPS, metavar="N", help="training steps per format (default: %(default)s)"
        )
        add_format(parser, HTML)
        parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE instead of the screen")

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.format == HTML and arguments.output is None:
            raise UsageError("the picture is a file; give its name, e.g. -o drift.html")
        require_torch()
        with as_file(files("traincope.cli.commands") / "drift.toml") as default:
            drift = _train(
                arguments.config or default, overrides=(*arguments.overrides, f"train.steps={arguments.steps}")
            )
        text = _written(drift, arguments.format)
        write_answer(text, arguments.output, is_drawn=arguments.format == "text")
        return 0


def _train(config: Path, *, overrides: tuple[str, ...]) -> "Drift":
    """Train in all formats on this machine. Raises ConfigError, DataError and TrainingError."""
    from traincope.engine.config.load import load_config
    from traincope.engine.corpus import check_corpus
    from traincope.engine.launch import Launch, launch
    from traincope.engine.precision.drift import Drift
    from traincope.engine.precision.formats import FORMATS

    loaded = load_config(config, overrides=overrides)
    check_corpus(loaded.data, sequence=loaded.model.sequence)
    with TemporaryDirectory(prefix="traincope-drift-") as directory:
        result, progress = Path(directory) / "drift.json", Path(directory) / "progress.jsonl"
        job = Launch(
            ranks=loaded.parallel.world_size,
            arguments=(str(config), *override_words(overrides), "--result", str(result), "--progress", str(progress)),
            module=WORKER,
        )
        with progress_bar(progress, steps=len(FORMATS) * loaded.train.steps, console=make_console(stderr=True)):
            launch(job)
        return Drift.read(json.loads(result.read_text(encoding="utf-8")))


def _written(drift: "Drift", format: str) -> str:
    if format == "json":
        return json.dumps(drift.document(), indent=2) + "\n"
    if format == HTML:
        from traincope.figures.steps.drift import drift_page

        return drift_page(drift)
    console = make_console()
    with console.capture() as captured:
        _show(drift, console)
    return captured.get()


def _show(drift: "Drift", console: Console) -> None:
    console.print(f"Drift against fp32 after {drift.steps} steps", highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("format", "last loss", "from fp32", "parameters", "skipped", "saturated", "underflowed"):
        table.add_column(name, justify="left" if name == "format" else "right")
    for each in drift.formats:
        table.add_row(
            each.precision,
            f"{each.losses[-1]:.4f}",
            _number(each.loss_distance),
            _number(each.parameter_distance),
            str(each.skipped),
            *(f"{100 * _worst(each, name)[0]:.3g} %" for name in ("saturated_ratio", "underflowed_ratio")),
        )
    console.print(table)
    for each in drift.formats[1:]:
        for name, ratio in (("saturates", "saturated_ratio"), ("rounds to zero", "underflowed_ratio")):
            share, place = _worst(each, ratio)
            if share:
                console.print(f"{each.precision} {name} most in {place}", highlight=False)
    for name, reason in drift.refused.items():
        console.print(f"{name} is not compared: {reason}", highlight=False)
    console.print(
        "from fp32: mean difference of the losses. parameters: distance from fp32's, relative to the distance that "
        "fp32 moved. saturated, underflowed: the largest share of a layer's operand; --format json lists each.",
        highlight=False,
    )


def _worst(each: "FormatDrift", ratio: str) -> tuple[float, str]:
    """Largest share of an operand that is known, and its layer and name."""
    shares = [
        (share, f"{layer} {kind}")
        for layer, kinds in each.layers.items()
        for kind, numbers in kinds.items()
        if (share := getattr(numbers, ratio)) is not None
    ]
    return max(shares, default=(0.0, ""))


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"
