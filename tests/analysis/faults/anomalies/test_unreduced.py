"""Gradients that no collective reduces: replicas drift apart."""

from dataclasses import replace

import pytest

from tests.timeline.build import Row, collective, group, phase, rank, stall, step, timeline
from traincope.analysis import Finding, analyze
from traincope.events import ELEMENT_SHIFT, OUTSIDE_DDP, Element, Flag, Kind, MemoryMeasure, Phase
from traincope.topology import Group

MS = 1_000_000
KIB = 1 << 10
FLOAT32, BFLOAT16 = (int(element) << ELEMENT_SHIFT for element in (Element.FLOAT32, Element.BFLOAT16))
DDP = replace(group("dp", 0, 1), rule="wrapper")
WORLD = replace(group("world", 0, 1), rule="none")
GRADIENT_BYTES = 1000 * KIB


def one_step(number: int, reduced_bytes: int, flags: int) -> list[Row]:
    """Record 100 ms with a backward, a collective if it has bytes, and an optimizer."""
    begin = 100 * MS * number
    one = collective(
        begin + 40 * MS,
        begin + 50 * MS,
        name="all_reduce",
        sequence=number,
        at=number,
        num_bytes=reduced_bytes,
        flags=flags,
    )
    return [
        step(number, begin, begin + 100 * MS),
        phase(Phase.BACKWARD, begin, begin + 40 * MS, at=number),
        *([one, stall(one, begin + 40 * MS, begin + 50 * MS)] if reduced_bytes else []),
        Row(
            kind=Kind.MEMORY,
            start_ns=begin + 55 * MS,
            end_ns=begin + 55 * MS,
            name=MemoryMeasure.GRADIENTS,
            step=number,
            value=GRADIENT_BYTES,
        ),
        phase(Phase.OPTIMIZER, begin + 60 * MS, begin + 90 * MS, at=number),
    ]


