"""Job summaries of hand-made ranks, whose culprits are known."""

import json
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.scale.replay import Plan
from traincope.analysis.verdict.findings import FindingKind
from traincope.errors import DataError, EmptyRunError
from traincope.events import FORMAT_VERSION, NO_PEER, OPEN, Kind, Phase
from traincope.report.document.job_summary import summary_document
from traincope.store import read_run, reading
from traincope.store.job.looks import Look, append_look
from traincope.store.layout import (
    GROUPS_FILE,
    LOOKS_FILE,
    NAMES_FILE,
    RANK_FILE,
    ROWS_FILE,
    RUN_FILE,
    rank_directory,
    segment_path,
)
from traincope.store.lines import dense_groups, read_groups, read_numbered
from traincope.store.segments.segments import RECORD_DTYPE, read_segment, segment_content
from traincope.store.side_tables.rows import Row, append_rows
from traincope.summaries import Summaries, job_summary, read_summaries
from traincope.summaries.last_records import LAST_RECORDS
from traincope.summaries.rank import summarise_rank
from traincope.summaries.slow import slow_ranks
from traincope.summaries.stopped import PATIENCE_NS, stopped

RANKS, STEPS = 4, 90
WORLD = tuple(range(RANKS))
NAMES = ("", "all_reduce", "forward")
STEP_NS = 1_000_000_000


