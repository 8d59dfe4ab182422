"""`traincope report`: where the time of a run went, as text, as JSON, or as one HTML file."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from traincope.analysis import Analysis, analyze, parse_changes, parse_settings, predict_settings, what_if
from traincope.analysis.communication.workflow import workflow
from traincope.cli.answers import add_format, write_answer
from traincope.cli.given_runs import add_runs
from traincope.cli.quantities import add_energy_price, add_price
from traincope.cli.screen import make_console
from traincope.cli.together import add_attempt, add_workflow, with_runs_of_workflow
from traincope.cli.workers import add_workers, read_progress, workers_of
from traincope.errors import UsageError
from traincope.printable import printable
from traincope.report.document.document import to_document, to_json
from traincope.report.document.job_summary import summary_document
from traincope.report.text.brief import brief_document, render_brief
from traincope.report.text.job_summary import render_summary
from traincope.report.text.text import render
from traincope.report.text.what_if import prediction_document, render_prediction, render_settings, settings_document
from traincope.report.text.workflow import render_workflow, workflow_document
from traincope.store.layout import BRIEF_FILE
from traincope.summaries import job_summary, read_summaries
from traincope.summaries.reading import MANY_RANKS, is_for_rows
from traincope.timeline import JoinedGroup, Timeline, join_groups, open_run, with_joined
from traincope.whole_files import write_json

HTML = "html"


class Report:
    name = "report"
    example = "traincope report sample_runs/demo --format json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_runs(parser, more="jobs that work together, and their waits for each other")
        add_workflow(parser)
        add_attempt(parser)
        add_format(parser, HTML)
        parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE instead of the screen")
        parser.add_argument(
            "--brief", action="store_true", help="print only the first finding, the five largest terms and the MFU"
        )
        parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)  # for `traincope run`
        add_price(parser)
        add_energy_price(parser)
        parser.add_argument(
            "--detail",
            choices=("auto", "all", "rows"),
            default="auto",
            help="all: read every event; rows: only the newest rows and the last records of each rank, in about a "
            f"millisecond per rank; auto (default): rows from {MANY_RANKS:,} ranks on, if there are any",
        )
        add_workers(parser)
        parser.add_argument(
            "--what-if",
            metavar="CHANGES",
            help="instead of the report, predict the step time with parts of a step scaled by a factor, "
            "e.g. tp.transfer=0.5, rank3.compute=0.9 or data_wait=0, or with other settings, "
            "e.g. pp=4,microbatches=16; separate several with commas",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.format == HTML and arguments.output is None and sys.stdout.isatty():
            raise UsageError("an HTML report is a file; give its name, e.g. -o report.html")
        if arguments.brief and (arguments.format != "text" or arguments.what_if is not None):
            raise UsageError("--brief prints text; leave out --format and --what-if")
        arguments = with_runs_of_workflow(arguments)
        if len(arguments.run_directories) > 1 and (arguments.format == HTML or arguments.what_if is not None):
            raise UsageError("--format html and --what-if take one run")
        if _by_rows(arguments):
            write_answer(_summary_text(arguments), arguments.output, is_drawn=True)
            return 0
        with workers_of(arguments).executor() as executor:
            runs = [open_run(run, executor=executor) for run in arguments.run_directories]
        joined = join_groups(runs) if _one_workflow(runs) else ()
        analyses = [analyze(run) for run in with_joined(runs, joined)]
        if len(analyses) > 1 or (arguments.workflow and arguments.format != HTML and arguments.what_if is None):
            text = _workflow_text(analyses, joined, arguments)
        elif arguments.what_if is None:
            text = _report_text(analyses[0], arguments)
        else:
            text = _prediction_text(analyses[0], arguments)
        write_answer(text, arguments.output, is_drawn=arguments.format == "text")
        return 0


def _by_rows(arguments: argparse.Namespace) -> bool:
    first, *others = arguments.run_directories
    prices = (arguments.price_per_gpu_hour, arguments.price_per_kwh)
    unfit = bool(others or arguments.workflow) or arguments.format == HTML or arguments.what_if is not None
    unfit |= arguments.brief or any(price is not None for price in prices)
    if arguments.detail == "auto":
        return not unfit and is_for_rows(first)
    if arguments.detail == "rows" and unfit:
        raise UsageError(
            "--detail rows prints one run as text or JSON, without costs; leave out --format html, --what-if, --brief "
            "and prices"
        )
    return bool(arguments.detail == "rows")


def _summary_text(arguments: argparse.Namespace) -> str:
    with workers_of(arguments).executor() as executor, read_progress() as progress:
        summaries = read_summaries(arguments.run_directories[0], executor=executor, progress=progress)
    document = summary_document(job_summary(summaries))
    if arguments.format == "json":
        return json.dumps(document, indent=2) + "\n"
    console = make_console(file=StringIO() if arguments.output else None)
    with console.capture() as captured:
        render_summary(document, console)
    return captured.get()


def _report_text(analysis: Analysis, arguments: argparse.Namespace) -> str:
    prices = _prices(arguments)
    if arguments.format == "json":
        return to_json(to_document(analysis, **prices))
    if arguments.format == HTML:
        from traincope.report.html import to_html

        return to_html(analysis, **prices)
    console = make_console(file=StringIO() if arguments.output else None)
    with console.capture() as captured:
        if arguments.brief:
            render_brief(analysis, console)
            if arguments.keep:
                with suppress(OSError):
                    write_json(analysis.timeline.run.path / BRIEF_FILE, brief_document(analysis))
        else:
            render(analysis, console, **prices)
    return captured.get()


def _prices(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in ("price_per_gpu_hour", "price_per_kwh", "currency")}


def _one_workflow(runs: Sequence[Timeline]) -> bool:
    """Return whether several runs may have worked together: they name one workflow, or none."""
    return len(runs) > 1 and len({run.run.info.workflow for run in runs if run.run.info.workflow}) <= 1


def _workflow_text(analyses: list[Analysis], joined: Sequence[JoinedGroup], arguments: argparse.Namespace) -> str:
    """The waits between the jobs, and then the report of each."""
    together = workflow(analyses, joined)
    if arguments.format == "json":
        reports = [to_document(analysis, **_prices(arguments)) for analysis in analyses]
        return json.dumps(workflow_document(together, reports), indent=2, allow_nan=False) + "\n"
    console = make_console(file=StringIO() if arguments.output else None)
    with console.capture() as captured:
        render_workflow(together, console)
    heads = [f"\nJOB {printable(job.role)}\n" for job in together.jobs]
    reports_text = [_report_text(analysis, arguments) for analysis in analyses]
    return captured.get() + "".join(head + report for head, report in zip(heads, reports_text, strict=True))


def _prediction_text(analysis: Analysis, arguments: argparse.Namespace) -> str:
    if arguments.format == HTML:
        raise UsageError("--what-if prints text or JSON; leave out --format html")
    settings = parse_settings(arguments.what_if)
    console = make_console(file=StringIO())
    if settings is None:
        scaled = what_if(analysis, parse_changes(arguments.what_if, analysis))
        document: object = prediction_document(scaled)
        show = partial(render_prediction, scaled)
    else:
        predicted = predict_settings(analysis, settings)
        document, show = settings_document(predicted), partial(render_settings, predicted)
    if arguments.format == "json":
        return json.dumps(document, indent=2) + "\n"
    with console.capture() as captured:
        show(console)
    return captured.get()
