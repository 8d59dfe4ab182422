"""`traincope export`: a run in the formats of other tools, or as a copy without names."""

import argparse
from pathlib import Path

from rich.table import Table

from traincope.cli.answers import write_answer
from traincope.cli.given_runs import add_run, given_run
from traincope.cli.screen import make_console
from traincope.errors import MissingDependencyError, UsageError
from traincope.lines import Trimmed, text
from traincope.report.export_files import check_target, open_whole, write_export
from traincope.report.exports import (
    BUILT_IN,
    Address,
    CollectorExport,
    DirectoryExport,
    TextExport,
    export_named,
    export_names,
)
from traincope.store.reading import find_run
from traincope.store.redaction import redact
from traincope.whole_files import is_stream

STDOUT = Path("-")


class Export:
    name = "export"
    example = "traincope export sample_runs/demo --to perfetto -o /tmp/demo.perfetto.json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_run(parser)
        parser.add_argument(
            "--to",
            metavar="FORMAT",
            help=f"{', '.join(BUILT_IN)}, or an export of an installed package; without --to and --redact, the formats "
            "are listed",
        )
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="FILE",
            help="file or directory to write, - for standard output (default: the run's name with the format's suffix)",
        )
        parser.add_argument("--overwrite", action="store_true", help="replace an existing file or export directory")
        parser.add_argument(
            "--redact",
            action="store_true",
            help="copy the run, and hash the names of spans, events, modules and hosts; leave out stacks",
        )
        _add_collector(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.to is None:
            return _copy(arguments) if arguments.redact else _list(arguments)
        if arguments.redact:
            raise UsageError(f"--redact writes a run directory; redact first, then export the copy to {arguments.to}")
        export = export_named(arguments.to)
        arguments.run_directory = given_run(arguments.run_directory)
        if isinstance(export, CollectorExport):
            return _send(export, arguments)
        if arguments.endpoint or arguments.protocol:
            raise UsageError(f"{arguments.to} writes a file; --endpoint and --protocol are for --to otlp")
        return _write(export, arguments)


def _add_collector(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("address of the collector, for --to otlp")
    group.add_argument(
        "--endpoint",
        metavar="URL",
        help="default: OTEL_EXPORTER_OTLP_ENDPOINT, otherwise http://127.0.0.1:4317, or :4318 for http",
    )
    group.add_argument(
        "--protocol",
        choices=("grpc", "http"),
        help="default: OTEL_EXPORTER_OTLP_PROTOCOL, otherwise http for port 4318 and grpc for other ports",
    )
    group.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="time limit of each message (default: 10)"
    )


def _list(arguments: argparse.Namespace) -> int:
    """Print what a run can be exported to, and the programs that open it."""
    if arguments.output is not None:
        raise UsageError(f"-o needs a format, --to {'|'.join(export_names())}; or --redact for a copy without names")
    shown = "RUN" if arguments.run_directory is None else str(arguments.run_directory)
    grid = Table.grid(padding=(0, 2))
    for name in export_names():
        grid.add_row(text(f"  --to {name}"), text(_opened_by(name)))
    grid.add_row(text("  --redact -o COPY"), text("the run itself, without its names, for others to see"))
    console = make_console()
    console.print(text(f"traincope export {shown} with one of", style="bold"))
    console.print(Trimmed(grid), end="")
    return 0


def _opened_by(name: str) -> str:
    try:
        export = export_named(name)
    except MissingDependencyError as error:
        return str(error)
    return "for a collector of OpenTelemetry" if isinstance(export, CollectorExport) else f"for {export.hint}"


def _copy(arguments: argparse.Namespace) -> int:
    if arguments.output is None:
        raise UsageError("give the new directory with -o")
    redact(given_run(arguments.run_directory), arguments.output)
    print(f"{arguments.output} holds the same numbers without your names; check it before you share it")
    return 0


def _send(export: CollectorExport, arguments: argparse.Namespace) -> int:
    if arguments.output is not None:
        raise UsageError(f"{arguments.to} goes to a collector and not to a file; give its URL with --endpoint")
    address = Address(
        endpoint=arguments.endpoint, protocol=arguments.protocol, timeout_seconds=max(arguments.timeout, 0.1)
    )
    print(export.send(open_whole(arguments.run_directory), address))
    return 0


def _write(export: TextExport | DirectoryExport, arguments: argparse.Namespace) -> int:
    if arguments.output == STDOUT:
        return _print(export, arguments.run_directory)
    target = arguments.output or Path(f"{find_run(arguments.run_directory).resolve().name}.{export.suffix}")
    check_target(export, target, overwrite=arguments.overwrite)
    write_export(export, arguments.run_directory, target, overwrite=arguments.overwrite)
    if not is_stream(target):
        print(f"{target}: open it with {export.hint}")
    return 0


def _print(export: TextExport | DirectoryExport, run: Path) -> int:
    if isinstance(export, DirectoryExport):
        raise UsageError("this export writes a directory, which cannot go to standard output; give its name with -o")
    for piece in export.pieces(open_whole(run)):
        write_answer(piece, None)
    return 0
