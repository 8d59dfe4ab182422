"""The ledger of imported traces against the truth of the programs that they are traces of, to the nanosecond."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from tests.seeds import examples
from tests.virtual_gpu.actions import Program
from tests.virtual_gpu.kineto import NEW, OLD, Style, write_traces
from tests.virtual_gpu.programs import PROGRAMS
from tests.virtual_gpu.random_programs import programs
from tests.virtual_gpu.truth import truth
from traincope.analysis.analyze import analyze
from traincope.analysis.attribution.stalls import AmbiguousWait
from traincope.analysis.ledger.ledger import Ledger
from traincope.ingest import import_traces
from traincope.timeline import open_run

Steps = dict[int, dict[int, dict[str, int]]]
"""Rank -> step -> term -> ns, without terms of 0 ns; `wall` is the wall time."""

STYLES = {"new": NEW, "old": OLD}


def imported(program: Program, folder: Path, style: Style) -> Steps:
    import_traces(write_traces(program, folder / "traces", style), folder / "run")
    ledger = analyze(open_run(folder / "run")).ledger
    return {} if ledger is None else ledger_steps(ledger)


def ledger_steps(ledger: Ledger) -> Steps:
    return {
        rank.rank: {
            number: {"wall": int(rank.wall_ns[at])}
            | {term: int(ns[at]) for term, ns in rank.terms.items() if ns is not None and ns[at]}
            for at, number in enumerate(rank.numbers.tolist())
        }
        for rank in ledger.ranks
    }


def true_steps(program: Program) -> Steps:
    return {
        rank: {number: {"wall": step.wall_ns} | dict(step.terms) for number, step in steps.items()}
        for rank, steps in truth(program).items()
    }


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_ledger_of_a_named_program_is_the_truth(name: str, style: Style, tmp_path: Path) -> None:
    assert imported(PROGRAMS[name], tmp_path, style) == true_steps(PROGRAMS[name])


@settings(max_examples=examples(80))
@given(programs())
def test_the_ledger_of_random_ranks_is_the_truth(program: Program) -> None:
    with TemporaryDirectory() as folder:
        assert imported(program, Path(folder), NEW) == true_steps(program)


@settings(max_examples=40)
@given(programs(max_ranks=1, evaluates=False))
def test_hidden_waits_of_a_random_program_are_the_truth(program: Program) -> None:
    """The truth is that of the counted steps."""
    with TemporaryDirectory() as folder:
        import_traces(write_traces(program, Path(folder) / "traces"), Path(folder) / "run")
        analysis = analyze(open_run(Path(folder) / "run"))
    assert analysis.ledger is not None
    (rank,) = analysis.ledger.ranks
    hidden: Counter[str] = Counter()
    for number in rank.numbers[rank.counted].tolist():
        hidden.update(truth(program)[0][number].hidden)
    assert {name: ns for name, ns in (analysis.host_hidden_waits or {}).items() if ns} == hidden


def test_a_collective_of_an_untraced_rank_is_ambiguous(tmp_path: Path) -> None:
    import_traces(write_traces(PROGRAMS["late peer without a trace"], tmp_path / "traces"), tmp_path / "run")
    ledger = analyze(open_run(tmp_path / "run")).ledger
    assert ledger is not None
    (rank,) = ledger.ranks
    ambiguous = {key: ns.tolist() for key, ns in rank.ambiguous_waits.items() if ns.any()}
    assert ambiguous == {("world", AmbiguousWait.RECORDS_MISSING): [60_000]}
