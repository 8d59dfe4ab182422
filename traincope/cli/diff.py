"""`traincope diff`: whether a run is slower than another, which ledger term moved, and what else differs."""

import argparse
from math import isfinite
from pathlib import Path

from traincope.analysis import Analysis, Judgement, analyze, diff
from traincope.analysis.diff import LEAST
from traincope.analysis.diff_series import step_series
from traincope.cli.answers import add_format, tell
from traincope.cli.last_good import last_good
from traincope.errors import REGRESSION, EmptyRunError, UsageError
from traincope.report import diff_document, render_diff
from traincope.timeline import open_run


class DiffCommand:
    name = "diff"
    help = "say whether a run is slower than another, which ledger term moved, and what else differs"
    example = "traincope diff sample_runs/demo sample_runs/demo-3d"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "runs", type=Path, nargs="+", metavar="RUN", help="RUN_A RUN_B, of which B is judged; with --last B alone"
        )
        parser.add_argument(
            "--last", action="store_true", help="A is the last good run in the directory that B lies in"
        )
        parser.add_argument(
            "--least",
            type=_percent,
            default=LEAST,
            metavar="PERCENT",
            help=f"a change of less than so much of a step is not called slower (default: {100 * LEAST:g})",
        )
        add_format(parser)
        parser.description = (
            f"{self.help}. Exit code: {REGRESSION} if B is slower with evidence, 0 if it is not, others for errors"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        before, after = _runs(arguments.runs, last=arguments.last)
        found = diff(before, after, least_ratio=arguments.least)
        if arguments.format == "json":
            tell(diff_document(found), _nothing, format="json")
        else:
            tell(found, render_diff, format="text")
        return REGRESSION if found.judgement is Judgement.SLOWER else 0


def _nothing(*_: object) -> None: ...


def _runs(paths: list[Path], *, last: bool) -> tuple[Analysis, Analysis]:
    if len(paths) != (1 if last else 2):
        raise UsageError("give two runs, RUN_A RUN_B, or one run and --last")
    if last:
        _, before = last_good(paths[0])
        return before, _analysed(paths[0])
    return _analysed(paths[0]), _analysed(paths[1])


def _analysed(path: Path) -> Analysis:
    """Raises EmptyRunError where no step can be compared."""
    analysis = analyze(open_run(path))
    if not len(step_series(analysis)):
        raise EmptyRunError(f"{path} has no step that counts and that all its ranks completed; let it run longer")
    return analysis


def _percent(text: str) -> float:
    percent = float(text)
    if not (isfinite(percent) and 0 <= percent < 100):
        raise argparse.ArgumentTypeError(f"{text} is no percentage; give a number from 0 on, as 2")
    return percent / 100
