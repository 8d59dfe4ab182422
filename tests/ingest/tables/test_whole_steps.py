"""Steps that are whole, and the reasons why others are left out."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ingest.tables.jobs import Job, Row, table, write_csv
from traincope.errors import DataError
from traincope.ingest.tables.reading import read_table
from traincope.ingest.tables.whole_steps import WholeSteps, whole_steps

JOB = Job(replicas=2, stages=2, microbatches=3, steps=(5, 8))
CHUNKED = Job(replicas=1, stages=2, microbatches=2, chunks=2, steps=(5,))


def whole(rows: list[Row], folder: Path) -> WholeSteps:
    return whole_steps(read_table(write_csv(folder / "table.csv", rows)))


def without(**values: object) -> Callable[[Row], bool]:
    """Return a filter that drops the rows with these values."""
    return lambda row: any(row[name] != value for name, value in values.items())


def test_a_whole_job_keeps_all_rows(tmp_path: Path) -> None:
    rows = table(JOB)
    found = whole(rows, tmp_path)
    assert (found.left_out, found.idle_messages) == ({}, 0)
    assert len(found.operations) == len(rows)
    assert (found.operations.num_replicas, found.operations.num_stages) == (2, 2)


def test_steps_that_all_begin_at_0_are_laid_one_after_the_other(tmp_path: Path) -> None:
    found = whole(table(JOB), tmp_path)
    step = found.operations.step
    assert found.laid_out
    assert found.operations.start_ns[step == 8].min() == found.operations.end_ns[step == 5].max()


def test_times_of_one_clock_stay_as_they_are(tmp_path: Path) -> None:
    found = whole(table(JOB, absolute=True), tmp_path)
    assert not found.laid_out
    assert found.operations.start_ns.min() == 1_700_000_000 * 10**9


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"rank": 3}, "dp_rank 1, stage 1 has no row"),
        ({"rank": 2, "optype": "forward-recv"}, "rank 2 has 0 rows of forward-recv, and its computations need 3"),
        ({"rank": 0, "optype": "forward-send"}, "rank 0 has 0 rows of forward-send, and its computations need 3"),
        (
            {"rank": 1, "optype": "backward-compute", "mb_id": 2},
            "rank 1 has 1 forwards and 0 backwards of microbatch 2 in chunk 0, not one of each",
        ),
        (
            {"rank": 1, "optype": "params-all-gather"},
            "not all ranks of stage 0 have the same number of rows of params-",
        ),
        ({"rank": 1, "optype": "optimizer-clip-main-grad"}, "not all ranks of the job have the same number of rows of"),
    ],
)
def test_a_step_that_lacks_rows_is_left_out(tmp_path: Path, values: dict[str, object], why: str) -> None:
    """The other step stays."""
    found = whole(list(filter(without(step=8, **values), table(JOB))), tmp_path)
    assert list(found.left_out) == [8]
    assert found.left_out[8].startswith(why)
    assert set(found.operations.step.tolist()) == {5}
    with pytest.raises(DataError, match=f"contains no whole step, so there is nothing to import; step 5: {why[:20]}"):
        whole(list(filter(without(**values), table(JOB))), tmp_path)


def test_one_lost_message_leaves_its_step_out(tmp_path: Path) -> None:
    rows = table(JOB)
    lost = next(at for at, row in enumerate(rows) if (row["step"], row["optype"]) == (8, "backward-recv"))
    found = whole(rows[:lost] + rows[lost + 1 :], tmp_path)
    assert found.left_out == {8: "rank 0 has 2 rows of backward-recv, and its computations need 3"}


def test_a_step_with_overlapping_computations_is_left_out(tmp_path: Path) -> None:
    rows = table(JOB)
    long = next(at for at, row in enumerate(rows) if (row["step"], row["optype"]) == (5, "forward-compute"))
    rows[long] = {**rows[long], "duration": 0.0021}
    found = whole(rows, tmp_path)
    assert found.left_out == {5: "forward-compute and forward-compute of rank 0 overlap"}


def test_a_computation_twice_leaves_its_step_out(tmp_path: Path) -> None:
    rows = table(JOB)
    first = next(row for row in rows if (row["step"], row["optype"]) == (5, "forward-compute"))
    again = {**first, "start_ts": 100.0}
    found = whole([*rows, again], tmp_path)
    assert found.left_out == {5: "rank 0 has 2 forwards and 1 backwards of microbatch 0 in chunk 0, not one of each"}


def test_messages_that_never_ran_are_dropped_at_the_ends_of_the_model(tmp_path: Path) -> None:
    """A profiler may note a receive for each forward of the first stage, also of chunk 0, which receives nothing."""
    rows = table(CHUNKED)
    first = [row for row in rows if (row["optype"], row["stage"], row["mc"]) == ("forward-compute", 0, 0)]
    idle = [{**row, "optype": "forward-recv", "mc": -1, "mb_id": -1, "duration": 1e-5} for row in first]
    last = [row for row in rows if (row["optype"], row["stage"], row["mc"]) == ("forward-compute", 1, 1)]
    ends = [float(str(row["start_ts"])) + float(str(row["duration"])) for row in last]
    unsent = [
        {**row, "optype": "forward-send", "start_ts": end, "duration": 1e-5, "mc": -1, "mb_id": -1}
        for row, end in zip(last, ends, strict=True)
    ]
    found, plain = whole([*rows, *idle, *unsent], tmp_path), whole(rows, tmp_path)
    assert (found.left_out, found.idle_messages) == ({}, 4)
    assert found.operations.start_ns.tolist() == plain.operations.start_ns.tolist()


def test_two_ranks_at_one_place_are_refused(tmp_path: Path) -> None:
    rows = [*table(JOB), *({**row, "rank": 9} for row in table(JOB) if row["rank"] == 0)]
    with pytest.raises(
        DataError, match=r"rank 0 at dp_rank 0, stage 0 and rank 9 at dp_rank 0, stage 0; each \(dp_rank"
    ):
        whole(rows, tmp_path)


def test_a_rank_at_two_places_is_refused(tmp_path: Path) -> None:
    rows = [{**row, "rank": 0} if row["rank"] == 1 else row for row in table(JOB)]
    with pytest.raises(
        DataError, match="rank 0 at dp_rank 0, stage 0 and rank 0 at dp_rank 1, stage 0; each rank must"
    ):
        whole(rows, tmp_path)


def test_garbage_may_be_collected_during_a_computation(tmp_path: Path) -> None:
    rows = table(JOB)
    computation = next(row for row in rows if row["optype"] == "forward-compute")
    found = whole([*rows, {**computation, "optype": "gc"}], tmp_path)
    assert found.left_out == {}
    assert len(found.operations) == len(rows) + 1
