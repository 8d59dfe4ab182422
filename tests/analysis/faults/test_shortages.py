"""Post-mortems of ranks that ran out of memory, by messages of torch and readings made by hand."""

from dataclasses import replace

import pytest

from tests.analysis.memory.test_split import gpu
from tests.timeline.build import Row, group, rank, step, timeline
from traincope.analysis import Analysis, analyze
from traincope.analysis.faults.shortages import OutOfMemory
from traincope.events import HELD, Kind, Phase
from traincope.store import LauncherNote
from traincope.topology import Group

GIB, MIB = 1 << 30, 1 << 20
ON_GPU = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.50 GiB is "
    "free. Including non-PyTorch memory, this process has 78.50 GiB memory in use. Of the allocated memory "
    "{allocated}.00 GiB is allocated by PyTorch, and {unused}.00 GiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management"
)
ON_CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "17592186044416 bytes. Error code 12 (Cannot allocate memory)"
)
DP = group("dp", *range(8))
Held = tuple[int, int, int, int]


def failed(
    *readings: list[Row],
    message: str,
    device: dict[str, str | int] | None = None,
    groups: tuple[Group, ...] = (),
    kind: str = "OutOfMemoryError",
) -> Analysis:
    raised = Row(kind=Kind.EVENT, start_ns=900, end_ns=900, name="exception", group=1, step=9)
    rows = [row for each in readings for row in each]
    records = rank(0, step(8, 0, 100), *rows, raised, ending=kind, groups=groups)
    details = {1: {"type": kind, "message": message, "at": "model.py:7", "out_of_memory": True}}
    info = replace(records.info, device=device or {"uuid": "GPU-1", "memory_bytes": 1 << 40})
    return analyze(timeline(replace(records, details=details, info=info)))


def on_gpu(*, early: tuple[int, Held], last: tuple[int, Held], reserved: int = 78, unused: int = 1) -> Analysis:
    """GiB that are allocated, and held: after forward in step 1, and in forward when the rank failed."""
    scaled = [tuple(GIB * each for each in held) for _, held in (early, last)]
    first, second = ((h[0], h[1], h[2], h[3]) for h in scaled)
    return failed(
        gpu(10, Phase.NONE, sum(first), reserved * GIB, first, at=1),
        gpu(20, Phase.FORWARD, early[0] * GIB, reserved * GIB, first, at=1),
        gpu(800, Phase.FORWARD, last[0] * GIB, reserved * GIB, second, at=9),
        message=ON_GPU.format(allocated=last[0], unused=unused),
        groups=(DP,),
    )


def the(analysis: Analysis) -> OutOfMemory:
    (short,) = analysis.out_of_memory
    return short


