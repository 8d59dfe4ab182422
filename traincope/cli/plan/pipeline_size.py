"""Arguments of a pipeline: its size and the times of its actions."""

import argparse
from collections.abc import Mapping

from traincope.cli.answers import add_format
from traincope.cli.quantities import quantity, whole
from traincope.errors import UsageError
from traincope.plan.pipeline.actions import Times
from traincope.plan.pipeline.orders import Shape
from traincope.plan.pipeline.stage_layers import is_possible, relative_work, stage_layers


def add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pp", type=whole, required=True, metavar="P", help="ranks of the pipeline")
    parser.add_argument("--microbatches", type=whole, required=True, metavar="M", help="microbatches per step")
    parser.add_argument(
        "--virtual", type=whole, metavar="V", help="stages per rank (default: the minimum of the schedule)"
    )
    parser.add_argument(
        "--layers",
        type=whole,
        metavar="N",
        help="layers of the model, if they do not divide the stages: the times are then those of a stage with the mean "
        "number of layers (default: equal stages)",
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


def stage_work(arguments: argparse.Namespace, *, schedule: str, shape: Shape) -> Mapping[int, float]:
    """Work of each stage relative to the mean; empty for equal stages. Raises UsageError for too few layers."""
    if arguments.layers is None or arguments.layers % shape.stages == 0:
        return {}
    split = stage_layers(arguments.layers, schedule=schedule, shape=shape)
    if not is_possible(split):
        raise UsageError(f"{arguments.layers} layers are too few for {shape.stages} stages; use more layers")
    return relative_work(split)


def times(arguments: argparse.Namespace) -> Times:
    """Build the action times. Raises UsageError unless all are positive."""
    return Times(
        forward=arguments.forward,
        backward_input=arguments.backward_input,
        backward_weight=arguments.backward_weight,
    )
