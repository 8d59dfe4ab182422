"""Trainings whose ranks have the same state, and those whose ranks have not."""

from pathlib import Path

import pytest

from tests.distributed.layouts import small_config
from traincope.engine.checkpoint.identity import difference, layout
from traincope.engine.config import ParallelConfig

PIPELINE = {"pp": 2, "microbatches": 4}


@pytest.mark.parametrize(
    ("saved", "wanted", "differs"),
    [
        ({"tp": 2}, {"tp": 2}, None),
        ({"tp": 2}, {"tp": 2, "sequence_parallel": False}, "parallel.sequence_parallel is True there and False here"),
        (PIPELINE, {**PIPELINE, "schedule": "interleaved"}, "parallel.schedule is '1f1b' there and 'interleaved' here"),
        (PIPELINE, {**PIPELINE, "pp": 4}, "parallel.pp is 2 there and 4 here"),
        (PIPELINE, {**PIPELINE, "microbatches": 8}, None),
    ],
)
def test_the_state_of_ranks_fits_only_the_same_layout(
    tmp_path: Path, saved: dict[str, object], wanted: dict[str, object], differs: str | None
) -> None:
    first, second = (
        layout(small_config(str(tmp_path), ParallelConfig(**values)))  # type: ignore[arg-type]
        for values in (saved, wanted)
    )
    assert difference(first, second) == differs
