"""Parts of a job that train the same model and exchange nothing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.timeline.build import Row, collective, group, phase, rank, step, timeline
from traincope.analysis import Finding, analyze
from traincope.events import Flag, Kind, MemoryMeasure, Phase

MS = 1_000_000
KIB = 1 << 10
MESH = [{"replicate": number // 2, "shard": number % 2} for number in range(4)]
SHARDS, JOINED = group("shard", 0, 1), group("replicate", 0, 1, 2, 3, key="all")


def found(
    *,
    members: Sequence[tuple[int, ...]] = ((0, 1), (0, 1), (2, 3), (2, 3)),
    joined_in: Sequence[int] = (),
    gradients: Sequence[int] = (KIB, KIB, KIB, KIB),
    steps: int = 14,
    mesh: Sequence[dict[str, int]] = MESH,
    without_detail: int = 0,
    issued: int = 0,
) -> Finding | None:
    """Each of four ranks reduces in every step with the members of its group, and in some steps with all.

    Steps `without_detail` follow. torch counts `issued` collectives of all.
    """
    ranks = []
    for number in range(4):
        groups = [group("shard", *members[number], key=f"shard of {members[number]}"), JOINED]
        rows: list[Row] = []
        for at in range(steps):
            begin = 100 * MS * at
            used = [0, 1] if at in joined_in else [0]
            rows += [
                step(at, begin, begin + 100 * MS, flags=Flag.DETAILED),
                phase(Phase.BACKWARD, begin, begin + 40 * MS, at=at),
                *(
                    collective(begin + 40 * MS, begin + 50 * MS, name="all_reduce", sequence=at, at=at, group=place)
                    for place in used
                ),
                Row(
                    kind=Kind.MEMORY,
                    start_ns=begin + 55 * MS,
                    end_ns=begin + 55 * MS,
                    name=MemoryMeasure.GRADIENTS,
                    step=at,
                    value=gradients[number],
                ),
                phase(Phase.OPTIMIZER, begin + 60 * MS, begin + 90 * MS, at=at),
            ]
        for at in range(steps, steps + without_detail):
            rows.append(step(at, 100 * MS * at, 100 * MS * (at + 1)))
        made = rank(number, *rows, groups=groups, coords=mesh[number])
        ranks.append(replace(made, info=replace(made.info, issued_collectives={JOINED.key: issued})))
    findings = analyze(timeline(*ranks)).verdict
    return next((each for each in findings if each.kind == "unreduced_gradients"), None)


def test_two_parts_that_exchange_nothing_after_the_first_step_drift_apart() -> None:
    finding = found(joined_in=(0,))
    assert finding is not None
    assert (finding.ranks, finding.confidence) == ((), "medium")
    assert finding.evidence == (
        "replicas drift apart: ranks 0, 1, and ranks 2, 3, along the mesh axis replicate, have gradients of the same "
        "size and exchange nothing in all 14 steps with detail: each part trains a model of its own"
    )
    assert "replicate included" in finding.advice


def test_steps_without_detail_in_which_torch_counts_no_more_change_nothing() -> None:
    assert found(joined_in=(0,), without_detail=100, issued=1) is not None


def test_without_a_mesh_the_parts_are_named_alone() -> None:
    finding = found(mesh=[{}] * 4)
    assert finding is not None
    assert "ranks 0, 1, and ranks 2, 3 have gradients of the same size" in finding.evidence


@pytest.mark.parametrize(
    "job",
    [
        {"joined_in": (9,)},
        {"joined_in": (0,), "without_detail": 100, "issued": 3},
        {"members": ((0, 1), (0, 1), (1, 2), (2, 3))},
        {"gradients": (KIB, KIB, 2 * KIB, 2 * KIB)},
        {"members": ((0, 1, 2), (0, 1, 2), (0, 1, 2), (3,))},
        {"steps": 9},
    ],
    ids=[
        "averaged once",
        "averaged in other steps",
        "joined by a third",
        "other models",
        "of other sizes",
        "few steps",
    ],
)
def test_what_may_be_meant_is_no_finding(job: dict[str, Any]) -> None:
    assert found(**job) is None
