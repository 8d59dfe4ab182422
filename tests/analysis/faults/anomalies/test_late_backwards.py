"""Backwards after the one in which DDP reduces: their gradients stay local."""

from dataclasses import replace

import pytest

from tests.timeline.build import Row, collective, group, phase, rank, stall, step, timeline
from traincope.analysis import Finding, analyze
from traincope.events import ELEMENT_SHIFT, Element, Phase

MS = 1_000_000
FLOAT32 = int(Element.FLOAT32) << ELEMENT_SHIFT
DDP = replace(group("dp", 0, 1), rule="wrapper")
MODEL, OTHER = "DistributedDataParallel", "Critic"


def one_step(number: int, reduced: str, *, models: str, sequence: int) -> list[Row]:
    """Record a step of 100 ms. Each letter is a backward: `R` reduces, `m` sends 4 bytes, `-` nothing; of the two at
    the end, `after`, an all-reduce by hand comes after the last backward. `models`: `d` is DDP's, `o` another one.
    """
    begin = 100 * MS * number
    rows = [step(number, begin, begin + 100 * MS)]
    for place, (letter, model) in enumerate(zip(reduced.rstrip("h"), models, strict=True)):
        at = begin + 20 * place * MS
        rows.append(replace(phase(Phase.FORWARD, at, at + 5 * MS, at=number), name=MODEL if model == "d" else OTHER))
        rows.append(phase(Phase.BACKWARD, at + 6 * MS, at + 16 * MS, at=number))
        if letter in "Rm":
            rows += sent(at + 10 * MS, number, sequence + place, 4 if letter == "m" else 4_000)
    if reduced.endswith("h"):
        rows += sent(begin + 87 * MS, number, sequence + len(reduced), 4_000)
    rows.append(phase(Phase.OPTIMIZER, begin + 95 * MS, begin + 99 * MS, at=number))
    return rows


def sent(at_ns: int, number: int, sequence: int, num_bytes: int) -> list[Row]:
    fields = {"sequence": sequence, "at": number, "num_bytes": num_bytes, "flags": FLOAT32}
    one = collective(at_ns, at_ns + 3 * MS, name="all_reduce", **fields)
    return [one, stall(one, at_ns, at_ns + 3 * MS)]


def found(*of_ranks: str, models: str = "dddd", steps: int = 14, last: str | None = None) -> Finding | None:
    """Build `steps` steps alike, and the last one by `last`."""
    ranks = []
    for number, reduced in enumerate(of_ranks):
        of_steps = [reduced] * (steps - 1) + [last or reduced]
        rows = [row for at, each in enumerate(of_steps) for row in one_step(at, each, models=models, sequence=9 * at)]
        ranks.append(rank(number, *rows, groups=[DDP]))
    findings = analyze(timeline(*ranks)).verdict
    return next((each for each in findings if each.kind == "unreduced_gradients"), None)


@pytest.mark.parametrize(
    ("reduced", "late"), [("R---", "the last 3"), ("-RR-", "the last one"), ("R-mm", "the last 3")]
)
def test_backwards_after_the_reduction_are_found(reduced: str, late: str) -> None:
    """Messages of a few bytes, e.g. of a metric, reduce no gradients."""
    finding = found(reduced, reduced)
    assert finding is not None
    assert finding.ranks == ()
    assert finding.evidence == (
        "replicas drift apart: in all 14 steps of the optimizer that show it, DDP reduced gradients in an earlier one "
        f"of 4 backwards, and those of {late} before the optimizer are never reduced"
    )
    assert "model.no_sync()" in finding.advice


@pytest.mark.parametrize("reduced", ["---R", "RRRR", "R---h"])
def test_a_reduction_in_or_after_the_last_backward_is_as_it_should_be(reduced: str) -> None:
    assert found(reduced, reduced) is None


def test_what_is_not_the_same_everywhere_is_no_finding() -> None:
    """One step reduces at its end, one rank does, there are few steps, or another model has the last backwards."""
    assert found("R---", "R---", last="R--R") is None
    assert found("R---", "---R") is None
    assert found("R---", "R---", steps=11) is None
    assert found("R---", "R---", models="dooo") is None