def test_activations_that_grew_are_named_with_what_recomputation_saves() -> None:
    """40 of 70 GiB are activations, 20 more than at first."""
    states = (6, 0, 24, 0)
    analysis = on_gpu(early=(50, states), last=(70, states), unused=1)
    short = the(analysis)
    assert (short.request_bytes, short.limit_bytes, short.free_bytes) == (2 * GIB, 80 * GIB, GIB * 3 // 2)
    assert (short.phase, short.step) == ("forward", None)
    assert (short.use, short.grown_bytes) == ("activations", 20 * GIB)
    assert short.split is not None
    assert short.split.parts == {
        "parameters": 6 * GIB,
        "gradients": 0,
        "optimizer state": 24 * GIB,
        "communication buffers": 0,
        "activations": 40 * GIB,
        "fragmentation": GIB,
        "unknown": 0,
    }
    assert "they fall to 20.0 GiB" in short.remedy.text
    finding = analysis.verdict[0]
    assert (finding.kind, finding.ranks) == ("failed_rank", (0,))
    assert "it asked for 2.0 GiB of a memory of 80.0 GiB, 1.5 GiB free" in finding.evidence
    assert "in forward, of 71.0 GiB reserved: activations 40.0 GiB, optimizer state 24.0 GiB" in finding.evidence
    assert "activations grew by 20.0 GiB since the first steps" in finding.evidence
    assert finding.advice == short.remedy.text
    (fault,) = (fault for fault in analysis.faults if fault.is_fault)
    assert fault.kind == "out_of_memory"


def test_the_largest_use_is_named_if_none_grew() -> None:
    """ZeRO stage 1 over 8 replicas: 60 GiB of optimizer state fall to 7.5."""
    short = the(on_gpu(early=(77, (6, 6, 60, 0)), last=(77, (6, 6, 60, 0))))
    assert (short.use, short.grown_bytes, short.remedy.saved_bytes) == ("optimizer state", None, 60 * GIB * 7 // 8)
    assert "over the 8 ranks of dp: by formula it falls from 60.0 GiB to 7.5 GiB per rank" in short.remedy.text


def test_fragmentation_that_would_hold_the_request_comes_first() -> None:
    short = the(on_gpu(early=(30, (6, 0, 24, 0)), last=(70, (6, 0, 24, 0)), unused=3))
    assert (short.use, short.remedy.saved_bytes) == ("fragmentation", 3 * GIB)
    assert "expandable_segments:True" in short.remedy.text


def test_tensors_that_pile_up_between_steps_are_a_leak() -> None:
    """At first 31 GiB are live between steps, 30 of them the model's. When it fails, 61."""
    held = (6 * GIB, 0, 24 * GIB, 0)
    short = the(
        failed(
            gpu(10, Phase.NONE, 31 * GIB, 78 * GIB, held, at=1),
            gpu(20, Phase.FORWARD, 40 * GIB, 78 * GIB, held, at=1),
            gpu(700, Phase.NONE, 61 * GIB, 78 * GIB, held, at=9),
            gpu(800, Phase.FORWARD, 70 * GIB, 78 * GIB, held, at=9),
            message=ON_GPU.format(allocated=70, unused=1),
        )
    )
    assert (short.use, short.grown_bytes, short.remedy.saved_bytes) == ("unknown", 30 * GIB, None)
    assert "Release tensors" in short.remedy.text


@pytest.mark.parametrize(
    ("message", "request_bytes"),
    [
        (ON_CPU, 1 << 44),
        ("Unable to allocate 16.0 TiB for an array with shape (1, 2) and data type float64", 1 << 44),
    ],
)
def test_a_request_larger_than_the_host_explains_itself(message: str, request_bytes: int) -> None:
    short = the(failed(message=message, device={"memory_bytes": 64 * GIB}, kind="MemoryError"))
    assert (short.request_bytes, short.limit_bytes, short.use) == (request_bytes, 64 * GIB, None)
    assert short.remedy.text.startswith("Ask for less than the 64.0 GiB")


def test_an_older_message_has_the_same_numbers() -> None:
    """Of torch before 2.1."""
    message = (
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.90 GiB total capacity; 14.50 GiB already "
        "allocated; 12.00 MiB free; 14.90 GiB reserved in total by PyTorch)"
    )
    short = the(failed(message=message))
    assert (short.request_bytes, short.free_bytes) == (20 * MIB, 12 * MIB)
    assert short.limit_bytes == round(15.9 * GIB)


def test_without_a_message_nothing_is_invented() -> None:
    short = the(failed(message=""))
    assert short.request_bytes is short.free_bytes is short.limit_bytes is short.split is short.use is None


def test_a_rank_that_the_kernel_killed_has_the_last_count() -> None:
    """Its host's memory was 90 % in use. The launcher saw signal 9."""
    readings = [
        Row(kind=Kind.MEMORY, start_ns=at, end_ns=at, name=str(name), value=value, step=1)
        for at in (10, 20)
        for name, value in (
            ("resident", 9_000),
            *zip(HELD, (10, 0, 20, 0), strict=True),
        )
    ]
    records = rank(0, step(8, 0, 100), *readings, ending=None)
    records = replace(records, info=replace(records.info, device={"memory_bytes": 10_000}))
    of_run = timeline(records).run
    note = LauncherNote(attempt=0, rank=0, exit_code=-9, first=True, at_wall_ns=1)
    analysis = analyze(replace(timeline(records), run=replace(of_run, launcher=(note,))))
    short = the(analysis)
    assert (short.by_kernel, short.request_bytes, short.use) == (True, None, None)
    assert short.remedy.text == "Use a smaller microbatch. It is not known what most of the memory is used for."
    assert "at the last count, of 8.8 KiB resident: unknown 8.8 KiB" in analysis.verdict[0].evidence


def test_another_error_has_no_post_mortem() -> None:
    records = rank(0, step(0, 0, 100), ending="ValueError")
    assert analyze(timeline(records)).out_of_memory == ()


def test_no_remedy_is_advised_that_the_training_has_already() -> None:
    """Blocks are recomputed, or segments are expandable: by the records, and by the environment of the run."""
    again = [Row(kind=Kind.PHASE, phase=Phase.RECOMPUTE, start_ns=30, end_ns=40, step=1)]
    states = (6 * GIB, 0, 24 * GIB, 0)
    short = the(
        failed(
            again,
            gpu(20, Phase.FORWARD, 50 * GIB, 78 * GIB, states, at=1),
            gpu(800, Phase.FORWARD, 70 * GIB, 78 * GIB, states, at=9),
            message=ON_GPU.format(allocated=70, unused=1),
        )
    )
    assert short.use == "activations"
    assert short.remedy.text.startswith("Halve the microbatch: activations fall from 40.0 GiB to 20.0 GiB")
    timeline = on_gpu(early=(30, (6, 0, 24, 0)), last=(70, (6, 0, 24, 0)), unused=3).timeline
    info = replace(timeline.run.info, environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    expandable = the(analyze(replace(timeline, run=replace(timeline.run, info=info))))
    assert (expandable.use, expandable.remedy.saved_bytes) == ("fragmentation", None)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in expandable.remedy.text
