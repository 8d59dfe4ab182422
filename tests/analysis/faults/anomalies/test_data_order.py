"""The order of the data over restarts: real recordings of attempts whose sampler is right, or wrong in a known way."""

from collections.abc import Sequence
from io import StringIO
from itertools import islice
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import traincope
from traincope.analysis import FaultKind, analyze
from traincope.analysis.faults.anomalies.data_order import Continuation, Order
from traincope.report.document.document import to_document
from traincope.report.text.text import render_document

DATA = torch.arange(4_000, dtype=torch.float32).view(-1, 4)
HELD_OUT = -DATA[:8]


def attempt(
    run: Path,
    batches: Sequence[int],
    *,
    resumed: int | None = None,
    data: torch.Tensor = DATA,
    evaluate: bool = False,
    back: tuple[int, int] | None = None,
    passed: int = 0,
) -> None:
    """Train one step per number of a batch. The run ends without its last step's end, as one that is killed.

    `back`: the batch after which the training goes back, and to which step. `passed`: number of first batches that are
    fetched and not trained.
    """
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader = DataLoader(TensorDataset(data), batch_sampler=[[number] for number in batches])
    held_out = DataLoader(TensorDataset(HELD_OUT), batch_size=4)
    with traincope.run(run, agent=False) as recorded:
        if resumed is not None:
            traincope.event("resumed", step=resumed)
        for number, (inputs,) in islice(zip(batches, loader, strict=True), passed, None):
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorded.log(loss=float(inputs[0, 0]))
            if back is not None and number == back[0]:
                traincope.event("rollback", step=back[1], why="test")
            recorded.step()
            if evaluate:
                model.eval()
                with torch.no_grad():
                    for (inputs,) in held_out:
                        model(inputs)
                model.train()


def order(run: Path) -> Continuation:
    analysis = analyze(traincope.open_run(run))
    assert analysis.data_order is not None
    (found,) = analysis.data_order.continuations
    wrong = [fault for fault in analysis.faults if fault.kind in (FaultKind.DATA_FED_AGAIN, FaultKind.DATA_SKIPPED)]
    assert [fault.what for fault in wrong] == ([found.what] if found.order in (Order.FED_AGAIN, Order.SKIPPED) else [])
    findings = [each for each in analysis.verdict if each.kind == "data_order"]
    assert [found.what in each.evidence for each in findings] == [True] * (found.order not in (None, Order.RIGHT))
    return found


def answer(run: Path) -> tuple[Order | None, int | None, int | None, int | None]:
    found = order(run)
    return found.order, found.num_batches, found.first_step, found.last_step


@pytest.mark.parametrize(
    ("passed", "ahead", "expected"),
    [
        (4, 0, (None, None, None, None)),
        (8, 0, (Order.SKIPPED, 4, 5, 8)),
        (6, 2, (None, None, None, None)),
        (10, 2, (Order.SKIPPED, 4, 5, 8)),
    ],
)
def test_batches_that_are_passed_over_and_were_never_trained_are_counted(
    tmp_path: Path, passed: int, ahead: int, expected: tuple[object, ...]
) -> None:
    """The attempt before trained 4 steps, and fetched nothing later. `ahead`: batches that both fetch ahead."""
    attempt(tmp_path, range(ahead + 4), passed=ahead)
    attempt(tmp_path, range(16), resumed=4, passed=passed)
    assert answer(tmp_path) == expected


def test_a_rank_that_passes_over_fewer_batches_than_the_state_has_had_is_fed_some_again(tmp_path: Path) -> None:
    """It continues from an older checkpoint than the others, whose last step the job's state has."""
    attempt(tmp_path, range(6))
    attempt(tmp_path, range(9), resumed=4, passed=2)
    assert answer(tmp_path) == (Order.FED_AGAIN, 2, 3, 4)


@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize(
    ("resumed", "batches", "expected"),
    [
        (4, range(4, 9), (Order.RIGHT, None, None, None)),
        (4, range(2, 9), (Order.FED_AGAIN, 2, 3, 4)),
        (4, range(9), (Order.FED_AGAIN, 4, 1, 4)),
        (4, range(5, 9), (Order.SKIPPED, 1, 5, 5)),
        (6, range(5, 9), (Order.FED_AGAIN, 1, 6, 6)),
        (6, range(6, 9), (None, None, None, None)),
        (4, range(8, 12), (None, None, None, None)),
        (4, (5, 4, 7, 6), (Order.REORDERED, 2, 5, 6)),
        (6, (2, 3, 4, 9, 8), (Order.FED_AGAIN, 3, 3, 5)),
        (6, (9, 2, 8), (None, None, None, None)),
    ],
)
def test_batches_fed_again_and_skipped_are_named(
    tmp_path: Path, resumed: int, batches: Sequence[int], expected: tuple[object, ...], evaluate: bool
) -> None:
    """The attempt before trained on batches 0 to 5."""
    attempt(tmp_path, range(6), evaluate=evaluate)
    attempt(tmp_path, batches, resumed=resumed, evaluate=evaluate)
    assert answer(tmp_path) == expected


