"""`traincope plan flops`: FLOPs of a transformer's step by formula, and the MFU and HFU of a step time."""

import argparse
from typing import TypedDict

from rich.console import Console

from traincope.cli.answers import add_format, print_answer
from traincope.cli.plan.model_shape import add_model, require_positive, transformer
from traincope.cli.quantities import quantity, whole
from traincope.errors import UsageError
from traincope.plan.model.flops import Recompute, StepFlops, rule_flops, step_flops, utilization_ratio
from traincope.plan.model.transformer import Transformer
from traincope.units import flops, share

KORTHIKANTI, PALM, SIX_N = "korthikanti", "palm", "6n"

SOURCES = {
    KORTHIKANTI: "Korthikanti et al. 2022, equations 7 and 8",
    PALM: "6 N + 12 L H Q T per token: Chowdhery et al. 2022, PaLM, appendix B",
    SIX_N: "6 N per token, without attention: Kaplan et al. 2020, section 2.1",
}
"""Value of --convention -> what it counts, with the source."""

WHOLE = ": causal attention not halved"
HALVED = ", but causal attention halved"
PACKED = ", within documents only"
THRICE = "; selective recomputation counts three times, as in equation 8"


class Answer(TypedDict):
    model_flops_per_step: int
    hardware_flops_per_step: int
    mfu: float
    hfu: float
    model_tflops_per_gpu: float
    hardware_tflops_per_gpu: float
    parameters: int
    active_parameters: int
    """Parameters that one token uses: only its top_k experts."""
    convention: str


class PlanFlops:
    name = "flops"
    help = "compute the FLOPs of a transformer's step, and the MFU and HFU of a step time"
    example = (
        "traincope plan flops --layers 48 --hidden 6144 --heads 64 --vocab 51200 --seq 2048 --batch 4 "
        "--gpus 8 --peak-tflops 312 --iteration-seconds 1.10 --recompute selective"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_model(parser)
        step = parser.add_argument_group("step")
        step.add_argument("--batch", type=whole, required=True, metavar="N", help="sequences per step, over all GPUs")
        step.add_argument("--gpus", type=whole, required=True, metavar="N", help="number of GPUs")
        step.add_argument("--peak-tflops", type=quantity, required=True, metavar="X", help="dense peak of one GPU")
        step.add_argument("--iteration-seconds", type=quantity, required=True, metavar="X", help="time of a step")
        choices = tuple(each.value for each in Recompute)
        step.add_argument(
            "--recompute",
            choices=choices,
            default=Recompute.NONE.value,
            help="recomputation of activations (default: none)",
        )
        step.add_argument(
            "--causal-half", action="store_true", help="count only the half of attention that a causal mask leaves"
        )
        step.add_argument(
            "--squared-lengths",
            type=whole,
            metavar="N",
            help="sum of the squared document lengths of a step, if attention stays within documents "
            "(default: batch x seq^2)",
        )
        step.add_argument(
            "--convention",
            choices=tuple(SOURCES),
            default=KORTHIKANTI,
            help="korthikanti counts every product, palm 6N + 12LHQT per token, 6n 6N per token (default: korthikanti)",
        )
        add_format(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        require_positive(arguments, "batch", "gpus", "peak_tflops", "iteration_seconds")
        shape = transformer(arguments)
        answer = _rated(_step(shape, arguments), shape, arguments)
        print_answer(answer, _show, format=arguments.format)
        return 0


def _step(shape: Transformer, arguments: argparse.Namespace) -> StepFlops:
    recompute = Recompute(arguments.recompute)
    if arguments.convention == KORTHIKANTI:
        return step_flops(
            shape,
            batch=arguments.batch,
            recompute=recompute,
            causal_half=arguments.causal_half,
            squared_lengths=arguments.squared_lengths,
        )
    if arguments.causal_half or arguments.squared_lengths is not None:
        raise UsageError(
            f"--convention {arguments.convention} cannot halve attention or keep it within documents; "
            f"use --convention {KORTHIKANTI}"
        )
    return rule_flops(shape, batch=arguments.batch, recompute=recompute, attention=arguments.convention == PALM)


def _rated(step: StepFlops, shape: Transformer, arguments: argparse.Namespace) -> Answer:
    peak, seconds = arguments.peak_tflops * 1e12, arguments.iteration_seconds
    mfu, hfu = (
        utilization_ratio(count, devices=arguments.gpus, peak_flops=peak, seconds=seconds)
        for count in (step.model, step.hardware)
    )
    return Answer(
        model_flops_per_step=step.model,
        hardware_flops_per_step=step.hardware,
        mfu=mfu,
        hfu=hfu,
        model_tflops_per_gpu=mfu * arguments.peak_tflops,
        hardware_tflops_per_gpu=hfu * arguments.peak_tflops,
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        convention=_convention(arguments),
    )


def _convention(arguments: argparse.Namespace) -> str:
    source = SOURCES[arguments.convention]
    if arguments.convention == SIX_N:
        return source
    if arguments.recompute == Recompute.SELECTIVE:
        source += THRICE
    packed = PACKED if arguments.squared_lengths is not None else ""
    return source + packed + (HALVED if arguments.causal_half else WHOLE)


def _show(answer: Answer, console: Console) -> None:
    rows = (
        ("MFU", answer["mfu"], answer["model_flops_per_step"], answer["model_tflops_per_gpu"]),
        ("HFU", answer["hfu"], answer["hardware_flops_per_step"], answer["hardware_tflops_per_gpu"]),
    )
    lines = [
        f"{name} {share(ratio):>7}   {flops(count)} per step, {flops(rate * 1e12, 'FLOP/s')} per GPU"
        for name, ratio, count, rate in rows
    ]
    parameters = f"{answer['parameters']:,} parameters in matrices"
    if answer["active_parameters"] != answer["parameters"]:
        parameters += f", {answer['active_parameters']:,} of them active"
    console.print("\n".join([*lines, parameters, answer["convention"]]), highlight=False, markup=False)
