"""Runs made of tables: the whole report of a job whose times are known."""

from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import pytest

from tests.ingest.tables import jobs
from tests.ingest.tables.jobs import MS, Computation, Job, step_seconds, table, write_csv
from traincope.analysis import Analysis, analyze
from traincope.analysis.verdict.findings import FindingKind
from traincope.errors import DataError, RunDirectoryError, UsageError
from traincope.events import Kind
from traincope.ingest import import_table
from traincope.report.document.document import to_document
from traincope.timeline import open_run

REAL_JOB = Path(__file__).parents[4] / "shared" / "op_traces" / "pai-job1.csv"
JOB = Job(replicas=2, stages=4, microbatches=8, steps=(10, 20, 21))


@cache
def imported() -> Path:
    """The run of a job with equal computations."""
    folder = Path(mkdtemp())
    import_table(write_csv(folder / "table.csv", table(JOB)), folder / "run")
    return folder / "run"


@cache
def analysis() -> Analysis:
    return analyze(open_run(imported()))


def test_all_steps_count_although_they_do_not_follow_each_other() -> None:
    ledger = analysis().ledger
    assert [rank.numbers[rank.counted].tolist() for rank in ledger.ranks] == [[10, 20, 21]] * 8
    assert analysis().median_step_ns == pytest.approx(step_seconds(JOB, JOB.seconds) * 1e9, abs=2)
    run = to_document(analysis())
    assert (run["recorder"]["dropped_steps"], run["recorder"]["unwatched_steps"]) == ([], [])
    assert run["run"]["mesh_axes"] == {"pp": 4, "dp": 2}


def test_the_terms_are_those_of_the_simulator_and_sum_to_the_step() -> None:
    """Per rank and step: 8 forwards of 1 ms, 8 backwards of 2 ms, an optimizer of 1 ms.

    The reduction of 0.8 ms lies after the pipeline's window on the first and last stage only: the others wait for no
    embedding.
    """
    ledger = analysis().ledger
    terms = {term: ledger.total(term) or 0 for term in ledger.order}
    rank_steps = 8 * 3
    assert {name: terms[name] / rank_steps for name in ("forward", "backward", "optimizer")} == pytest.approx(
        {"forward": 8e6, "backward": 16e6, "optimizer": 1e6}, abs=5
    )
    assert sum(terms.values()) == ledger.wall_ns
    assert terms["unattributed"] / rank_steps < 1_000
    assert terms["exposed_transfer[dp]"] / rank_steps == pytest.approx(0.8 * MS * 1e9 / 2, abs=10)


def test_the_bubble_is_that_of_1f1b() -> None:
    """Equal stages without imbalance idle (P - 1)(F + B) = 9 ms of a step."""
    bubble = analysis().bubble
    assert bubble is not None
    assert (bubble.schedule, bubble.num_stages, bubble.num_microbatches) == ("1f1b", 4, 8)
    assert bubble.theory_ratio == pytest.approx(3 / 11)
    for stage in bubble.stages:
        assert stage.schedule_ns / 6 == pytest.approx(9e6, abs=100)
        assert abs(stage.imbalance_ns) / 6 < 100


def test_messages_are_received_once_and_split_into_wait_and_transfer() -> None:
    rows = {(row.axis, row.operation): row for row in analysis().comm}
    steps, replicas, boundaries, microbatches = 3, 2, 3, 8
    messages = steps * replicas * boundaries * microbatches * 2
    assert (rows["pp", "recv"].count, rows["pp", "send"].count) == (messages, messages)
    assert rows["pp", "recv"].transfer_ns == pytest.approx(messages * 0.05 * MS * 1e9, rel=1e-3)
    assert rows["dp", "reduce_scatter"].transfer_ns == pytest.approx(steps * 8 * 0.8 * MS * 1e9, rel=1e-4)


def test_what_a_table_lacks_is_unknown_and_not_zero() -> None:
    document = to_document(analysis())
    assert document["comm"] is not None
    assert {row["bytes"] for row in document["comm"]} == {None}
    assert document["utilization"]["mfu"] is document["utilization"]["hfu"] is None
    assert str(document["utilization"]["reason"]).startswith("a table of operations contains no FLOPs")
    assert document["goodput"] is document["memory"] is document["kernels"] is None


def test_the_document_contains_the_slowdown() -> None:
    found = to_document(analysis())["slowdown"]
    assert found is not None
    assert (found["ratio"], found["cause"], found["steps"]) == (pytest.approx(1.0), "none", 3)


