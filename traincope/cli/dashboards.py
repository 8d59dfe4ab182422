"""`traincope dashboards ...`: dashboards for Grafana and rules for Prometheus."""

import argparse
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from traincope.cli.command import Command, add_commands
from traincope.errors import MissingDependencyError, UsageError

if TYPE_CHECKING:
    from traincope_dashboards.board import Look

TOKEN = "GRAFANA_TOKEN"
"""The environment's variable for the token: an argument can be read by everybody on the machine."""


class Build:
    name = "build"
    help = "write the dashboards as JSON, and the recording and alerting rules as YAML"
    example = "traincope dashboards build -o my-dashboards --set hang_seconds=600"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_look(parser)
        parser.add_argument(
            "-o", "--output", type=Path, default=Path("dashboards"), metavar="DIR", help="default: dashboards"
        )
        parser.add_argument(
            "--set",
            dest="limits",
            action="append",
            default=[],
            metavar="NAME=NUMBER",
            help="from where on something is an alert, e.g. hang_seconds=600; an unknown name lists all",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        _need("grafana_foundation_sdk")
        from traincope_dashboards.build import Settings, build, write
        from traincope_dashboards.limits import Limits, with_settings

        settings = Settings(look=_look(arguments), limits=with_settings(Limits(), arguments.limits))
        files = build(settings)
        write(files, arguments.output)
        for directory in sorted({str(Path(name).parent) for name in files}):
            count = sum(str(Path(name).parent) == directory for name in files)
            print(f"{arguments.output / directory}: {count} files")
        print("Prometheus reads the rules by `rule_files`, Grafana the dashboards by `traincope dashboards push`")
        return 0


class Push:
    name = "push"
    help = "bring the dashboards, their folders and, if told, a data source into a running Grafana"
    example = "GRAFANA_TOKEN=... traincope dashboards push --url http://127.0.0.1:3000"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--url", required=True, help="of Grafana; dashboards and runbooks link to it")
        parser.add_argument("--token", help=f"of a service account with role Editor (default: ${TOKEN})")
        parser.add_argument(
            "--prometheus", metavar="URL", help="also add this Prometheus as data source (the token's role: Admin)"
        )
        parser.add_argument("--overwrite", action="store_true", help="also what was edited in Grafana since")
        _add_look(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        _need("grafana_foundation_sdk", "grafana_client")
        token = arguments.token or os.environ.get(TOKEN)
        if not token:
            raise UsageError(f"Grafana wants a token: set {TOKEN}, or give --token")
        from traincope_dashboards.grafana import Grafana
        from traincope_dashboards.push import push

        grafana = Grafana(arguments.url, token=token)
        print(f"Grafana {grafana.version()} at {grafana.url}")
        look, overwrite = _look(arguments, grafana=grafana.url), arguments.overwrite
        for done in push(grafana, look=look, prometheus=arguments.prometheus, overwrite=overwrite):
            print(f"{done.how:>9}  {done.what}", flush=True)
        print(f"{grafana.url}/d/traincope-overview")
        return 0


ACTIONS: tuple[Command, ...] = (Build(), Push())


class Dashboards:
    name = "dashboards"
    help = "dashboards for Grafana and rules for Prometheus: build them, push them"
    example = ACTIONS[0].example

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_commands(parser, ACTIONS, what="action")

    def run(self, arguments: argparse.Namespace) -> int:
        action: Command = arguments.action
        return action.run(arguments)


def _add_look(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--viewer", metavar="URL", help="where `traincope view` is reached (default: http://127.0.0.1:8050)"
    )
    parser.add_argument("--grafana", metavar="URL", help="where readers reach Grafana (default: http://127.0.0.1:3000)")
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="job-wide panels ask what the recording rules recorded: for jobs of more than about 1,000 ranks",
    )


def _look(arguments: argparse.Namespace, *, grafana: str | None = None) -> "Look":
    from traincope_dashboards.board import Look

    told = {"viewer": arguments.viewer, "grafana": arguments.grafana or grafana}
    return Look(**{name: url for name, url in told.items() if url}, from_rules=arguments.recorded)


def _need(*packages: str) -> None:
    """Raises MissingDependencyError where one is not installed."""
    missing: Sequence[str] = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingDependencyError(f"dashboards need {missing[0]}: pip install 'traincope[grafana]'")
