"""The live ledger of a training against Kineto's trace of the same steps."""

import time
from pathlib import Path

import pytest
import torch
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.profiler import ProfilerActivity, profile, record_function

import traincope
from tests.gpu.figures import Figures
from tests.gpu.readers import failed_hooks, only_rank
from traincope.analysis.analyze import analyze
from traincope.doctor.gpu_proof.judging import COMPARED, RUN, judge_training, trace_name
from traincope.doctor.gpu_proof.proof import LIMIT_RATIO
from traincope.doctor.gpu_proof.training import LARGE, RETIRED_WITHIN_SECONDS, SMALL, Size, Training
from traincope.events import Kind
from traincope.ingest import import_traces
from traincope.timeline import LedgerClock, RankTimeline, open_run


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
    proof = judge_training(tmp_path, steps=COMPARED)
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


MICROBATCHES, WIDTH = 4, 4_096


@pytest.mark.usefixtures("nccl")
def test_the_actions_of_a_pipeline_are_those_of_the_trace(tmp_path: Path, figures: Figures) -> None:
    """Both stages of an interleaved schedule are on one rank, so it sends no messages. Each action, within 2 % of the
    step.
    """
    run, trace, imported = (tmp_path / name for name in (RUN, trace_name(0), "imported"))
    record_pipeline(torch.device("cuda"), WIDTH, run=run, trace=trace)
    assert failed_hooks(only_rank(run)) == {}
    import_traces([trace], imported)
    analysis = analyze(open_run(run))
    assert analysis.ledger.clock is LedgerClock.DEVICE
    (ledger,), (live,) = analysis.ledger.ranks, analysis.context.measured.ranks
    (traced,) = analyze(open_run(imported)).context.measured.ranks
    counted = [number for number in ledger.numbers[ledger.counted].tolist() if number in COMPARED]
    by_marks, by_trace = (lengths(rank, counted) for rank in (live, traced))
    assert len(by_marks) == len(COMPARED) * 2 * 2 * MICROBATCHES
    assert by_marks.keys() == by_trace.keys()
    step_ns = ledger.total_wall_ns / ledger.num_counted
    worst = max(abs(by_marks[action] - by_trace[action]) / step_ns for action in by_marks)
    figures.take("pipeline actions against Kineto's trace", measured=f"worst {worst:.2%} of the step", held_to="2 %")
    assert worst <= LIMIT_RATIO


def lengths(rank: RankTimeline, steps: list[int]) -> dict[tuple[int, str, int, int], int]:
    """Return the ns of each action: (step, kind, stage, microbatch)."""
    return {
        (int(each["step"]), rank.name(int(each["name"])), int(each["peer"]), int(each["sequence"])): int(
            each["end_ns"] - each["start_ns"]
        )
        for each in rank.of_kind(Kind.ACTION)
        if each["step"] in steps
    }


def record_pipeline(device: torch.device, width: int, *, run: Path, trace: Path) -> None:
    """Record and trace the compared steps of two stages, those before them, and a last one."""
    models = [torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).to(device) for _ in range(2)]
    stages = [PipelineStage(model, number, 2, device) for number, model in enumerate(models)]
    schedule = ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)  # type: ignore[arg-type]
    batch = torch.randn(MICROBATCHES * width, width, device=device)
    schedule.step(batch, target=batch)
    on_gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with (
        profile(activities=[ProfilerActivity.CPU, *on_gpu]) as profiler,
        traincope.run(run, budget=None) as recording,
    ):
        for number in range(COMPARED.stop + 1):
            with record_function(f"ProfilerStep#{number}"):
                recording.step()
                schedule.step(batch, target=batch)
        if on_gpu:
            torch.cuda.synchronize(device)
        time.sleep(RETIRED_WITHIN_SECONDS)
    profiler.export_chrome_trace(str(trace))