def test_the_verdict_names_the_cause_its_ranks_and_the_gain(tmp_path: Path) -> None:
    job = Job(
        replicas=2,
        stages=4,
        microbatches=8,
        seconds=lambda of: (2 * MS if of.kind == "B" else MS) * (1.6 if of.part == 3 else 1),
    )
    import_table(write_csv(tmp_path / "table.csv", table(job)), tmp_path / "run")
    result = analyze(open_run(tmp_path / "run"))
    (finding,) = [finding for finding in result.verdict if finding.kind == "slowdown"]
    assert (finding.ranks, finding.confidence) == ((6, 7), "high")
    assert "cause last_stage" in finding.evidence
    assert "it computes for 1.60 times the time of the other stages" in finding.evidence
    assert finding.estimated_gain_ratio == pytest.approx(1 - 1 / jobs.slowdown(job), abs=1e-4)


def test_unknown_operations_are_spans_and_change_no_result(tmp_path: Path) -> None:
    rows = table(JOB)
    strange = [{**row, "optype": "moe-dispatch"} for row in rows if row["optype"] == "forward-compute"]
    result = import_table(write_csv(tmp_path / "table.csv", [*rows, *strange]), tmp_path / "run")
    assert result.unknown == {"moe-dispatch": len(strange)}
    timeline = open_run(tmp_path / "run")
    assert sum(int((rank.main["kind"] == Kind.SPAN).sum()) for rank in timeline.ranks) == len(strange)
    document, plain = to_document(analyze(timeline)), to_document(analysis())
    assert document["slowdown"] is not None
    assert plain["slowdown"] is not None
    assert document["slowdown"] == {**plain["slowdown"], "unknown_operations": len(strange)}
    assert document["ledger"] == plain["ledger"]


def test_a_worker_that_stands_for_several_keeps_its_rank(tmp_path: Path) -> None:
    """With tensor parallelism the table has one rank of each group."""
    rows = [{**row, "rank": 4 * int(str(row["rank"]))} for row in table(JOB)]
    import_table(write_csv(tmp_path / "table.csv", rows), tmp_path / "run")
    timeline = open_run(tmp_path / "run")
    assert [rank.rank for rank in timeline.ranks] == list(range(0, 32, 4))
    assert analyze(timeline).bubble is not None


def test_an_existing_run_is_not_changed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists already"):
        import_table(write_csv(tmp_path / "table.csv", table(JOB)), imported())


def test_a_damaged_table_of_a_run_is_an_error(tmp_path: Path) -> None:
    import_table(write_csv(tmp_path / "table.csv", table(JOB)), tmp_path / "run")
    (tmp_path / "run" / "attempt-000" / "operations.npz").write_bytes(b"PK damaged")
    with pytest.raises(RunDirectoryError, match=r"operations\.npz is damaged .*; import the table again"):
        open_run(tmp_path / "run")


def test_a_table_in_microseconds_is_refused(tmp_path: Path) -> None:
    rows = [row | {"duration": 1e9 * float(str(row["duration"]))} for row in table(JOB)]
    with pytest.raises(DataError, match="takes 1,500,000 s in the median; start and duration are in seconds"):
        import_table(write_csv(tmp_path / "table.csv", rows), tmp_path / "run")


@pytest.mark.parametrize("kinds", [("gather",), ("gather", "reduce"), ("unheard_of",)])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_table_without_computations_has_a_report(kinds: tuple[str, ...], num_steps: int, tmp_path: Path) -> None:
    """As of a log that has the length of each step, and nothing else."""
    names = {"gather": "params-all-gather", "reduce": "grads-reduce-scatter", "unheard_of": "step"}
    rows = ["dp_rank,stage,rank,step,optype,start,duration,microbatch"]
    for step in range(num_steps):
        for rank in range(2):
            for at, kind in enumerate(kinds):
                rows.append(f"{rank},0,{rank},{step},{names[kind]},{10 * step + at},{0.5 + rank / 10},0")
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    import_table(tmp_path / "table.csv", tmp_path / "run")
    document = to_document(analyze(open_run(tmp_path / "run")))
    assert document["run"]["steps"] == num_steps
    assert document["verdict"]


def late_and_slow_for_a_while(of: Computation) -> float:
    """Rank 0 takes 1.3 times as long in all steps, rank 3 three times as long in steps 30 to 36, except in 33."""
    usual = 2 * MS if of.kind == "B" else MS
    slow = of.dp_rank == 3 and 30 <= of.step <= 36 and of.step != 33
    return usual * (3.0 if slow else 1.3 if of.dp_rank == 0 else 1.0)


