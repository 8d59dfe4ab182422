"""Option `--workflow`: instead of the given runs, all runs of jobs that work together below the given directories."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from traincope.errors import TraincopeError, UsageError
from traincope.report.run_list import find_runs
from traincope.store.job.manifests import read_run_info
from traincope.store.places.fetched import copies_below
from traincope.store.places.remote import url_of


def add_workflow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workflow",
        metavar="NAME",
        help="take all runs below RUN whose jobs have this TRAINCOPE_WORKFLOW; RUN may then be a directory of runs",
    )


def with_runs_of_workflow(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments, with the runs of `--workflow` in place of `run_directories`. Raises UsageError without any."""
    if arguments.workflow is None:
        return arguments
    given: list[Path] = arguments.run_directories
    runs = [run for place in given for run in _runs_below(place, workflow=arguments.workflow)]
    if not runs:
        raise UsageError(
            f"no run below {', '.join(map(str, given))} has the workflow {arguments.workflow!r}; traincope ls --format "
            "json shows the workflow of each run"
        )
    return argparse.Namespace(**{**vars(arguments), "run_directories": runs})


def _runs_below(place: Path, *, workflow: str) -> Iterator[Path]:
    """Runs that cannot be read name no workflow. Below a URL, runs are named by their URLs."""
    url = url_of(place)
    directory = place if url is None else copies_below(url)
    for run in find_runs(directory):
        try:
            is_of_it = read_run_info(run).settings.get("workflow") == workflow
        except (TraincopeError, OSError):
            continue
        if is_of_it:
            yield run if url is None else Path(url) / run.relative_to(directory)
