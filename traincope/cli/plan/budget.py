"""`traincope plan budget`: what a number of parameters decides alone: bytes of model states, FLOPs, GPU-years, days."""

import argparse
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from traincope.cli.answers import add_format, print_answer
from traincope.cli.plan.layout import add_numbers, precision
from traincope.cli.plan.model_shape import MODELS, model_size, require_positive
from traincope.cli.quantities import quantity, whole
from traincope.errors import UsageError
from traincope.lines import Trimmed, indented, table
from traincope.plan.layout.layout import ZERO_STAGES
from traincope.plan.model.flops import six_n_d
from traincope.plan.model.precision import DTYPES, model_states
from traincope.plan.model.sources import read_model
from traincope.plan.search.clusters import DTYPE, find_accelerator
from traincope.units import count, flops, share, size

DAY_SECONDS = 86_400
YEAR_DAYS = 365
FORMULAS = "model states: Rajbhandari et al. 2019, section 5; FLOPs: 6 N D, Kaplan et al. 2020, section 2.1"
ONE_TOKEN = 1
"""Sequence of a model of which only the parameters count: windows of attention change none of them."""


class Stage(TypedDict):
    """Model states of one rank at a stage of ZeRO, in bytes."""

    zero: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    total_bytes: int
    smaller_by: float
    """Total of stage 0 over that of this stage."""


class Answer(TypedDict):
    parameters: int
    active_parameters: int
    """Parameters that one token uses: only its top_k experts. The FLOPs are theirs."""
    bytes_per_parameter: int
    data_ranks: int
    """Ranks over which ZeRO splits the states."""
    stages: list[Stage]
    flops: float | None
    """Of the whole training; null without tokens, as what follows."""
    peak_flops: float | None
    """Of one GPU, in bf16 and dense."""
    gpu_years_at_peak: float | None
    mfu: float | None
    days: float | None
    formulas: str


class PlanBudget:
    name = "budget"
    help = "compute what a number of parameters decides alone: bytes of model states, FLOPs, GPU-years and days"
    example = "traincope plan budget --parameters 405e9 --tokens 15e12 --gpu h100 --gpus 16384 --mfu 0.4 --dp 128"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        model = parser.add_mutually_exclusive_group(required=True)
        model.add_argument("--parameters", type=model_size, metavar="X", help="number of parameters, e.g. 70e9 or 70B")
        model.add_argument("--model", metavar="MODEL", help=MODELS)
        parser.add_argument(
            "--dp", type=whole, default=1, metavar="N", help="ranks over which ZeRO splits the states (default: 1)"
        )
        parser.add_argument("--tokens", type=quantity, metavar="X", help="tokens of the training, e.g. 15e12")
        parser.add_argument("--gpu", metavar="GPU", help="its peak decides the time, e.g. h100")
        parser.add_argument("--gpus", type=whole, metavar="N", help="number of GPUs")
        parser.add_argument("--mfu", type=quantity, default=1.0, metavar="X", help="share of the peak (default: 1)")
        add_numbers(parser.add_argument_group("numbers"), activations=False)
        add_format(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        require_positive(arguments, "parameters", "dp", "tokens", "gpus", "mfu")
        if arguments.mfu > 1:
            raise UsageError(f"--mfu is {arguments.mfu:g}; it is a share of the peak, e.g. 0.4")
        if arguments.gpus is not None and arguments.gpu is None:
            raise UsageError("--gpus needs the peak of one; give --gpu, e.g. --gpu h100")
        if arguments.gpu is not None and arguments.tokens is None:
            raise UsageError("--gpu decides the time of a training; give its --tokens")
        print_answer(_answer(arguments), _show, format=arguments.format)
        return 0


def _answer(arguments: argparse.Namespace) -> Answer:
    parameters, active = _parameters(arguments)
    work = None if arguments.tokens is None else six_n_d(parameters=active, tokens=arguments.tokens)
    peak = None if arguments.gpu is None else find_accelerator(arguments.gpu).spec.tflops[DTYPE] * 1e12
    years = None if work is None or peak is None else work / peak / DAY_SECONDS / YEAR_DAYS
    days = None if years is None or arguments.gpus is None else years * YEAR_DAYS / arguments.gpus / arguments.mfu
    form = precision(arguments)
    return Answer(
        parameters=parameters,
        active_parameters=active,
        bytes_per_parameter=DTYPES[form.weights] + DTYPES[form.gradients] + form.optimizer_bytes,
        data_ranks=arguments.dp,
        stages=_stages(parameters, arguments),
        flops=work,
        peak_flops=peak,
        gpu_years_at_peak=years,
        mfu=None if days is None else arguments.mfu,
        days=days,
        formulas=FORMULAS,
    )


def _parameters(arguments: argparse.Namespace) -> tuple[int, int]:
    """Number of all parameters, and of those that a token uses."""
    if arguments.model is not None:
        shape = read_model(arguments.model, sequence=ONE_TOKEN)
        return shape.parameters, shape.active_parameters
    return int(arguments.parameters), int(arguments.parameters)


def _stages(parameters: int, arguments: argparse.Namespace) -> list[Stage]:
    held = {
        zero: model_states(parameters, precision=precision(arguments), zero=zero, shards=arguments.dp)
        for zero in (ZERO_STAGES if arguments.dp > 1 else ZERO_STAGES[:1])
    }
    return [
        Stage(
            zero=zero,
            weights_bytes=states.weights,
            gradients_bytes=states.gradients,
            optimizer_bytes=states.optimizer,
            total_bytes=states.total,
            smaller_by=held[0].total / states.total,
        )
        for zero, states in held.items()
    ]


def _show(answer: Answer, console: Console) -> None:
    head = f"{answer['parameters']:,} parameters of {answer['bytes_per_parameter']} bytes"
    where = f"per rank, over {count(answer['data_ranks'], 'data rank')}"
    console.print(f"BUDGET  {head}; {where}", style="bold", highlight=False)
    rows = table("ZeRO", "weights", "gradients", "optimizer", "total", "in binary", "smaller by")
    for stage in answer["stages"]:
        parts = (stage[key] for key in ("weights_bytes", "gradients_bytes", "optimizer_bytes", "total_bytes"))
        rows.add_row(
            f"    {stage['zero']}", *map(_decimal, parts), size(stage["total_bytes"]), f"{stage['smaller_by']:.2f} x"
        )
    console.print(Trimmed(rows), end="")
    console.print(Trimmed(indented(map(Text, _lines(answer)))), end="")


def _lines(answer: Answer) -> list[str]:
    lines = []
    if answer["flops"] is not None:
        active = answer["active_parameters"]
        of_active = "" if active == answer["parameters"] else f", N the {active:,} parameters that a token uses"
        lines.append(f"6 N D: {answer['flops']:.4g} FLOP{of_active}")
    if answer["gpu_years_at_peak"] is not None:
        lines.append(f"{answer['gpu_years_at_peak']:,.0f} GPU-years at {flops(answer['peak_flops'], 'FLOP/s')} each")
    if answer["days"] is not None:
        lines.append(f"{answer['days']:.1f} days at {share(answer['mfu'])} MFU")
    return [*lines, answer["formulas"], "activations need the model's shapes: traincope plan memory --model"]


def _decimal(num_bytes: int) -> str:
    factor, unit = (1e12, "TB") if num_bytes >= 9_999.5e9 else (1e9, "GB")
    return f"{num_bytes / factor:,.1f} {unit}"
