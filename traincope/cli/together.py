"""Option `--workflow`: instead of the given runs, all runs of jobs that work together below the given directories."""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from traincope.cli.given_runs import given_runs
from traincope.errors import TraincopeError, UsageError
from traincope.printable import printable
from traincope.report.run_list import MAX_DEPTH, find_runs
from traincope.store.job.manifests import RunInfo, parse_run_info, read_run_info
from traincope.store.layout import DEFAULT_ROOT, RUN_FILE, attempt_directory
from traincope.store.lines import parse_object
from traincope.store.places.fetched import manifests_below
from traincope.store.places.remote import url_of
from traincope.store.reading import find_run
from traincope.units import count


def add_workflow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workflow",
        metavar="NAME",
        help="take all runs below RUN whose jobs have this TRAINCOPE_WORKFLOW; RUN may then be a directory of runs, "
        f"up to {MAX_DEPTH} levels deep, or a URL with runs directly below it",
    )


def add_attempt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--attempt",
        type=int,
        metavar="N",
        help="describe attempt N, with the faults until its end, instead of the last one; every command also takes "
        "the attempt's directory as RUN",
    )


def _attempt_of(run: Path, number: int) -> Path:
    """The directory of a run's attempt. Raises UsageError without it."""
    directory = attempt_directory(find_run(run), number)
    if not directory.is_dir():
        raise UsageError(f"{run} has no attempt {number}; traincope report lists its attempts under GOODPUT")
    return directory


def with_runs_of_workflow(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments, with the runs that they mean as `run_directories`: those of `--workflow`, the newest run if none
    is given. Standard error names both.

    Runs that cannot be read are left out, and named too. Raises UsageError without any run of the workflow or for a
    place that is not a directory, and as `manifests_below`.
    """
    name: str | None = arguments.workflow
    if name is None:
        runs = given_runs(arguments.run_directories)
        chosen = runs if arguments.attempt is None else [_attempt_of(run, arguments.attempt) for run in runs]
        return argparse.Namespace(**{**vars(arguments), "run_directories": chosen})
    if arguments.attempt is not None:
        raise UsageError("--attempt chooses one of a run's attempts; leave out --workflow")
    places: list[Path] = arguments.run_directories or [Path(DEFAULT_ROOT)]
    found: dict[str | Path, Path] = {}
    for place in places:
        for run, info in _infos_below(place):
            if info.workflow == name:
                found.setdefault(url_of(run) or run.resolve(), run)
    runs = list(found.values())
    if not runs:
        raise UsageError(
            f"no run below {_names(places)} has the workflow {name!r}; traincope ls --format json shows the workflow "
            "of each run"
        )
    alone = "; it is compared with no other" if len(runs) == 1 else ""
    _note(f"{count(len(runs), 'run')} of the workflow {name}: {_names(runs)}{alone}")
    return argparse.Namespace(**{**vars(arguments), "run_directories": runs})


def _infos_below(place: Path) -> Iterator[tuple[Path, RunInfo]]:
    for run, read in _runs_below(place):
        try:
            yield run, read()
        except (TraincopeError, OSError) as error:
            _leave_out(error)


def _runs_below(place: Path) -> Iterator[tuple[Path, Callable[[], RunInfo]]]:
    """Runs, and functions that read their manifests."""
    url = url_of(place)
    if url is None:
        yield from ((run, partial(read_run_info, run)) for run in find_runs(place, unreadable=_leave_out))
    else:
        yield from ((Path(run), partial(_decoded, run, text)) for run, text in manifests_below(url).items())


def _decoded(url: str, manifest: str) -> RunInfo:
    return parse_run_info(parse_object(manifest, place=f"{url}/{RUN_FILE}"), root=url)


def _leave_out(error: Exception) -> None:
    _note(f"left out: {error}")


def _note(text: str) -> None:
    print(printable(text), file=sys.stderr)


def _names(places: list[Path]) -> str:
    return ", ".join(url_of(place) or str(place) for place in places)
