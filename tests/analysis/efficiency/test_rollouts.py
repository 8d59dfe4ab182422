"""Rollouts: tokens, rate, long tail and longest samples, of lengths that are counted by hand."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import traincope
from tests.timeline.build import Row, phase, rank, step, timeline
from traincope.analysis import analyze
from traincope.analysis.efficiency.rollouts import Rollouts
from traincope.events import ROLLOUT, Kind, Phase
from traincope.record.compute.rollouts import rollout_sums
from traincope.report.document.document import to_document
from traincope.report.text.text import render
from traincope.timeline import open_run


@pytest.mark.parametrize(
    ("lengths", "half"),
    [([4, 8, 2, 6], 6), ([1, 2, 3, 4, 5], 3), ([7], 7), ([5, 5, 5, 5], 5), ([1, 1, 1, 9], 1)],
)
def test_fewer_than_half_generate_after_so_many_tokens(lengths: list[int], half: int) -> None:
    """Counted one by one: the first token after which fewer than half are longer."""
    counted = next(t for t in range(max(lengths) + 1) if 2 * sum(length > t for length in lengths) < len(lengths))
    sums = rollout_sums(lengths, prompt_tokens=3, discarded_tokens=1)
    assert counted == half
    assert tuple(sums) == ROLLOUT
    assert tuple(sums.values()) == (len(lengths), 3, sum(lengths), 1, max(lengths), half)


def rows(lengths: list[int], generate_ns: int) -> list[Row]:
    """Three steps of 100 that generate a batch of these lengths, 2 of whose tokens are discarded."""
    found = []
    for number in range(3):
        at = 100 * number
        found += [step(number, at, at + 100), phase(Phase.GENERATE, at, at + generate_ns, at=number)]
        for name, value in rollout_sums(lengths, prompt_tokens=10, discarded_tokens=2).items():
            bits = int(np.float64(value).view(np.int64))
            found.append(Row(kind=Kind.SCALAR, start_ns=at + 90, end_ns=at + 90, name=name, value=bits, step=number))
    return found


def found_of(*ranks: list[Row]) -> Rollouts:
    found = analyze(timeline(*(rank(number, *each) for number, each in enumerate(ranks)))).rollouts
    assert found is not None
    return found


def test_sums_rates_and_tails() -> None:
    """Rank 0: lengths 1, 1, 1, 9 in 50 ns. Rank 1: 3, 3, 3, 3 in 20 ns. The first step is the warm-up."""
    found = found_of(rows([1, 1, 1, 9], 50), rows([3, 3, 3, 3], 20))
    assert (found.samples, found.prompt_tokens, found.generated_tokens) == (24, 60, 72)
    assert found.discarded_ratio == 12 / 72
    assert found.tail_ratio == (8 + 0) / (9 + 3)
    assert found.empty_ratio == (36 - 12 + 0) / (36 + 12)
    assert [each.tokens_per_second for each in found.ranks] == pytest.approx([12 / 50e-9, 12 / 20e-9])
    assert [each.mean_longest for each in found.ranks] == [9, 3]


def test_a_training_without_rollouts_has_none() -> None:
    assert analyze(timeline(rank(0, step(0, 0, 100), step(1, 100, 200)))).rollouts is None


def test_a_real_run_keeps_ids_of_the_longest_samples_and_raises_nothing(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run") as run:
        for number in range(3):
            with traincope.phase("generate"):
                pass
            traincope.rollout([2, 5 + number], ids=["short", f"long {number}"], tool_seconds=[0.0, 1.5])
            run.step()
        traincope.rollout([])
        traincope.rollout(["not a number"])  # type: ignore[list-item]
        traincope.rollout(None)  # type: ignore[arg-type]
    analysis = analyze(open_run(tmp_path / "run"))
    found = to_document(analysis)["rollouts"]
    assert [(each["id"], each["tokens"], each["tool_seconds"]) for each in found["slowest"]] == [
        ("long 2", 7, 1.5),
        ("long 1", 6, 1.5),
        ("long 0", 5, 1.5),
    ]
    assert found["generated_tokens"] == 3 * 2 + 5 + 6 + 7
    file = StringIO()
    render(analysis, Console(file=file, width=80))
    assert "ROLLOUTS  6 samples, 24 generated tokens" in file.getvalue()
    assert "long: sample long 2 of rank 0" in file.getvalue()