@pytest.mark.parametrize(
    ("resumed", "batches", "expected"),
    [
        (4, range(6, 9), (Order.RIGHT, None, None, None)),
        (4, range(4, 9), (Order.FED_AGAIN, 2, 3, 4)),
        (4, range(2, 9), (Order.FED_AGAIN, 2, 3, 4)),
        (4, range(7, 9), (Order.SKIPPED, 1, 5, 5)),
        (2, range(2, 9), (Order.RIGHT, None, None, None)),
        (2, range(4, 9), (Order.RIGHT, None, None, None)),
        (2, range(3, 9), (Order.SKIPPED, 1, 3, 3)),
        (2, range(1, 9), (Order.FED_AGAIN, 1, 2, 2)),
    ],
)
def test_batches_that_a_rollback_passed_over_are_neither_skipped_nor_needed(
    tmp_path: Path, resumed: int, batches: Sequence[int], expected: tuple[object, ...]
) -> None:
    """Step 4 of the attempt before was bad: it went back to step 2, and trained on batches 4 to 7 in steps 3 to 6.

    A checkpoint after step 4 continues with batch 6. One after step 2 was saved before the rollback: with batch 2, or
    with batch 4 as the rollback did.
    """
    attempt(tmp_path, range(8), back=(3, 2))
    attempt(tmp_path, batches, resumed=resumed)
    assert answer(tmp_path) == expected


def test_the_finding_has_the_losses_around_the_restart(tmp_path: Path) -> None:
    attempt(tmp_path, range(6))
    attempt(tmp_path, range(2, 6), resumed=4)
    found = order(tmp_path)
    assert (found.loss_before, found.loss_after, found.ranks) == (12.0, 8.0, (0,))
    assert found.what == "attempt 1 continued after step 4 and was fed 2 batches again: steps 3, 4"


def test_the_report_has_the_answer_in_json_and_in_a_line(tmp_path: Path) -> None:
    attempt(tmp_path, range(6))
    attempt(tmp_path, range(5, 9), resumed=4)
    analysis = analyze(traincope.open_run(tmp_path))
    document = to_document(analysis)
    what = "attempt 1 continued after step 4 and skipped 1 batch: step 5"
    assert document["data_order"] == {
        "continuations": [
            {
                "attempt": 1,
                "step": 4,
                "ranks": [0],
                "order": "skipped",
                "num_batches": 1,
                "first_step": 5,
                "last_step": 5,
                "reason": None,
                "what": what,
                "loss_before": 12.0,
                "loss_after": 20.0,
            }
        ]
    }
    console = Console(file=StringIO(), width=150)
    render_document(document, analysis, console)
    assert f"    data order: rank 0: {what}\n" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_third_attempt_is_compared_with_both_before(tmp_path: Path) -> None:
    attempt(tmp_path, range(6))
    attempt(tmp_path, range(4, 8), resumed=4)
    attempt(tmp_path, range(1, 9), resumed=7)
    analysis = analyze(traincope.open_run(tmp_path))
    assert analysis.data_order is not None
    found = [(each.attempt, each.order, each.num_batches) for each in analysis.data_order.continuations]
    assert found == [(1, Order.RIGHT, None), (2, Order.FED_AGAIN, 6)]


def test_epochs_in_the_same_order_are_not_fed_again(tmp_path: Path) -> None:
    """Passes of four batches. A new pass repeats the data, also where no attempt before had reached it."""
    attempt(tmp_path / "lost", [0, 1, 2, 3, 0, 1, 2])
    attempt(tmp_path / "lost", [1, 2, 3, 0], resumed=5)
    attempt(tmp_path / "none lost", [0, 1, 2, 3, 0, 1])
    attempt(tmp_path / "none lost", [2, 3, 0, 1], resumed=6)
    attempt(tmp_path / "first pass", [0, 1, 2, 3])
    attempt(tmp_path / "first pass", [0, 1, 2, 3], resumed=4)
    for run in ("lost", "none lost", "first pass"):
        assert order(tmp_path / run).order is Order.RIGHT


def test_equal_batches_tell_nothing(tmp_path: Path) -> None:
    for resumed in (None, 4):
        attempt(tmp_path, range(6), resumed=resumed, data=torch.zeros(40, 4))
    assert order(tmp_path).reason == "fingerprints do not tell its batches apart"


def test_without_a_declared_step_nothing_is_known(tmp_path: Path) -> None:
    attempt(tmp_path, range(6))
    attempt(tmp_path, range(6))
    assert order(tmp_path).reason == "it did not declare the step from which it continued"


def test_one_attempt_has_no_order(tmp_path: Path) -> None:
    attempt(tmp_path, range(6))
    assert analyze(traincope.open_run(tmp_path)).data_order is None
