"""The comparison of `traincope doctor --gpu` on programs of the virtual GPU: their records against their traces."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.timeline.device.recorded import padded, record
from tests.virtual_gpu.actions import (
    Action,
    Meaning,
    OnThread,
    Program,
    Range,
    annotated,
    backward,
    evaluate,
    forward,
    kernel,
    optimizer,
    sleep,
)
from tests.virtual_gpu.kineto import write_traces
from tests.virtual_gpu.programs import PROGRAMS, two_steps
from traincope.analysis.analyze import analyze
from traincope.doctor.gpu_proof.proof import LIMIT_RATIO
from traincope.doctor.gpu_proof.traced_marks import EXPOSED, Steps, TracedMarks, differences, ledger_steps, traced_steps
from traincope.timeline import LedgerClock, open_run

ANCHOR_NS = 4
"""Error of the instant that ties the device's clock to the host's: a poll takes a virtual nanosecond."""


def training(*, kernel_us: int, host_us: int) -> Program:
    """Two steps whose phases each launch two kernels, with work of the host after each, and between phases."""
    body = (kernel(kernel_us), sleep(host_us)) * 2
    phases = forward(*body), sleep(3), backward(evaluate("MmBackward0", *body)), sleep(5), optimizer(*body)
    return two_steps(*phases)


CASES = {
    "host-bound": training(kernel_us=5, host_us=20),
    "device-bound": training(kernel_us=100, host_us=2),
    "gradient accumulation": PROGRAMS["gradient accumulation"],
    "exposed collective": PROGRAMS["exposed collective"],
    "hidden collective": PROGRAMS["hidden collective"],
    "late peer": PROGRAMS["late peer"],
    "two axes": PROGRAMS["two axes"],
}


def as_annotated(action: Action) -> Action:
    """Annotate the phases as the training of `tests/gpu/test_ledger.py` does."""
    if isinstance(action, OnThread):
        return annotated("backward", None, action)
    if isinstance(action, Range) and action.meaning in (Meaning.FORWARD, Meaning.OPTIMIZER):
        return replace(action, name=action.meaning.value)
    if isinstance(action, Range):
        return replace(action, body=tuple(map(as_annotated, action.body)))
    return action


def recorded(program: Program, folder: Path) -> list[Path]:
    """Record a padded program whose phases are annotated, to `folder`/run. Returns the traces of its ranks."""
    program = padded(program)
    program = replace(program, ranks=tuple(tuple(map(as_annotated, actions)) for actions in program.ranks))
    record(program, folder)
    return write_traces(program, folder)


def live_and_traced(program: Program, folder: Path) -> list[tuple[Steps, Steps]]:
    """Return the ledger and the trace of each rank."""
    traces = recorded(program, folder)
    ledger = analyze(open_run(folder / "run")).ledger
    assert ledger.clock is LedgerClock.DEVICE
    return [
        (ledger_steps(rank), traced_steps(TracedMarks(trace))) for rank, trace in zip(ledger.ranks, traces, strict=True)
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_live_ledger_is_what_marks_would_show_in_the_trace(name: str, tmp_path: Path) -> None:
    for live, traced in live_and_traced(CASES[name], tmp_path):
        assert live.keys() == {number for number in traced if number}
        for number, parts in live.items():
            assert parts == pytest.approx(traced[number], abs=ANCHOR_NS), number


def test_a_collective_of_20_us_is_exposed_for_20_us_in_the_trace(tmp_path: Path) -> None:
    """The mark of the wait is reached with the collective's launch, or up to a call of 1 us before or after it."""
    for _, traced in live_and_traced(CASES["exposed collective"], tmp_path):
        assert traced[1][EXPOSED] == pytest.approx(20_000, abs=1_000)


@pytest.mark.parametrize("part", ["step", "forward", "backward", "optimizer", EXPOSED])
def test_a_part_that_is_wrong_by_5_percent_of_the_step_fails(part: str, tmp_path: Path) -> None:
    ((live, traced), _) = live_and_traced(CASES["exposed collective"], tmp_path)
    assert all(row.ratio < 0.001 for row in differences({0: live}, {0: traced}))
    live[1][part] += traced[1]["step"] // 20
    (wrong,) = [row for row in differences({0: live}, {0: traced}) if row.ratio > LIMIT_RATIO]
    assert (wrong.part, wrong.rank, wrong.step) == (part, 0, 1)
