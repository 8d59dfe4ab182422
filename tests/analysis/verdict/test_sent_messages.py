"""Purposes of messages, and the advice that follows from what is sent."""

import pytest

from tests.timeline.build import Row, collective, group, phase, rank, stall, step, timeline
from traincope.analysis import Analysis, Finding, analyze
from traincope.events import DDP_BUFFERS, ELEMENT_SHIFT, Element, Kind, Phase

FLOAT32, BFLOAT16, BYTE = (
    int(element) << ELEMENT_SHIFT for element in (Element.FLOAT32, Element.BFLOAT16, Element.BYTE)
)
MIB = 1 << 20
MS = 1_000_000
Call = tuple[str, int, int]
"""Operation, bytes and flags."""


def one_step(
    number: int, calls: dict[tuple[Phase, int], list[Call]], *, buffers: int = 0, objects: int = 0
) -> list[Row]:
    """Record 100 ms: 30 ms per phase, whose calls stall the thread one after the other.

    Messages of `buffers` bytes are in a forward; those of `objects` bytes at the end.
    """
    begin, rows, at, sequence = 100 * MS * number, [], 0, 1000 * number
    rows.append(step(number, begin, begin + 100 * MS))

    def send(name: str, num_bytes: int, flags: int, start: int, length: int) -> None:
        nonlocal sequence
        one = collective(
            start, start + length, name=name, sequence=sequence, at=number, num_bytes=num_bytes, flags=flags
        )
        rows.extend([one, stall(one, start, start + length)])
        sequence += 1

    for (of, _), sent in calls.items():
        start = begin + at * 15 * MS
        if of is not Phase.NONE:
            rows.append(phase(of, start, start + 15 * MS, at=number))
        for place, (name, num_bytes, flags) in enumerate(sent):
            send(name, num_bytes, flags, start + place * 10 * MS // len(sent) + 1, 9 * MS // len(sent))
        at += 1
    start = begin + at * 15 * MS
    if buffers:
        rows.append(phase(Phase.FORWARD, start, start + 15 * MS, at=number))
        span = Row(kind=Kind.SPAN, start_ns=start + 1, end_ns=start + 14 * MS, name=DDP_BUFFERS, step=number)
        rows.append(span)
        send("broadcast", buffers, FLOAT32, start + 2, 12 * MS)
    if objects:
        name = "all_gather_object at train.py:7 (merge)"
        rows.append(
            Row(kind=Kind.PHASE, phase=Phase.OBJECTS, name=name, start_ns=start, end_ns=start + 20 * MS, step=number)
        )
        send("all_gather", objects, BYTE, start + 5 * MS, 10 * MS)
    return rows


def analysed(
    calls: dict[tuple[Phase, int], list[Call]], *, axis: str = "dp", buffers: int = 0, objects: int = 0
) -> Analysis:
    rows = [row for number in range(4) for row in one_step(number, calls, buffers=buffers, objects=objects)]
    return analyze(timeline(*(rank(number, *rows, groups=[group(axis, 0, 1)]) for number in (0, 1))))


def transfer(analysis: Analysis) -> Finding:
    (finding,) = [each for each in analysis.verdict if each.kind == "exposed_transfer"]
    return finding


BACKWARD, FORWARD = (Phase.BACKWARD, 0), (Phase.FORWARD, 0)
GRADIENTS: Call = ("all_reduce", 2 * MIB, FLOAT32)
WEIGHTS: Call = ("broadcast", MIB, FLOAT32)
NORM: Call = ("all_reduce", 4, FLOAT32)


@pytest.mark.parametrize(
    ("axis", "calls", "evidence", "advice"),
    [
        (
            "dp",
            {(Phase.BACKWARD, at): [GRADIENTS] for at in range(4)},
            "each of 4 backwards per step reduces all gradients, 4 x 2.0 MiB",
            "no_sync()",
        ),
        ("dp", {BACKWARD: [GRADIENTS] * 3}, "the gradients are sent as fp32", "bf16_compress_hook"),
        (
            "dp",
            {BACKWARD: [("all_reduce", MIB // 10, FLOAT32)] * 40},
            "go in 40 small messages per backward",
            "bucket_cap_mb",
        ),
        ("dp", {BACKWARD: [("all_reduce", 40 * MIB, FLOAT32), NORM]}, "one message has 100.0 %", "bucket_cap_mb=5"),
        (
            "dp",
            {(Phase.NONE, 0): [NORM] * 30},
            "30 all_reduce per step outside of forward and backward",
            "once per step",
        ),
        ("dp", {(Phase.NONE, 0): [("all_reduce", 10_000, FLOAT32)] * 30}, "one message per tensor", "Flatten"),
        (
            "dp",
            {BACKWARD: [("all_reduce", 4 * MIB, FLOAT32)]} | {(Phase.NONE, at): [WEIGHTS] for at in range(4)},
            "sends 4.0 MiB per step, as much as the weights",
            "Leave the broadcast out",
        ),
        ("dp", {FORWARD: [("all_gather", 260, FLOAT32)] * 20}, "20 small all_gather per forward", "GroupNorm"),
        ("fsdp", {FORWARD: [("all_gather", 40 * MIB, FLOAT32)]}, "in one unit", "every block"),
        ("fsdp", {FORWARD: [("all_gather", 70_000, FLOAT32)] * 30}, "30 tiny units", "whole blocks"),
    ],
)
def test_what_is_sent_decides_the_advice(
    axis: str, calls: dict[tuple[Phase, int], list[Call]], evidence: str, advice: str
) -> None:
    finding = transfer(analysed(calls, axis=axis))
    assert evidence in finding.evidence
    assert advice in finding.advice


@pytest.mark.parametrize("of", [Phase.OPTIMIZER, Phase.NONE])
def test_an_optimizer_of_parts_and_weights_sent_now_and_then_are_needed(of: Phase) -> None:
    """ZeRO's optimizer broadcasts the parameters that each rank updates. The others send a part of the gradients'."""
    num_bytes = 4 * MIB if of is Phase.OPTIMIZER else 16 * MIB
    sent = {BACKWARD: [("all_reduce", num_bytes, FLOAT32)]} | {(of, at): [WEIGHTS] for at in range(4)}
    assert "Leave the broadcast out" not in transfer(analysed(sent)).advice


@pytest.mark.parametrize(
    ("axis", "calls"),
    [
        ("dp", {BACKWARD: [("all_reduce", 2 * MIB, BFLOAT16)] * 3}),
        ("dp", {BACKWARD: [("all_reduce", 18_500, FLOAT32)]}),
        ("tp", {FORWARD: [("all_gather", 70_000, FLOAT32)] * 30, BACKWARD: [GRADIENTS]}),
        ("dp", {(Phase.BACKWARD, at): [("all_reduce", (at + 1) * MIB, BFLOAT16)] for at in range(3)}),
    ],
)
def test_nothing_is_advised_that_the_messages_do_not_show(
    axis: str, calls: dict[tuple[Phase, int], list[Call]]
) -> None:
    """Gradients in bf16, gradients so small that half of them take as long, activations, and several models."""
    finding = transfer(analysed(calls, axis=axis))
    assert "bf16" not in finding.advice
    assert "no_sync" not in finding.advice
    assert "unit" not in finding.evidence


def test_an_optimizer_that_evaluates_a_closure_needs_each_reduction() -> None:
    """L-BFGS runs forward and backward inside its step."""
    calls: dict[tuple[Phase, int], list[Call]] = {(Phase.BACKWARD, at): [GRADIENTS] for at in range(4)}
    rows = [row for number in range(4) for row in one_step(number, calls)]
    updates = [phase(Phase.OPTIMIZER, 100 * MS * at, 100 * MS * at + 70 * MS, at=at) for at in range(4)]
    found = analyze(timeline(*(rank(at, *rows, *updates, groups=[group("dp", 0, 1)]) for at in (0, 1))))
    assert "the gradients are sent as fp32" in transfer(found).evidence
    assert not [finding for finding in found.verdict if "no_sync" in finding.advice]


def test_buffers_that_ddp_broadcasts_are_compared_with_the_gradients() -> None:
    finding = transfer(analysed({BACKWARD: [("all_reduce", MIB, FLOAT32)]}, buffers=24 * MIB))
    expected = "DDP broadcasts its buffers before every forward, 24.0 MiB per step, next to 1.0 MiB of gradients"
    assert expected in finding.evidence
    assert "broadcast_buffers=False" in finding.advice


def test_objects_are_one_finding_with_their_line_and_leave_the_transfers() -> None:
    """Of 100 ms, 10 are pickling and 10 transfer of objects; 9 are the gradients'."""
    analysis = analysed({BACKWARD: [GRADIENTS]}, objects=3 * MIB)
    (finding,) = [each for each in analysis.verdict if each.kind == "object_collectives"]
    assert finding.estimated_gain_ratio == pytest.approx(0.2)
    assert "10.0 % pickling and unpickling, 10.0 % transfer, 0.0 % wait" in finding.evidence
    assert "all_gather_object at train.py:7 (merge), 3.0 MiB per step on each rank" in finding.evidence
    left = transfer(analysis)
    assert left.estimated_gain_ratio == pytest.approx(0.09)
    assert "mostly all_reduce" in left.evidence
