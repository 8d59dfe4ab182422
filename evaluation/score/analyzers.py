"""torch's own analyzer of flight-recorder dumps and ours, on the same dumps."""

import argparse
import io
import json
import logging
import pickle
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.score.cases import Case
from evaluation.score.judging import NOT_KNOWN, RIGHT, WRONG, Verdict, verdict_of
from traincope.ingest.flight_recorder import read_dumps
from traincope.store.layout import FLIGHT_FILE
from traincope.timeline import build_timeline

FAILS = "fails"
FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, SystemExit)
"""Error of torch's analyzer for dumps that it cannot analyse."""
OPTIONS = argparse.Namespace(
    verbose=False, just_print_entries=False, allow_incomplete_ranks=True, mismatch_cap=10, prefix="rank_"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Answers of both analyzers to the same dumps."""

    as_written: str
    """torch's, of the dumps as torch writes them."""
    repaired: str
    """torch's, of dumps whose groups have the names that their entries use, and whose retired entries are complete."""
    ours: str


def compare(case: Case, run: Path, into: Path) -> Comparison | None:
    """Compare both on the dumps that a run's agent gathered; None if no rank wrote one. `into`: for our own input.

    A dump without entries counts as none: pipelines on gloo have no others.
    """
    written = {_rank(path): json.loads(path.read_text()) for path in sorted(run.glob(f"attempt-*/*/{FLIGHT_FILE}"))}
    written = {rank: dump for rank, dump in written.items() if dump["trace"].get("entries")}
    if not written:
        return None
    return compared(case, written, into)


def compared(case: Case, written: Mapping[int, Mapping[str, Any]], into: Path) -> Comparison:
    """Compare both on the dumps of these ranks: `{"groups": {name: ranks}, "trace": {...}}` each."""
    into.mkdir(parents=True)
    for rank, dump in written.items():
        (into / f"rank_{rank}").write_text(json.dumps(dump["trace"]))
    traces = {rank: dump["trace"] for rank, dump in written.items()}
    mended = {rank: _repaired(dump) for rank, dump in written.items()}
    return Comparison(
        as_written=_score(case, torch_culprits(traces)),
        repaired=_score(case, torch_culprits(mended)),
        ours=dumps_verdict(into).score(case),
    )


def dumps_verdict(folder: Path) -> Verdict:
    return verdict_of(build_timeline(read_dumps([folder])))


def torch_culprits(traces: Mapping[int, Mapping[str, Any]]) -> tuple[int, ...] | None:
    """Ranks that torch's analyzer reports for the first collective that it finds incomplete or unequal, empty if it
    finds none. None if it fails.
    """
    from torch.distributed.flight_recorder.components.builder import build_db

    traces = pickle.loads(pickle.dumps(dict(traces)))  # it changes what it gets
    details = {
        f"rank_{rank}": {
            "host_name": "",
            "rank": rank,
            "entries": trace["entries"],
            "version": trace["version"],
            "pg_config": trace["pg_config"],
        }
        for rank, trace in traces.items()
    }
    logging.getLogger("Flight Recorder").setLevel(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            found = build_db(details, OPTIONS, str(next(iter(traces.values()))["version"]))
    except FAILURES:
        return None
    return next((ranks for each in found.collectives if (ranks := _blamed(each))), ())


def _blamed(collective: Any) -> tuple[int, ...]:
    return tuple(sorted({*(collective.missing_ranks or ()), *(collective.mismatch_collectives or {})}))


def _score(case: Case, culprits: tuple[int, ...] | None) -> str:
    if culprits is None:
        return FAILS
    if not culprits:
        return NOT_KNOWN
    return RIGHT if culprits == case.culprits else WRONG


def _repaired(dump: Mapping[str, Any]) -> Mapping[str, Any]:
    """On gloo, torch names no group in `pg_config`, and never sets a state."""
    trace = dump["trace"]
    names = {entry["process_group"][0]: entry["process_group"][1] for entry in trace["entries"]}
    everyone = next(iter(trace["pg_config"].values()), {"ranks": "[]"})["ranks"]
    config = {
        name: {"name": name, "desc": description, "ranks": str(dump["groups"].get(name, everyone))}
        for name, description in names.items()
    }
    entries = [{**entry, "state": "completed" if entry["retired"] else entry["state"]} for entry in trace["entries"]]
    return {**trace, "pg_config": config, "entries": entries}


def _rank(path: Path) -> int:
    return int(path.parent.name.rpartition("-")[2])


def table(comparisons: Sequence[Comparison]) -> str:
    rows = {
        "torch's analyzer, dumps as written": [each.as_written for each in comparisons],
        "torch's analyzer, dumps repaired": [each.repaired for each in comparisons],
        "traincope hang DUMPS": [each.ours for each in comparisons],
    }
    head = f"{f'{len(comparisons)} sets of dumps':36}{RIGHT:>8}{WRONG:>8}{NOT_KNOWN:>8}{FAILS:>8}"
    lines = [
        f"{name:36}" + "".join(f"{scores.count(score):8d}" for score in (RIGHT, WRONG, NOT_KNOWN, FAILS))
        for name, scores in rows.items()
    ]
    return "\n".join([head, *lines])
