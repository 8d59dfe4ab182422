"""The ledger of imported traces against the truth of the programs that they are traces of, to the nanosecond."""

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from tests.ingest.writing import complete, kineto
from tests.seeds import examples
from tests.virtual_gpu.actions import Program
from tests.virtual_gpu.kineto import NEW, OLD, Style, write_traces
from tests.virtual_gpu.programs import PROGRAMS
from tests.virtual_gpu.random_programs import programs
from tests.virtual_gpu.truth import truth
from traincope.analysis.analyze import analyze
from traincope.analysis.attribution.stalls import AmbiguousWait
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.verdict.findings import FindingKind
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


@pytest.mark.slow
@settings(max_examples=examples(80))
@given(programs())
def test_the_ledger_of_random_ranks_is_the_truth(program: Program) -> None:
    with TemporaryDirectory() as folder:
        assert imported(program, Path(folder), NEW) == true_steps(program)


@pytest.mark.slow
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


def with_calls(category: str) -> str:
    """A step of 1 ms: kernels of 100 and 50 us, both launched by the begin of the first, and 795 us between them."""
    step = complete("ProfilerStep#1", "0", "1000", cat="user_annotation", pid=1, tid=1)
    calls = [complete("launch", str(at), "1", cat=category, pid=1, tid=1, correlation=at) for at in (1, 3)]
    kernels = [
        complete("gemm", "5", "100", correlation=1),
        complete("gemm", "900", "50", correlation=3),
    ]
    return kineto([step, *(calls if category else []), *kernels])


@pytest.mark.parametrize(
    "category", ["cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "hpu_runtime", "privateuse1_runtime"]
)
def test_calls_of_any_runtime_launch_work(category: str, tmp_path: Path) -> None:
    """So what the GPU waits for in between is not the host."""
    (tmp_path / "trace.json").write_text(with_calls(category))
    import_traces([tmp_path / "trace.json"], tmp_path / "run")
    ledger = analyze(open_run(tmp_path / "run")).ledger
    assert (ledger.total("kernel_wait"), ledger.total("launch_gap")) == (795_000, 5_000)


def test_idle_time_has_no_cause_if_no_launch_was_traced(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(with_calls(""))
    import_traces([tmp_path / "trace.json"], tmp_path / "run")
    analysis = analyze(open_run(tmp_path / "run"))
    assert analysis.ledger.total("launch_gap") is None
    assert analysis.ledger.total("unattributed") == 850_000
    assert FindingKind.LAUNCH_GAP not in [finding.kind for finding in analysis.verdict]


def test_marks_of_falling_numbers_are_of_two_profiles(tmp_path: Path) -> None:
    """Only the first profile's steps count."""
    marks = [(5, 0), (6, 1000), (1, 2000), (2, 3000)]
    steps = [
        complete(f"ProfilerStep#{number}", str(at), "1000", cat="user_annotation", pid=1, tid=1) for number, at in marks
    ]
    (tmp_path / "trace.json").write_text(kineto([*steps, complete("gemm", "0", "4000")]))
    import_traces([tmp_path / "trace.json"], tmp_path / "run")
    (rank,) = analyze(open_run(tmp_path / "run")).ledger.ranks
    assert rank.numbers.tolist() == [5, 6]


def test_an_event_that_a_file_has_twice_counts_once(tmp_path: Path) -> None:
    text = with_calls("cuda_runtime")
    events = json.loads(text)["traceEvents"]
    for name, listed in (("once", events), ("twice", [*events, *events])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"traceEvents": listed}))
        (result,) = import_traces([tmp_path / f"{name}.json"], tmp_path / name)
        assert (result.num_kept, result.num_twice) == (5, 0 if name == "once" else 5)
    once, twice = (analyze(open_run(tmp_path / name)) for name in ("once", "twice"))
    assert once.kernels is not None
    assert twice.kernels is not None
    assert twice.kernels.classes == once.kernels.classes
    assert twice.gpu_partition == once.gpu_partition


@pytest.mark.parametrize("host", [True, False], ids=["host's marks", "GPU's marks"])
def test_marks_of_the_gpu_alone_are_steps(host: bool, tmp_path: Path) -> None:
    """Launches at 10, 14, 70 and 90 us; kernels at 20 to 50, 50 to 60, 75 to 100 and 110 to 130.

    Without marks of the host, step 3 begins at the launch at 10, and step 4 at that at 70. Step 5's launch comes while
    the GPU still works for step 4, so it begins at 100.
    """
    calls = [
        complete("launch", str(at), "2", cat="cuda_runtime", pid=1, tid=1, correlation=at) for at in (10, 14, 70, 90)
    ]
    works = {10: (20, 30), 14: (50, 10), 70: (75, 25), 90: (110, 20)}
    kernels = [complete("gemm", str(at), str(ns), correlation=call) for call, (at, ns) in works.items()]
    marks = [
        complete(f"ProfilerStep#{number}", str(begin), str(end - begin), cat="gpu_user_annotation")
        for number, begin, end in ((3, 20, 60), (4, 75, 100), (5, 110, 130))
    ]
    hosts = [
        complete(f"ProfilerStep#{number}", str(begin), str(end - begin), cat="user_annotation", pid=1, tid=1)
        for number, begin, end in ((3, 10, 70), (4, 70, 90), (5, 90, 95))
    ]
    (tmp_path / "trace.json").write_text(kineto([*(hosts if host else []), *calls, *kernels, *marks]))
    import_traces([tmp_path / "trace.json"], tmp_path / "run")
    assert ledger_steps(analyze(open_run(tmp_path / "run")).ledger) == {
        0: {
            3: {"wall": 60_000, "other_compute": 40_000, "launch_gap": 20_000},
            4: {"wall": 30_000, "other_compute": 25_000, "launch_gap": 5_000},
            5: {"wall": 30_000, "other_compute": 20_000, "kernel_wait": 10_000},
        }
    }
