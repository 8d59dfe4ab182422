"""The live ledger of a training against Kineto's trace of the same steps."""

from pathlib import Path

import pytest
import torch

from tests.gpu.figures import Figures
from tests.gpu.readers import failed_hooks, only_rank
from traincope.analysis.analyze import analyze
from traincope.doctor.gpu_proof.judging import RUN, STEPS, judge_training, trace_name
from traincope.doctor.gpu_proof.proof import LIMIT_RATIO
from traincope.doctor.gpu_proof.training import LARGE, SMALL, Size, Training
from traincope.timeline import LedgerClock, open_run


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize(("size", "host_bound"), [(SMALL, True), (LARGE, False)], ids=["host-bound", "device-bound"])
def test_the_ledger_is_what_marks_would_show_in_the_trace(
    tmp_path: Path, figures: Figures, size: Size, host_bound: bool
) -> None:
    """Steps, forward, backward, optimizer and exposed communication, each within 2 % of the step.

    `traincope doctor --gpu` runs the same. `tests/timeline/device/test_live_and_trace.py` applies the comparison to a
    virtual GPU.
    """
    Training(size, torch.device("cuda")).record(tmp_path / RUN, trace=tmp_path / trace_name(0))
    analysis = analyze(open_run(tmp_path / RUN))
    assert failed_hooks(only_rank(tmp_path / RUN)) == {}
    assert analysis.ledger.clock is LedgerClock.DEVICE
    assert analysis.run_ahead is not None
    assert (analysis.run_ahead.empty_ratio > 0.5) is host_bound
    proof = judge_training(tmp_path, steps=STEPS)
    assert proof.problems == ()
    kind = "host-bound" if host_bound else "device-bound"
    for source, rows in (("Kineto's trace", proof.by_marks), ("the imported trace", proof.by_import)):
        worst = max(rows, key=lambda row: row.ratio)
        figures.take(
            f"ledger against {source}, {kind}, step {rows[0].ledger_ns / 1e6:.2f} ms",
            measured=f"worst {worst.ratio:.2%} of the step ({worst.part} of step {worst.step})",
            held_to="2 % of the step",
        )
    assert {row.part: row.ratio for row in (*proof.by_marks, *proof.by_import) if row.ratio > LIMIT_RATIO} == {}
    assert proof.collectives is not None
    assert proof.collectives.equal