def write_rank(
    run: Path,
    rank: int,
    *,
    calls: int,
    waits: bool,
    work_ns: int = 500_000_000,
    groups: tuple[tuple[int, ...], ...] = (),
) -> Path:
    """A rank that issued this number of collectives on its world, and waits in the last one or computes."""
    directory = rank_directory(run, attempt=0, rank=rank)
    directory.mkdir(parents=True)
    card = {"version": FORMAT_VERSION, "rank": rank, "coords": {"dp": rank}, "host": f"node{rank}", "boot_id": "b"}
    card |= {"pid": 100 + rank, "started_wall_ns": 0, "ended_wall_ns": None, "ending": None, "probes": {}}
    (directory / RANK_FILE).write_text(json.dumps(card))
    (directory / NAMES_FILE).write_text("".join(f"{json.dumps([at, name])}\n" for at, name in enumerate(NAMES)))
    lines = [
        [at, {"key": str(ranks), "axis": "dp", "rule": "mesh", "ranks": ranks}]
        for at, ranks in enumerate(groups or (WORLD,))
    ]
    (directory / GROUPS_FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    records = np.zeros(3 + 2 * calls, dtype=RECORD_DTYPE)
    records["peer"] = NO_PEER
    records["kind"][0], records["kind"][1], records["kind"][2] = Kind.CLOCK, Kind.STEP, Kind.PHASE
    records["end_ns"][1:3], records["phase"][2], records["name"][2] = OPEN, Phase.FORWARD, 2
    records["step"] = STEPS
    for call in range(calls):
        at = slice(3 + 2 * call, 5 + 2 * call)
        records["kind"][at], records["name"][at] = (Kind.COLLECTIVE, Kind.STALL), 1
        records["sequence"][at], records["start_ns"][at] = (
            call // len(groups or (WORLD,)),
            (10 * call + 10, 10 * call + 11),
        )
        records["group"][at] = call % len(groups or (WORLD,))
        records["end_ns"][at] = OPEN if waits and call == calls - 1 else 10 * call + 15
    segment_path(directory, thread="main", index=0).write_bytes(segment_content(records))
    append_look(directory, Look(at_ns=60_000_000_000, state="S"))
    append_rows(
        directory,
        [
            Row(
                rank=rank,
                step=step,
                start_ns=step * STEP_NS,
                wall_ns=STEP_NS,
                own_ns=0,
                anomalous=False,
                terms={"forward": work_ns, "exposed_transfer[dp]": STEP_NS - work_ns},
            )
            for step in range(STEPS)
        ],
    )
    return directory


def write_job(root: Path) -> Path:
    """Rank 2 computes in step 90, after three collectives; the others wait in the fourth. Rank 1 is slow."""
    root.mkdir()
    card = {"version": FORMAT_VERSION, "id": "job", "world_size": RANKS, "mesh": {"dp": RANKS}, "settings": {}}
    (root / RUN_FILE).write_text(json.dumps(card | {"started_wall_ns": 0, "versions": {}, "command": "train.py"}))
    for rank in WORLD:
        write_rank(
            root, rank, calls=3 + (rank != 2), waits=rank != 2, work_ns=800_000_000 if rank == 1 else 500_000_000
        )
    return root


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_job(tmp_path / "run")


def test_the_rank_that_waits_for_nobody_and_is_waited_for_is_the_culprit(run: Path) -> None:
    found = stopped(read_summaries(run))
    assert found is not None
    assert (found.culprits, found.directly, found.indirectly) == ((2,), (0, 1, 3), ())
    assert (found.axis, found.operation, found.step, found.doing) == ("dp", "all_reduce", STEPS, "in forward")


def test_waits_are_followed_through_groups(tmp_path: Path, run: Path) -> None:
    """Rank 0 waits for 1 in their group, rank 1 for 2 in theirs, and rank 2 computes."""
    chain = tmp_path / "chain"
    chain.mkdir()
    (chain / RUN_FILE).write_text((run / RUN_FILE).read_text())
    write_rank(chain, 0, calls=1, waits=True, groups=((0, 1),))
    write_rank(chain, 1, calls=1, waits=True, groups=((1, 2), (0, 1)))
    write_rank(chain, 2, calls=0, waits=False, groups=((1, 2),))
    write_rank(chain, 3, calls=0, waits=False, groups=((3,),))
    found = stopped(read_summaries(chain))
    assert found is not None
    assert (found.culprits, found.directly, found.indirectly) == ((2,), (1,), (0,))


def test_a_member_without_a_directory_is_waited_for(run: Path) -> None:
    for path in rank_directory(run, attempt=0, rank=2).iterdir():
        path.unlink()
    job = job_summary(read_summaries(run))
    assert job.summaries.missing == (2,)
    assert [(finding.kind, finding.ranks) for finding in job.verdict[:2]] == [
        (FindingKind.HANG, (2,)),
        (FindingKind.MISSING_RANK, (2,)),
    ]


@pytest.mark.parametrize("name", [RANK_FILE, NAMES_FILE, GROUPS_FILE, ROWS_FILE])
def test_a_rank_that_the_system_refuses_is_left_out_and_not_called_lost(run: Path, name: str) -> None:
    """A directory in the place of a file: not even root can read it."""
    path = rank_directory(run, attempt=0, rank=1) / name
    path.unlink(missing_ok=True)
    path.mkdir()
    summaries = read_summaries(run)
    assert summaries.problems == (f"cannot read {path}: Is a directory; check its mode and disk; rank 1 is left out",)
    assert (summaries.missing, summaries.refused) == ((1,), (1,))
    assert FindingKind.MISSING_RANK not in [finding.kind for finding in job_summary(summaries).verdict]


def test_a_rank_whose_records_do_not_show_the_call_is_not_accused(run: Path) -> None:
    """A summary holds only the last records: a call on a group may be before them."""
    directory = rank_directory(run, attempt=0, rank=2)
    records = np.zeros(LAST_RECORDS + 10, dtype=RECORD_DTYPE)
    records["kind"], records["phase"], records["start_ns"] = Kind.PHASE, Phase.FORWARD, np.arange(len(records))
    records["end_ns"] = records["start_ns"] + 1
    segment_path(directory, thread="main", index=0).write_bytes(segment_content(records))
    found = stopped(read_summaries(run))
    assert found is not None
    assert found.culprits == ()


def test_a_running_job_at_which_no_agent_has_looked_does_not_hang(run: Path) -> None:
    for rank in WORLD:
        (rank_directory(run, attempt=0, rank=rank) / "looks.jsonl").unlink()
    job = job_summary(read_summaries(run))
    assert job.stopped is None
    assert FindingKind.NO_END_RECORDED in {finding.kind for finding in job.verdict}


def look(run: Path, at_ns: int) -> None:
    for rank in WORLD:
        (rank_directory(run, attempt=0, rank=rank) / LOOKS_FILE).unlink()
        append_look(rank_directory(run, attempt=0, rank=rank), Look(at_ns=at_ns, state="S"))


def end(run: Path, rank: int, ending: str) -> None:
    path = rank_directory(run, attempt=0, rank=rank) / RANK_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ending": ending, "ended_wall_ns": 100}))


def test_a_look_of_an_earlier_standstill_says_nothing_about_now(run: Path) -> None:
    """The last records of all are of 41 ns at most; the looks are from before, or from a moment after."""
    for at_ns in (5, 1_000):
        look(run, at_ns)
        assert stopped(read_summaries(run)) is None
    look(run, PATIENCE_NS + 41)
    assert stopped(read_summaries(run)) is not None


def test_a_rank_that_failed_is_named_first_and_is_no_hang(run: Path) -> None:
    for rank, ending in enumerate(("SIGTERM", "SIGTERM", "ValueError: bad", "SIGTERM")):
        end(run, rank, ending)
    (finding, *others) = job_summary(read_summaries(run)).verdict
    assert (finding.kind, finding.ranks) == (FindingKind.FAILED_RANK, (2, 0, 1, 3))
    assert finding.evidence == (
        "ranks 0-3 ended with ValueError: bad, SIGTERM; the last record of rank 2 is the oldest"
    )
    assert FindingKind.HANG not in {other.kind for other in others}


def test_a_step_of_very_many_records_keeps_its_times_and_its_phase(run: Path) -> None:
    """Its begin and the clock are before the tail. The rank's clock began 10^15 ns before the process."""
    directory = rank_directory(run, attempt=0, rank=2)
    path = segment_path(directory, thread="main", index=0)
    records = read_segment(path).records.copy()
    records["start_ns"] += 10**15
    records["end_ns"][records["end_ns"] != OPEN] += 10**15
    records["value"][0] = 10**18
    many = np.repeat(records[-1:], LAST_RECORDS)
    path.write_bytes(segment_content(np.concatenate([records, many])))
    look(run, 10**15 + 60)
    rank = summarise_rank(directory)
    assert (rank.step, rank.doing, rank.last_ns, rank.looked_ns) == (STEPS, "in forward", 10**18 + 35, 10**18 + 60)


def test_a_step_that_began_in_the_segment_before_is_under_way(run: Path) -> None:
    directory = rank_directory(run, attempt=0, rank=2)
    path = segment_path(directory, thread="main", index=0)
    records = read_segment(path).records
    later = np.concatenate([records[:1], records[-2:]])
    segment_path(directory, thread="main", index=1).write_bytes(segment_content(later))
    rank = summarise_rank(directory)
    assert (rank.step, rank.doing) == (STEPS, "in forward")


def test_times_without_a_clock_are_unknown(run: Path) -> None:
    path = segment_path(rank_directory(run, attempt=0, rank=2), thread="main", index=0)
    path.write_bytes(segment_content(read_segment(path).records[1:]))
    (rank,) = [rank for rank in read_summaries(run).ranks if rank.rank == 2]
    assert (rank.last_ns, rank.looked_ns) == (None, None)
    assert "rank 2 entered no collective (in forward)" in job_summary(read_summaries(run)).verdict[0].evidence


def test_the_slow_rank_is_named_with_its_term_and_lateness(run: Path) -> None:
    (slow,) = slow_ranks(read_summaries(run).ranks).ranks
    assert (slow.rank, slow.terms) == (1, ("forward",))
    assert slow.late_ns == pytest.approx(300_000_000)
    assert slow.gain_ratio == pytest.approx(0.3)


def test_equal_ranks_name_none(run: Path) -> None:
    alike = [rank for rank in read_summaries(run).ranks if rank.rank != 1]
    assert slow_ranks(alike).ranks == ()


def test_the_mean_step_is_that_of_all_rows_but_the_warm_up(run: Path) -> None:
    document = summary_document(job_summary(read_summaries(run)))
    assert (document["rows"], document["first_step"], document["last_step"]) == (4 * 89, 0, 89)
    assert document["mean_step_ns"] == STEP_NS
    assert document["terms_ns"] == {"exposed_transfer[dp]": 425_000_000, "forward": 575_000_000}


def test_steps_without_detail_enter_no_term_and_no_comparison(run: Path) -> None:
    """Rows of light steps have no terms. With those of every second step, terms and straggler are as with all."""
    for rank in WORLD:
        path = rank_directory(run, attempt=0, rank=rank) / ROWS_FILE
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines = [[*line[:5], line[5] if line[0] % 2 == 0 else {}] for line in lines]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    job = job_summary(read_summaries(run))
    assert (job.num_rows, job.mean_step_ns) == (4 * 89, STEP_NS)
    assert job.terms_ns == {"exposed_transfer[dp]": 425_000_000, "forward": 575_000_000}
    (slow,) = job.slow.ranks
    assert (slow.rank, slow.terms, job.slow.steps) == (1, ("forward",), 44)
    assert slow.late_ns == pytest.approx(300_000_000)


def test_rows_of_light_steps_alone_have_a_mean_step_and_nothing_to_compare(run: Path) -> None:
    for rank in WORLD:
        path = rank_directory(run, attempt=0, rank=rank) / ROWS_FILE
        path.write_text(
            "".join(f"{json.dumps([*json.loads(line)[:5], {}])}\n" for line in path.read_text().splitlines())
        )
    job = job_summary(read_summaries(run))
    assert (job.mean_step_ns, job.terms_ns, job.slow.ranks, job.slow.steps) == (STEP_NS, {}, (), 0)


def test_any_executor_gives_the_same_summaries(run: Path) -> None:
    def document(summaries: Summaries) -> str:
        return json.dumps(summary_document(job_summary(summaries)))

    with ThreadPoolExecutor(2) as executor:
        assert document(read_summaries(run, executor=executor)) == document(read_summaries(run))


class Elsewhere(ThreadPoolExecutor):
    """Workers of a host that lacks the run."""

    def map(self, function: Any, tasks: Any, **_: Any) -> Any:  # type: ignore[override]
        return super().map(function, [[Path("/elsewhere") / path.name for path in task] for task in tasks])


def test_workers_that_do_not_see_the_run_are_an_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RANKS_PER_TASK", 1)
    with Elsewhere(1) as executor:
        with pytest.raises(DataError, match=f"the workers do not see {run}"):
            read_summaries(run, executor=executor)
        with pytest.raises(DataError, match=f"the workers do not see {run}"):
            read_run(run, executor=executor)


def test_workers_with_another_working_directory_read_a_relative_path(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask's workers have their own."""
    monkeypatch.setattr(reading, "RANKS_PER_TASK", 1)
    monkeypatch.chdir(run.parent)
    context = get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context, initializer=os.chdir, initargs=("/",)) as executor:
        assert [rank.rank for rank in read_summaries(run.name, executor=executor).ranks] == [*WORLD]
        assert [rank.rank for rank in read_run(run.name, executor=executor).ranks] == [*WORLD]


def test_damaged_lines_and_merged_rows_are_left_out(run: Path) -> None:
    directory = rank_directory(run, attempt=0, rank=0)
    with (directory / ROWS_FILE).open("a") as file:
        file.write(
            '[90,0,1,0,0,{"forward":"x"}]\n[91,0,1,0,0,{}]\n[99,0,5,0,0,{},2,[[5,2]],{}]\nnoise\n[92,0,1,0,0,{"a":1}'
        )
    assert summarise_rank(directory).rows.step.tolist() == [*range(90), 91]


def test_the_tail_of_a_large_reserved_segment_is_what_a_small_one_holds(run: Path) -> None:
    """The recorder reserves space after its last record."""
    directory = rank_directory(run, attempt=0, rank=0)
    path = segment_path(directory, thread="main", index=0)
    before = summarise_rank(directory)
    path.write_bytes(path.read_bytes() + bytes(56 * 10_000))
    after = summarise_rank(directory)
    assert (after.waits, after.joined, after.last_ns) == (before.waits, before.joined, before.last_ns)


def test_groups_with_damaged_lines_are_those_of_the_lines_one_by_one(tmp_path: Path) -> None:
    """A process decodes a line once, however many ranks have it: lost and damaged groups keep their positions."""
    lines = [[0, {"key": "world", "axis": "dp", "rule": "mesh", "ranks": [0, 1]}], "noise", [2, {"ranks": "all"}]]
    lines += [[3, {"key": "k", "axis": "tp", "rule": "mesh", "ranks": [True, -1]}], [0, {"key": "new", "ranks": [5]}]]
    path = tmp_path / GROUPS_FILE
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '[4, {"key": "cut')
    expected = dense_groups(read_numbered(path, version=FORMAT_VERSION))
    assert read_groups(path, version=FORMAT_VERSION) == expected
    assert [(group.number, group.key, group.ranks) for group in expected] == [
        (0, "new", (5,)),
        (1, "<group 1>", ()),
        (2, "<group 2>", ()),
        (3, "k", ()),
    ]
    assert read_groups(tmp_path / "none", version=FORMAT_VERSION) == ()


def test_a_run_without_ranks_is_an_error(tmp_path: Path, run: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / RUN_FILE).write_text((run / RUN_FILE).read_text())
    with pytest.raises(EmptyRunError, match="holds no rank"):
        read_summaries(empty)


def test_planted_culprits_are_different_ranks_at_every_size() -> None:
    for ranks in (64, 256, 1024, 2048, 16_384):
        plan = Plan(ranks=ranks, steps=2, detailed=2)
        assert plan.rank(*plan.straggler) != plan.rank(*plan.stopped)
        assert max(plan.rank(*plan.straggler), plan.rank(*plan.stopped)) < ranks
