"""`traincope export`: a run in other tools' formats, or as a copy that can be shown to others."""

import argparse
import sys
from pathlib import Path

from traincope.errors import UsageError
from traincope.store.reading import find_run
from traincope.store.redaction import redact
from traincope.timeline import open_run
from traincope_exporters.exports import Address, CollectorExport, DirectoryExport, TextExport
from traincope_exporters.registry import BUILT_IN, export_named
from traincope_exporters.writing import refuse, write_export

RUN = "run"
"""A run directory again."""
STDOUT = Path("-")


class Export:
    name = "export"
    help = "write a run for other tools, or copy it without its names so that it can be shown to others"
    example = "traincope export sample_runs/demo --to perfetto -o /tmp/demo.perfetto.json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "run_directory", type=Path, metavar="RUN", help="run directory, or a parent holding one run"
        )
        parser.add_argument(
            "--to",
            default=RUN,
            metavar="WHAT",
            help=f"{RUN} (with --redact), {', '.join(BUILT_IN)}, or what an installed package adds (default: {RUN})",
        )
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="FILE",
            help="file or directory to make, - for the standard output (default: the run's name with WHAT's ending)",
        )
        parser.add_argument("--overwrite", action="store_true", help="replace what is there already")
        parser.add_argument(
            "--redact",
            action="store_true",
            help=f"with {RUN}: hash names of spans, events, modules, hosts; leave out stacks",
        )
        _add_collector(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.to == RUN:
            return _copy(arguments)
        if arguments.redact:
            raise UsageError(f"--redact makes a run directory: redact first, then export its copy to {arguments.to}")
        export = export_named(arguments.to)
        if isinstance(export, CollectorExport):
            return _send(export, arguments)
        if arguments.endpoint or arguments.protocol:
            raise UsageError(f"{arguments.to} makes a file; --endpoint and --protocol are for --to otlp")
        return _write(export, arguments)


def _add_collector(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where a collector listens, for otlp")
    group.add_argument(
        "--endpoint",
        metavar="URL",
        help="default: OTEL_EXPORTER_OTLP_ENDPOINT, else http://127.0.0.1:4317, or :4318 for http",
    )
    group.add_argument(
        "--protocol",
        choices=("grpc", "http"),
        help="default: OTEL_EXPORTER_OTLP_PROTOCOL, else http for port 4318 and grpc for others",
    )
    group.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="how long to try each message (default: 10)"
    )


def _copy(arguments: argparse.Namespace) -> int:
    if not arguments.redact:
        raise UsageError("a run directory is a plain directory: copy it with cp -r, or without its names: --redact")
    if arguments.output is None:
        raise UsageError("give the directory to make with -o")
    redact(arguments.run_directory, arguments.output)
    print(f"{arguments.output} holds the same numbers without your names; look before you show it")
    return 0


def _send(export: CollectorExport, arguments: argparse.Namespace) -> int:
    if arguments.output is not None:
        raise UsageError(f"{arguments.to} goes to a collector and not to a file; give its URL with --endpoint")
    address = Address(
        endpoint=arguments.endpoint, protocol=arguments.protocol, timeout_seconds=max(arguments.timeout, 0.1)
    )
    print(export.send(open_run(arguments.run_directory), address))
    return 0


def _write(export: TextExport | DirectoryExport, arguments: argparse.Namespace) -> int:
    if arguments.output == STDOUT:
        return _print(export, arguments.run_directory)
    target = arguments.output or Path(f"{find_run(arguments.run_directory).resolve().name}.{export.suffix}")
    refuse(export, target, overwrite=arguments.overwrite)
    write_export(export, open_run(arguments.run_directory), target, overwrite=arguments.overwrite)
    print(f"{target}: open it with {export.hint}")
    return 0


def _print(export: TextExport | DirectoryExport, run: Path) -> int:
    if isinstance(export, DirectoryExport):
        raise UsageError("a directory of files cannot go to the standard output; name it with -o")
    for piece in export.pieces(open_run(run)):
        sys.stdout.buffer.write(piece.encode())
    return 0
