"""What the questions about a pipeline ask for: its size, and how long its actions take."""

import argparse

from traincope.cli.answers import add_format
from traincope.cli.quantities import quantity, whole
from traincope.plan.actions import Times


def add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pp", type=whole, required=True, metavar="P", help="ranks of the pipeline")
    parser.add_argument("--microbatches", type=whole, required=True, metavar="M", help="pieces of a rank's batch")
    parser.add_argument(
        "--virtual", type=whole, metavar="V", help="stages of one rank (default: as few as the schedule can have)"
    )
    for name, what in (
        ("forward", "F"),
        ("backward-input", "I, the input's gradient"),
        ("backward-weight", "W, the weights' gradients"),
    ):
        parser.add_argument(
            f"--{name}", type=quantity, default=1.0, metavar="T", help=f"time of {what}, of one stage (default: 1)"
        )
    parser.add_argument(
        "--transfer",
        type=quantity,
        default=0.0,
        metavar="T",
        help="time of a message between ranks, played out but in no formula (default: 0)",
    )
    add_format(parser)


def times(arguments: argparse.Namespace) -> Times:
    """Raises UsageError unless they are positive."""
    return Times(
        forward=arguments.forward,
        backward_input=arguments.backward_input,
        backward_weight=arguments.backward_weight,
    )
