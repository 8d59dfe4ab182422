"""Arguments of a layout: mesh sizes, schedule, ZeRO stage, and dtypes."""

import argparse

from traincope.cli.quantities import whole
from traincope.plan.layout.layout import RING, ULYSSES, ZERO_STAGES, Layout, Place
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import DTYPES, OPTIMIZERS, Precision
from traincope.plan.pipeline.orders import SCHEDULES

SIZES = (
    ("dp", "data-parallel ranks, including those of expert parallelism"),
    ("replicas", "groups of data ranks that each have all of ZeRO's shards (HSDP); divides dp"),
    ("tp", "ranks that share each matrix product"),
    ("pp", "ranks of the pipeline"),
    ("cp", "ranks that share each sequence"),
    ("ep", "ranks that share the experts; divides dp x cp"),
    ("microbatches", "microbatches per step and data rank"),
    ("micro-batch", "sequences per microbatch"),
)


def add_layout(parser: argparse.ArgumentParser) -> None:
    layout = parser.add_argument_group("layout")
    for name, help_ in SIZES:
        layout.add_argument(f"--{name}", type=whole, default=1, metavar="N", help=f"{help_} (default: 1)")
    layout.add_argument(
        "--zero",
        type=whole,
        choices=ZERO_STAGES,
        default=0,
        help="ZeRO stage: 0 for DDP, 3 for FSDP2, or 1 for FSDP2 that keeps gathered weights and gradients until the "
        "end of the step (default: 0)",
    )
    layout.add_argument(
        "--node-ranks",
        type=whole,
        metavar="N",
        help="ranks that share a copy of ZeRO-3's weights from forward to backward (ZeRO++'s hpZ)",
    )
    layout.add_argument("--quantize-weights", action="store_true", help="gather weights as int8 (ZeRO++'s qwZ)")
    layout.add_argument("--quantize-gradients", action="store_true", help="exchange gradients as int8 (ZeRO++'s qgZ)")
    for part, what in (
        ("optimizer", "optimizer state"),
        ("parameters", "ZeRO-3's weights, gradients and optimizer state"),
    ):
        layout.add_argument(
            f"--offload-{part}",
            choices=tuple(place.value for place in Place),
            default=Place.DEVICE.value,
            help=f"place of {what} (default: {Place.DEVICE})",
        )
    layout.add_argument(
        "--no-sequence-parallel", action="store_true", help="with --tp: do not split norms along the sequence"
    )
    layout.add_argument(
        "--cp-method", choices=(RING, ULYSSES), default=RING, help=f"context parallelism (default: {RING})"
    )
    layout.add_argument(
        "--schedule", choices=tuple(SCHEDULES), default="1f1b", help="pipeline schedule (default: 1f1b)"
    )
    layout.add_argument("--virtual", type=whole, metavar="V", help="stages per pipeline rank (default: the minimum)")
    choices = tuple(each.value for each in Recompute)
    layout.add_argument(
        "--recompute",
        choices=choices,
        default=Recompute.NONE.value,
        help="recomputation of activations (default: none)",
    )
    add_numbers(parser.add_argument_group("numbers"))


def add_numbers(numbers: argparse._ArgumentGroup, *, activations: bool = True) -> None:
    """Add the formats of weights, gradients, activations, if wanted, and optimizer states; `precision` reads them."""
    dtypes, default = tuple(DTYPES), Precision()
    for name, subject in (
        ("weights", "the weights in matrix products"),
        ("gradients", "gradients"),
        *([("activations", "activations")] if activations else []),
        ("states", "the optimizer's states"),
    ):
        value = getattr(default, name)
        numbers.add_argument(f"--{name}", choices=dtypes, default=value, help=f"dtype of {subject} (default: {value})")
    numbers.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adamw", help="optimizer (default: adamw)")
    numbers.add_argument("--no-master", action="store_true", help="the optimizer keeps no fp32 copy of the weights")


def layout(arguments: argparse.Namespace) -> Layout:
    """Build the layout. Raises UsageError for an impossible mesh."""
    return Layout(
        dp=arguments.dp,
        replicas=arguments.replicas,
        tp=arguments.tp,
        pp=arguments.pp,
        cp=arguments.cp,
        ep=arguments.ep,
        zero=arguments.zero,
        node_ranks=arguments.node_ranks,
        quantize_weights=arguments.quantize_weights,
        quantize_gradients=arguments.quantize_gradients,
        optimizer_place=Place(arguments.offload_optimizer),
        parameters_place=Place(arguments.offload_parameters),
        sequence_parallel=not arguments.no_sequence_parallel,
        cp_method=arguments.cp_method,
        schedule=arguments.schedule,
        virtual=arguments.virtual,
        microbatches=arguments.microbatches,
        micro_batch=arguments.micro_batch,
    )


def precision(arguments: argparse.Namespace) -> Precision:
    return Precision(
        weights=arguments.weights,
        gradients=arguments.gradients,
        activations=getattr(arguments, "activations", Precision().activations),
        optimizer=arguments.optimizer,
        states=arguments.states,
        master=not arguments.no_master,
    )
