"""Options of `traincope preflight`, which its ranks have too."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from traincope.cli.answers import add_format
from traincope.cli.launch.training import add_overrides, override_words
from traincope.cli.quantities import quantity, whole
from traincope.preflight.measurements import Settings

HOSTS = "hosts"
"""Format with one line per host."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options except the file of the answer."""
    parser.add_argument(
        "config", type=Path, metavar="CONFIG.toml", help="the training that will run, as for `traincope train`"
    )
    add_overrides(parser)
    parser.add_argument(
        "--steps", type=whole, default=100, metavar="N", help="steps of the training to measure (default: 100)"
    )
    parser.add_argument(
        "--alarm",
        type=quantity,
        default=15.0,
        metavar="PERCENT",
        help="fail if the pipeline idles more than this share of a step (default: 15)",
    )
    parser.add_argument(
        "--repeats",
        type=whole,
        default=4,
        metavar="N",
        help="interleaved repeats of each measurement in each of the two rounds (default: 4)",
    )
    parser.add_argument(
        "--node-reports",
        type=Path,
        metavar="DIR",
        help="each host writes its report as DIR/HOST.json; DIR may be a local disk",
    )
    add_format(parser, HOSTS)


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Check the numbers. Raises UsageError with the nearest possible value."""
    return Settings(steps=arguments.steps, alarm_ratio=arguments.alarm / 100, repeats=arguments.repeats)


def option_words(arguments: argparse.Namespace) -> Sequence[str]:
    """The same options on a rank's command line."""
    reports = () if arguments.node_reports is None else ("--node-reports", str(arguments.node_reports))
    return (
        str(arguments.config),
        *override_words(arguments.overrides),
        *("--steps", str(arguments.steps)),
        *("--alarm", str(arguments.alarm)),
        *("--repeats", str(arguments.repeats)),
        *("--format", arguments.format),
        *reports,
    )
