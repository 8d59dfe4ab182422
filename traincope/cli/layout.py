"""What the questions about a layout ask for: the mesh, what goes over it, and in which numbers."""

import argparse

from traincope.cli.quantities import whole
from traincope.plan.flops import Recompute
from traincope.plan.layout import RING, ULYSSES, ZERO_STAGES, Layout
from traincope.plan.orders import SCHEDULES
from traincope.plan.precision import DTYPES, OPTIMIZERS, Precision

SIZES = (
    ("dp", "data-parallel ranks, those of expert parallelism among them"),
    ("tp", "ranks that share each matrix product"),
    ("pp", "ranks of the pipeline"),
    ("cp", "ranks that share each sequence"),
    ("ep", "ranks that share the experts, out of dp x cp"),
    ("microbatches", "of one data rank in a step"),
    ("micro-batch", "sequences of one microbatch"),
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
        help="ZeRO's stage: DDP is 0, FSDP2 3, but 1 where it keeps gathered weights and sums gradients until the "
        "step ends (default: 0)",
    )
    layout.add_argument(
        "--no-sequence-parallel", action="store_true", help="with --tp, norms are not cut along the sequence"
    )
    layout.add_argument("--cp-method", choices=(RING, ULYSSES), default=RING, help=f"default: {RING}")
    layout.add_argument("--schedule", choices=tuple(SCHEDULES), default="1f1b", help="of the pipeline (default: 1f1b)")
    layout.add_argument("--virtual", type=whole, metavar="V", help="stages of a pipeline rank (default: the fewest)")
    choices = tuple(each.value for each in Recompute)
    layout.add_argument("--recompute", choices=choices, default=Recompute.NONE.value, help="default: none")
    _add_numbers(parser.add_argument_group("numbers"))


def _add_numbers(numbers: argparse._ArgumentGroup) -> None:
    dtypes, default = tuple(DTYPES), Precision()
    for name, of in (
        ("weights", "weights in the products"),
        ("gradients", "gradients"),
        ("activations", "activations"),
        ("states", "what the optimizer keeps"),
    ):
        value = getattr(default, name)
        numbers.add_argument(f"--{name}", choices=dtypes, default=value, help=f"dtype of {of} (default: {value})")
    numbers.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adamw", help="default: adamw")
    numbers.add_argument("--no-master", action="store_true", help="the optimizer keeps no fp32 copy of the weights")


def layout(arguments: argparse.Namespace) -> Layout:
    """Raises UsageError for a mesh that cannot be."""
    return Layout(
        dp=arguments.dp,
        tp=arguments.tp,
        pp=arguments.pp,
        cp=arguments.cp,
        ep=arguments.ep,
        zero=arguments.zero,
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
        activations=arguments.activations,
        optimizer=arguments.optimizer,
        states=arguments.states,
        master=not arguments.no_master,
    )