def found(
    groups: list[Group],
    *,
    reduced_bytes: int = 0,
    flags: int = FLOAT32,
    steps: int = 14,
    issued: int = 0,
    exchange: str = "",
    detailed: int | None = None,
    outside: tuple[int, ...] = (),
    averaged: tuple[int, ...] = (),
) -> Finding | None:
    rows = [row for number in range(steps) for row in one_step(number, reduced_bytes, flags)]
    if detailed is not None:
        rows = [
            replace(row, flags=Flag.DETAILED) if row.kind is Kind.STEP and row.step < detailed else row for row in rows
        ]
        rows = [row for row in rows if row.kind not in (Kind.COLLECTIVE, Kind.STALL) or row.step < detailed]
    for number in range(steps if exchange else 0):
        at_ns = 100 * MS * number + 70 * MS
        rows += [phase(Phase.FORWARD, at_ns - MS, at_ns + 3 * MS, at=number)] if exchange == "all_reduce" else []
        sent = {"name": exchange, "sequence": 2 * number, "at": number, "num_bytes": 64, "flags": FLOAT32}
        rows.append(collective(at_ns, at_ns + MS, **sent))
    for number in averaged:
        at_ns = 100 * MS * number + 92 * MS
        for part in range(2):
            sent = {"sequence": 1000 + 2 * number + part, "at": number, "num_bytes": GRADIENT_BYTES // 2}
            rows.append(collective(at_ns, at_ns + MS, name="all_reduce", flags=FLOAT32, **sent))
    records = []
    for number in (0, 1):
        noted = [{"parameters": 8, "bytes": size, "reduced_bytes": 90 * KIB, "first": "a.up"} for size in outside]
        seen = [Row(kind=Kind.EVENT, start_ns=MS, end_ns=MS, name=OUTSIDE_DDP, group=1) for _ in noted[number:]]
        each = replace(rank(number, *rows, *seen[:1], groups=groups), details=dict(enumerate(noted[number:], 1)))
        records.append(replace(each, info=replace(each.info, issued_collectives={"dp": issued} if issued else {})))
    findings = analyze(timeline(*records)).verdict
    return next((each for each in findings if each.kind == "unreduced_gradients"), None)


def test_a_backward_of_ddp_without_its_reduction_is_found() -> None:
    finding = found([DDP])
    assert finding is not None
    assert finding.confidence == "medium"
    assert "in all 13 steps with detail, backward and optimizer ran and DDP reduced no gradients" in finding.evidence
    assert "no_sync()" in finding.advice


@pytest.mark.parametrize(("groups", "reduced_bytes"), [([DDP], 0), ([WORLD], 64 * KIB)])
def test_replicas_that_are_averaged_at_intervals_need_no_reduction(groups: list[Group], reduced_bytes: int) -> None:
    """Local SGD: every 20th step averages the weights. One such step may be anything else, e.g. a broadcast."""
    assert found(groups, reduced_bytes=reduced_bytes, steps=60, averaged=(19, 39)) is None
    assert found(groups, reduced_bytes=reduced_bytes, steps=60, averaged=(19,)) is not None


def test_counts_of_torch_make_it_certain_also_in_few_steps() -> None:
    assert found([DDP], steps=6) is None
    finding = found([DDP], steps=6, issued=4)
    assert finding is not None
    assert finding.confidence == "high"


@pytest.mark.parametrize(("issued", "is_found"), [(60, True), (61, False)])
def test_no_collective_beside_those_of_the_detailed_steps_reduced_anything(issued: int, is_found: bool) -> None:
    """Each of 60 steps sums up one number, and 7 are recorded. A 61st collective may have averaged the model."""
    finding = found([DDP], reduced_bytes=4, steps=60, detailed=7, issued=issued)
    assert (finding is not None) is is_found


def test_parameters_that_came_after_ddp_are_named() -> None:
    finding = found([DDP], reduced_bytes=90 * KIB, outside=(910 * KIB, 910 * KIB))
    assert finding is not None
    assert finding.confidence == "high"
    assert "the optimizer trains a.up and 7 others, 910.0 KiB in all" in finding.evidence
    assert "collectives have at most 90.0 KiB, and the parameters that DDP reduces 90.0 KiB" in finding.evidence


@pytest.mark.parametrize(("reduced", "outside"), [(1000, (910, 910)), (90, (910,)), (90, (910, 12))])
def test_parameters_that_are_reduced_by_hand_or_differ_are_no_finding(reduced: int, outside: tuple[int, ...]) -> None:
    """By hand, the collectives have their bytes too. A rank that has none of them, or others, is not understood."""
    sizes = tuple(each * KIB for each in outside)
    assert found([DDP], reduced_bytes=reduced * KIB, outside=sizes) is None


@pytest.mark.parametrize("exchange", ["all_to_all", "all_reduce", "send"])
def test_parts_of_a_model_have_gradients_that_no_other_rank_has(exchange: str) -> None:
    """Ranks exchange tokens for their experts, or activations in the forward, or between stages written by hand."""
    assert found([WORLD], reduced_bytes=600 * KIB, exchange=exchange) is None


def test_a_reduction_by_hand_that_leaves_gradients_out_is_found() -> None:
    finding = found([WORLD], reduced_bytes=600 * KIB)
    assert finding is not None
    assert "have at most 600.0 KiB, and the gradients 1000.0 KiB: some are never reduced" in finding.evidence


@pytest.mark.parametrize(
    ("groups", "reduced_bytes", "flags"),
    [
        ([DDP], GRADIENT_BYTES, FLOAT32),
        ([DDP], 100 * KIB, FLOAT32),
        ([WORLD], GRADIENT_BYTES, FLOAT32),
        ([WORLD], GRADIENT_BYTES // 2, BFLOAT16),
        ([WORLD], 4, FLOAT32),
        ([WORLD], 0, FLOAT32),
        ([WORLD, replace(group("ep", 0, 1, key="ep"), rule="mesh")], 600 * KIB, FLOAT32),
        ([group("fsdp", 0, 1)], 600 * KIB, FLOAT32),
    ],
)
def test_what_may_be_meant_is_no_finding(groups: list[Group], reduced_bytes: int, flags: int) -> None:
    """All gradients, compressed ones, independent ranks with a metric, experts, shards."""
    assert found(groups, reduced_bytes=reduced_bytes, flags=flags) is None
