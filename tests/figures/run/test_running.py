"""Figures of a running job's rows."""

import pytest

from traincope.figures.run.running import step_times, utilization_steps
from traincope.figures.steps.ledger_steps import ledger_rows
from traincope.store.side_tables.rows import Row


def row(rank: int, step: int, **terms_ms: int) -> Row:
    terms = {name.replace("_fsdp", "[fsdp]"): ms * 1_000_000 for name, ms in terms_ms.items()}
    wall_ns = sum(terms.values())
    return Row(rank=rank, step=step, start_ns=0, wall_ns=wall_ns, own_ns=0, anomalous=False, terms=terms)


ROWS = (
    row(0, 7, forward=10, exposed_wait_fsdp=4),
    row(1, 7, forward=14),
    row(2, 7, forward=30),
    row(0, 8, forward=12),
)


def test_step_time_shows_the_slowest_and_the_median_rank() -> None:
    longest, median = step_times(ROWS).data
    assert (longest.name, longest.x, longest.y) == ("slowest rank", (7, 8), (30.0, 12.0))
    assert (median.name, median.x, median.y) == ("median rank", (7, 8), (14.0, 12.0))


def test_terms_are_means_over_the_ranks_with_that_step() -> None:
    drawn = {trace.name: (list(trace.x), list(trace.y)) for trace in ledger_rows(ROWS).data}
    assert drawn == {
        "forward": ([7, 8], pytest.approx([54 / 3, 12])),
        "exposed_wait[fsdp]": ([7, 8], pytest.approx([4 / 3, 0])),
    }


def test_utilization_is_in_percent_by_step() -> None:
    (line,) = utilization_steps({9: 0.5, 8: 0.25}).data
    assert (line.x, line.y) == ((8, 9), (25.0, 50.0))
