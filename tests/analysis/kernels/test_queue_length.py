"""Queues of streams against those of the programs that the traces are traces of, and by hand."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from tests.analysis.kernels.traced import traced
from tests.timeline.traces import kernel, launch, operator, trace
from tests.virtual_gpu.actions import US, Program
from tests.virtual_gpu.kineto import write_traces
from tests.virtual_gpu.machine import execute
from tests.virtual_gpu.programs import PROGRAMS
from tests.virtual_gpu.random_programs import programs
from tests.virtual_gpu.truth import queues, steps
from traincope.analysis.analyze import Analysis, analyze
from traincope.analysis.kernels.queue_length import QueueLength, queue_lengths
from traincope.analysis.verdict.findings import FindingKind
from traincope.ingest import read_kineto
from traincope.store.side_tables.traces import Trace
from traincope.timeline import build_timeline
from traincope.timeline.device import with_device_records
from traincope.timeline.device.traced import traced_gpus

Queues = dict[tuple[int, int, int], tuple[float, float]]
"""Rank, step and stream -> mean number of works that wait, and share of the step in which none waits."""


def of_trace(traced: Trace, *, rank: int = 0) -> tuple[QueueLength, ...]:
    return queue_lengths(traced_gpus([traced], rank=rank, marker=None))


def measured(program: Program, folder: Path) -> Queues:
    found = {}
    for path in write_traces(program, folder):
        rank = int(path.name.removeprefix("rank").partition(".")[0])
        for queue in of_trace(read_kineto(path), rank=rank):
            found |= {(rank, each.step, int(queue.stream)): (each.mean, each.empty_ratio) for each in queue.steps}
    return found


def true_queues(program: Program) -> Queues:
    found = {}
    for record in execute(program):
        if record.rank not in program.untraced:
            spans = {number: end_ns - begin_ns for number, begin_ns, end_ns in steps(record)}
            for (step, stream), (waited_ns, empty_ns) in queues(record).items():
                if spans[step]:
                    found[record.rank, step, stream] = waited_ns / spans[step], empty_ns / spans[step]
    return found


def test_the_queues_of_the_named_programs_are_the_truth(tmp_path: Path) -> None:
    for number, program in enumerate(PROGRAMS.values()):
        assert measured(program, tmp_path / str(number)) == true_queues(program)


@pytest.mark.slow
@settings(max_examples=60)
@given(programs())
def test_the_queues_of_a_random_program_are_the_truth(program: Program) -> None:
    with TemporaryDirectory() as folder:
        assert measured(program, Path(folder)) == true_queues(program)


def test_a_queue_computed_by_hand() -> None:
    """Four kernels of 50 us, launched at 0, 1, 2 and 3 us, start at 3, 53, 103 and 153 us. Step 2 begins at 103 us.

    In step 1, they wait 3, 52, 101 and 100 us; in step 2, the last one waits 50 of 100 us.
    """
    program = PROGRAMS["device bound"]
    (record,) = execute(program)
    assert queues(record) == {(1, 7): (256 * US, 0), (2, 7): (50 * US, 50 * US)}


def test_without_steps_the_queue_is_that_of_the_whole_trace() -> None:
    """Kernels at 10-20 and 20-50, launched at 0 and 5: the second one waits for 10 of 40 ns from the first start on."""
    rows = [launch(0, 1), launch(5, 2), kernel("gemm", 10, 20, of=1), kernel("gemm", 20, 50, of=2)]
    (queue,) = of_trace(trace(*rows))
    assert (queue.computes, queue.num_works, queue.span_ns, queue.steps) == (True, 2, 40, ())
    assert (queue.mean, queue.empty_ratio, queue.reason) == (10 / 40, 30 / 40, None)


def test_a_queue_is_unknown_if_the_trace_lacks_launches() -> None:
    """The second kernel's launch is missing, although it was not queued before the trace."""
    (queue,) = of_trace(trace(launch(0, 1), kernel("gemm", 10, 20, of=1), kernel("gemm", 20, 50)))
    assert (queue.num_unlaunched, queue.mean, queue.empty_ratio, queue.steps) == (1, None, None, ())
    assert queue.reason is not None
    assert queue.reason.startswith("the trace lacks the launches of 50.0 % of the stream's works")


def test_a_work_that_was_queued_before_the_trace_waits_from_its_begin() -> None:
    """The trace begins at 5 with a launch; the first kernel, at 10, has none and waits until then."""
    rows = [launch(5, 1), kernel("gemm", 10, 20), kernel("gemm", 20, 50, of=1)]
    (queue,) = of_trace(trace(*rows))
    assert (queue.num_unlaunched, queue.mean) == (0, 10 / 40)


def idle_after(launched_us: int) -> Analysis:
    """A step of 200 us: kernels at 10-50 and 150-200 us. The second one is launched at `launched_us`."""
    rows = [
        operator("ProfilerStep#1", 0, 200 * US),
        launch(5 * US, 1),
        launch(launched_us * US, 2),
        kernel("gemm", 10 * US, 50 * US, of=1),
        kernel("gemm", 150 * US, 200 * US, of=2),
    ]
    card = traced(trace(*rows))
    return analyze(replace(build_timeline(with_device_records(card.run, card.traces.ranks)), traces=card.traces))


def test_a_gap_before_a_late_launch_is_by_the_host() -> None:
    analysis = idle_after(140)
    (finding,) = [each for each in analysis.verdict if each.kind is FindingKind.LAUNCH_GAP]
    assert (finding.estimated_gain_ratio, finding.gain_at_most) == (pytest.approx((10 + 100) / 200), True)
    assert finding.advice.startswith("Launch fewer and larger kernels")
    assert analysis.ledger.total("kernel_wait") == 0


def test_a_gap_before_a_work_that_is_queued_already_is_not_by_the_host() -> None:
    """The stream idles for 100 us although its next kernel was launched 30 us before."""
    analysis = idle_after(20)
    (finding,) = [each for each in analysis.verdict if each.kind is FindingKind.KERNEL_WAIT]
    assert (finding.confidence, finding.estimated_gain_ratio) == ("unknown", None)
    assert finding.evidence == "the GPUs idle for 50.0 % of step time although their next kernel is launched"
    assert (analysis.ledger.total("launch_gap"), analysis.ledger.total("kernel_wait")) == (10 * US, 100 * US)


def test_a_cut_trace_has_no_queue() -> None:
    assert of_trace(trace(launch(0, 1), kernel("gemm", 10, 20, of=1), lost="it ends early")) == ()
