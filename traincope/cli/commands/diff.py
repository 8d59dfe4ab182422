"""`traincope diff`: compare two runs: step time, ledger terms, and other differences."""

import argparse
from math import isfinite
from pathlib import Path

from traincope.analysis import Analysis, Judgement, analyze, diff
from traincope.analysis.diff.diff import DEFAULT_THRESHOLD_RATIO, require_steps
from traincope.cli.answers import add_format, print_answer
from traincope.cli.given_runs import given_runs
from traincope.cli.launch.last_good import last_good
from traincope.errors import REGRESSION, UsageError
from traincope.report.text.diff import diff_document, render_diff
from traincope.timeline import open_run


class DiffCommand:
    name = "diff"
    example = "traincope diff sample_runs/demo sample_runs/demo-3d"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "runs",
            type=Path,
            nargs="*",
            metavar="RUN",
            help="RUN_A RUN_B: B is compared with A; with --last only RUN_B, or none for the newest run",
        )
        parser.add_argument("--last", action="store_true", help="A is the last good run in the directory of B")
        parser.add_argument(
            "--threshold",
            type=_percent,
            default=DEFAULT_THRESHOLD_RATIO,
            metavar="PERCENT",
            help="smallest change in percent of a step that counts as slower "
            f"(default: {100 * DEFAULT_THRESHOLD_RATIO:g})",
        )
        add_format(parser)
        codes = f"Exit code: {REGRESSION} if there is evidence that B is slower, otherwise 0; other codes for errors"
        parser.description = f"{parser.description}. {codes}"

    def run(self, arguments: argparse.Namespace) -> int:
        before, after = _runs(arguments.runs, last=arguments.last)
        comparison = diff(before, after, threshold_ratio=arguments.threshold)
        if arguments.format == "json":
            print_answer(diff_document(comparison), _nothing, format="json")
        else:
            print_answer(comparison, render_diff, format="text")
        return REGRESSION if comparison.judgement is Judgement.SLOWER else 0


def _nothing(*_: object) -> None: ...


def _runs(paths: list[Path], *, last: bool) -> tuple[Analysis, Analysis]:
    if len(paths) > 1 if last else len(paths) != 2:
        raise UsageError("give two runs, RUN_A RUN_B; or --last, after one run if it is not the newest")
    if last:
        (after,) = given_runs(paths)
        _, before = last_good(after)
        return before, _analysed(after)
    return _analysed(paths[0]), _analysed(paths[1])


def _analysed(path: Path) -> Analysis:
    """Analyze a run. Raises EmptyRunError if no step can be compared."""
    return require_steps(analyze(open_run(path)))


def _percent(text: str) -> float:
    percent = float(text)
    if not (isfinite(percent) and 0 <= percent < 100):
        raise argparse.ArgumentTypeError(f"{text} is not a percentage; give a number from 0 to 100, e.g. 2")
    return percent / 100
