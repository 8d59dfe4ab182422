"""Arguments of a pipeline: its size and the times of its actions."""

import argparse

from traincope.cli.answers import add_format
from traincope.cli.quantities import quantity, whole
from traincope.plan.pipeline.actions import Times


def add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pp", type=whole, required=True, metavar="P", help="ranks of the pipeline")
    parser.add_argument("--microbatches", type=whole, required=True, metavar="M", help="microbatches per step")
    parser.add_argument(
        "--virtual", type=whole, metavar="V", help="stages per rank (default: the minimum of the schedule)"
    )
    for name, what in (
        ("forward", "F"),
        ("backward-input", "I, backward for inputs"),
        ("backward-weight", "W, backward for weights"),
    ):
        parser.add_argument(
            f"--{name}", type=quantity, default=1.0, metavar="T", help=f"time of {what} of one stage (default: 1)"
        )
    parser.add_argument(
        "--transfer",
        type=quantity,
        default=0.0,
        metavar="T",
        help="time of a message between ranks; simulated, but in no formula (default: 0)",
    )
    add_format(parser)


def times(arguments: argparse.Namespace) -> Times:
    """Build the action times. Raises UsageError unless all are positive."""
    return Times(
        forward=arguments.forward,
        backward_input=arguments.backward_input,
        backward_weight=arguments.backward_weight,
    )
