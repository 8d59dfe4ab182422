"""`traincope dashboards ...`: dashboards for Grafana and rules for Prometheus."""

import argparse
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from traincope.cli.command import Subcommand, add_commands
from traincope.errors import MissingDependencyError, UsageError

if TYPE_CHECKING:
    from traincope_dashboards.panels.board import Look

TOKEN = "GRAFANA_TOKEN"
"""Environment variable for the token. All users of the machine can read command-line arguments."""


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
            help="threshold of an alert, e.g. hang_seconds=600; an unknown name lists all names",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        _require("grafana_foundation_sdk")
        from traincope_dashboards.build import Settings, build, write
        from traincope_dashboards.rules.limits import Limits, with_settings

        settings = Settings(look=_look(arguments), limits=with_settings(Limits(), arguments.limits))
        files = build(settings)
        write(files, arguments.output)
        for directory in sorted({str(Path(name).parent) for name in files}):
            count = sum(str(Path(name).parent) == directory for name in files)
            print(f"{arguments.output / directory}: {count} files")
        print("load the rules with `rule_files` of Prometheus, and the dashboards with `traincope dashboards push`")
        return 0


class Push:
    name = "push"
    help = "push the dashboards, their folders and, on request, a data source to a running Grafana"
    example = "GRAFANA_TOKEN=... traincope dashboards push --url http://127.0.0.1:3000"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--url", required=True, help="URL of Grafana; dashboards and runbooks link to it")
        parser.add_argument("--token", help=f"token of a service account with role Editor (default: ${TOKEN})")
        parser.add_argument(
            "--prometheus", metavar="URL", help="also add this Prometheus as data source (the token's role: Admin)"
        )
        parser.add_argument(
            "--overwrite", action="store_true", help="also replace dashboards that were edited in Grafana"
        )
        _add_look(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        _require("grafana_foundation_sdk", "grafana_client")
        token = arguments.token or os.environ.get(TOKEN)
        if not token:
            raise UsageError(f"Grafana needs a token: set {TOKEN}, or give --token")
        from traincope_dashboards.grafana import Grafana
        from traincope_dashboards.push import push

        grafana = Grafana(arguments.url, token=token)
        print(f"Grafana {grafana.version()} at {grafana.url}")
        look, overwrite = _look(arguments, grafana=grafana.url), arguments.overwrite
        for done in push(grafana, look=look, prometheus=arguments.prometheus, overwrite=overwrite):
            print(f"{done.change:>9}  {done.subject}", flush=True)
        print(f"{grafana.url}/d/traincope-overview")
        return 0


ACTIONS: tuple[Subcommand, ...] = (Build(), Push())


class Dashboards:
    name = "dashboards"
    example = ACTIONS[0].example

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_commands(parser, ACTIONS, what="action")

    def run(self, arguments: argparse.Namespace) -> int:
        action: Subcommand = arguments.action
        return action.run(arguments)


def _add_look(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--viewer", metavar="URL", help="address of `traincope view` for readers (default: http://127.0.0.1:8050)"
    )
    parser.add_argument(
        "--grafana", metavar="URL", help="address of Grafana for readers (default: http://127.0.0.1:3000)"
    )
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="job-wide panels query the series of the recording rules; for jobs of more than about 1,000 ranks",
    )


def _look(arguments: argparse.Namespace, *, grafana: str | None = None) -> "Look":
    from traincope_dashboards.panels.board import Look

    urls = {"viewer": arguments.viewer, "grafana": arguments.grafana or grafana}
    return Look(**{name: url for name, url in urls.items() if url}, from_rules=arguments.recorded)


def _require(*packages: str) -> None:
    """Raise MissingDependencyError if one of the packages is not installed."""
    missing: Sequence[str] = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingDependencyError(f"dashboards need {missing[0]}: pip install 'traincope[grafana]'")