def test_the_verdict_names_a_rank_that_slows_down_for_some_steps(tmp_path: Path) -> None:
    """Steps take 1.3 x 24 ms, the slow ones 3 x 24 ms, besides 2.34 ms of transfers and the optimizer."""
    job = Job(replicas=6, stages=1, microbatches=8, steps=range(60), seconds=late_and_slow_for_a_while)
    import_table(write_csv(tmp_path / "table.csv", table(job)), tmp_path / "run")
    found = analyze(open_run(tmp_path / "run"))
    assert [(each.kind, each.ranks) for each in found.verdict if each.kind == FindingKind.STRAGGLER] == [
        (FindingKind.STRAGGLER, (0,))
    ]
    (spell,) = (each for each in found.verdict if each.kind == FindingKind.SLOW_STEP)
    assert (spell.ranks, spell.steps) == ((3,), tuple(range(30, 37)))
    lost = 6 * 1.7 * 24 / (60 * (1.3 * 24 + 2.34) + 6 * 1.7 * 24)
    assert "in steps 30 to 36: its computation takes 3.00 times as long as in its other steps" in spell.evidence
    assert f"in 7 steps, which costs {100 * lost:.1f} % of the time of all steps" in spell.evidence


def slower_from_step_20_on(of: Computation) -> float:
    return (2 * MS if of.kind == "B" else MS) * (1.4 if of.dp_rank == 4 and of.step >= 20 else 1.0)


def test_the_cause_of_a_slowdown_has_the_step_from_which_its_worker_is_slow(tmp_path: Path) -> None:
    job = Job(replicas=6, stages=1, microbatches=4, steps=range(60), seconds=slower_from_step_20_on)
    import_table(write_csv(tmp_path / "table.csv", table(job)), tmp_path / "run")
    found = {each.kind: each for each in analyze(open_run(tmp_path / "run")).verdict}
    assert "due to rank 4, from step 20 on" in found[FindingKind.SLOWDOWN].evidence


@pytest.mark.parametrize("begin", [0, 7, 80, 160])
@pytest.mark.parametrize("replicas", [2, 8])
def test_a_rank_that_is_slower_for_40_of_200_steps_is_named_with_them(
    begin: int, replicas: int, tmp_path: Path
) -> None:
    """By 1.4 times, with noise of 3 %: no step is slow by itself."""
    chance = Random(begin)

    def seconds(of: Computation) -> float:
        slow = of.dp_rank == 1 and begin <= of.step < begin + 40
        return (2 * MS if of.kind == "B" else MS) * (1.4 if slow else 1.0) * chance.gauss(1, 0.03)

    job = Job(replicas=replicas, stages=1, microbatches=2, steps=range(200), seconds=seconds)
    import_table(write_csv(tmp_path / "table.csv", table(job)), tmp_path / "run")
    (found,) = (each for each in analyze(open_run(tmp_path / "run")).verdict if each.kind == FindingKind.SLOW_STEP)
    assert found.ranks == (1,)
    assert abs(found.steps[0] - begin) <= 2
    assert abs(found.steps[-1] - begin - 39) <= 2


@pytest.mark.skipif(not REAL_JOB.is_file(), reason="the table of a real job is not here")
def test_a_real_job_whose_worker_6_slows_down_in_the_middle(tmp_path: Path) -> None:
    import_table(REAL_JOB, tmp_path / "run")
    found = analyze(open_run(tmp_path / "run"))
    spells = [(each.ranks, each.steps) for each in found.verdict if each.kind == FindingKind.SLOW_STEP]
    assert spells == [((6,), tuple(range(181, 195)))]
    assert {fault.ranks for fault in found.faults} == {(6,)}


def test_time_that_no_operation_covers_has_the_advice_of_a_table(tmp_path: Path) -> None:
    job = Job(replicas=2, stages=1, microbatches=2, steps=range(4))
    rows = [row for row in table(job) if row["optype"] == "optimizer" or "compute" in str(row["optype"])]
    import_table(write_csv(tmp_path / "table.csv", rows), tmp_path / "run")
    (finding,) = (each for each in analyze(open_run(tmp_path / "run")).verdict if each.kind == "unattributed")
    assert "between the operations of the table" in finding.evidence
    assert "traincope.span" not in finding.advice


def test_operations_of_unknown_types_are_no_circle_and_no_gap(tmp_path: Path) -> None:
    job = Job(replicas=2, stages=1, microbatches=2, steps=range(4))
    rows = [row | {"optype": "attention"} for row in table(job) if "compute" in str(row["optype"])]
    import_table(write_csv(tmp_path / "table.csv", rows), tmp_path / "run")
    evidence = {each.kind: each.evidence for each in analyze(open_run(tmp_path / "run")).verdict}
    assert "100.0 % of step time is between the operations of known types of the table" in evidence["unattributed"]
    assert "no operation of the table has a known type, so nothing can be replayed" in evidence["slowdown"]
