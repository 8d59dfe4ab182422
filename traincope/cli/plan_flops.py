"""`traincope plan flops`: FLOPs of a transformer's step by formula, and what share of the peak a step time makes."""

import argparse
import json
from typing import TypedDict

from rich.console import Console

from traincope.errors import UsageError
from traincope.plan.flops import Recompute, StepFlops, Transformer, step_flops, utilization_ratio
from traincope.report.units import flops, share

WHOLE = "Korthikanti et al. 2022, equations 7 and 8: causal attention not halved"
HALVED = "Korthikanti et al. 2022, equations 7 and 8, but causal attention halved"


class Answer(TypedDict):
    model_flops_per_step: int
    hardware_flops_per_step: int
    mfu: float
    hfu: float
    model_tflops_per_gpu: float
    hardware_tflops_per_gpu: float
    parameters: int
    convention: str


class PlanFlops:
    name = "flops"
    help = "FLOPs of a dense transformer's step by formula, and the MFU and HFU of its step time"
    example = (
        "traincope plan flops --layers 48 --hidden 6144 --heads 64 --vocab 51200 --seq 2048 --batch 4 "
        "--gpus 8 --peak-tflops 312 --iteration-seconds 1.10 --recompute selective"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for name, help_ in (
            ("layers", "transformer blocks"),
            ("hidden", "width of the residual stream"),
            ("heads", "query heads"),
            ("vocab", "size of the vocabulary"),
            ("seq", "tokens of a sequence"),
            ("batch", "sequences of a step, over all GPUs"),
            ("gpus", "how many"),
        ):
            parser.add_argument(f"--{name}", type=int, required=True, metavar="N", help=help_)
        parser.add_argument("--kv-heads", type=int, metavar="N", help="key and value heads (default: as many as heads)")
        parser.add_argument("--ffn", type=int, metavar="N", help="inner width of the feed-forward (default: 4 hidden)")
        parser.add_argument("--gated-mlp", action="store_true", help="three matrices in the feed-forward, as in SwiGLU")
        parser.add_argument("--peak-tflops", type=float, required=True, metavar="X", help="dense peak of one GPU")
        parser.add_argument("--iteration-seconds", type=float, required=True, metavar="X", help="time of a step")
        choices = tuple(each.value for each in Recompute)
        parser.add_argument("--recompute", choices=choices, default=Recompute.NONE.value, help="default: none")
        parser.add_argument("--causal-half", action="store_true", help="count the half that a causal mask leaves")
        parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")

    def run(self, arguments: argparse.Namespace) -> int:
        for name in ("batch", "gpus", "peak_tflops", "iteration_seconds"):
            if getattr(arguments, name) <= 0:
                raise UsageError(f"--{name.replace('_', '-')} {getattr(arguments, name)} must be more than 0")
        answer = _answer(arguments)
        if arguments.format == "json":
            print(json.dumps(answer, indent=2))
        else:
            _show(answer)
        return 0


def _answer(arguments: argparse.Namespace) -> Answer:
    shape = Transformer(
        layers=arguments.layers,
        hidden=arguments.hidden,
        heads=arguments.heads,
        vocabulary=arguments.vocab,
        sequence=arguments.seq,
        kv_heads=arguments.kv_heads,
        ffn=arguments.ffn,
        gated_mlp=arguments.gated_mlp,
    )
    step = step_flops(
        shape,
        batch=arguments.batch,
        recompute=Recompute(arguments.recompute),
        causal_half=arguments.causal_half,
    )
    return _rated(step, shape, arguments)


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
        convention=HALVED if arguments.causal_half else WHOLE,
    )


def _show(answer: Answer) -> None:
    rows = (
        ("MFU", answer["mfu"], answer["model_flops_per_step"], answer["model_tflops_per_gpu"]),
        ("HFU", answer["hfu"], answer["hardware_flops_per_step"], answer["hardware_tflops_per_gpu"]),
    )
    lines = [
        f"{name} {share(ratio):>7}   {flops(count)} a step, {flops(rate * 1e12, 'FLOP/s')} a GPU"
        for name, ratio, count, rate in rows
    ]
    parameters = f"{answer['parameters']:,} parameters in matrices"
    Console().print("\n".join([*lines, parameters, answer["convention"]]), highlight=False, markup=False)
