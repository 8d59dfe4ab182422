"""Stalls of GPU compute streams are reported in addition to the ledger of the host's phases."""

from dataclasses import replace

from tests.timeline.build import Row, collective, group, rank, run, stall, step
from traincope.analysis import DeviceStall, analyze
from traincope.events import Flag
from traincope.report.document.document import to_document
from traincope.timeline import build_timeline

ON_GPUS = {"torch": "2.13.0+cu130", "cuda": "13.0", "nccl": "2.28.3"}
GROUPS = (group("fsdp", 0, 1), group("tp", 0, 1))


def on_gpu(start_ns: int, end_ns: int, *, at: int, of: int = 0) -> Row:
    """Record a stall as the thread that polls the events writes it."""
    call = collective(start_ns, end_ns, group=of, at=at)
    return replace(stall(call, start_ns, end_ns), flags=Flag.DEVICE, thread="thread-1")


STALLS = (on_gpu(10, 90, at=0), on_gpu(110, 140, at=1), on_gpu(150, 160, at=1, of=1), on_gpu(220, 225, at=2))


def stalls_of(versions: dict[str, str], *stalls: Row, uuid: str = "") -> tuple[DeviceStall, ...] | None:
    """Compute the stalls of two ranks with steps of 100 ns, of which the first is excluded."""
    rows = [*(step(at, 100 * at, 100 * at + 100) for at in range(3)), *stalls]
    ranks = [rank(number, *rows, groups=GROUPS) for number in (0, 1)]
    device = {"name": "a GPU"} | ({"uuid": uuid} if uuid else {})
    run_records = run(*(replace(records, info=replace(records.info, device=device)) for records in ranks))
    run_records = replace(run_records, info=replace(run_records.info, versions=versions))
    analysis = analyze(build_timeline(run_records))
    ledger = to_document(analysis)["ledger"]
    assert ledger is not None
    assert sum(ns or 0 for ns in ledger["terms"].values()) == ledger["wall_ns"] == 400, "they are in no term"
    device_rows = ledger["device_stalls"]
    why = None if device_rows is None else "rank 0 has no marks on a compute stream"
    assert (ledger["clock"], ledger["host_clock_reason"]) == ("host", why)
    assert (device_rows is None) == (analysis.device_stalls is None)
    assert [records["ratio"] for records in device_rows or ()] == (
        [70 / 400, 20 / 400] if analysis.device_stalls else []
    )
    return analysis.device_stalls


def test_stalls_of_compute_streams_are_summed_by_axis_over_counted_steps() -> None:
    assert stalls_of(ON_GPUS, *STALLS) == (
        DeviceStall(axis="fsdp", count=4, total_ns=70, ratio=70 / 400),
        DeviceStall(axis="tp", count=2, total_ns=20, ratio=20 / 400),
    )


def test_device_stalls_are_none_if_waits_block_the_host() -> None:
    assert stalls_of({"torch": "2.13.0+cpu"}) is None
    assert stalls_of(ON_GPUS | {"nccl": "not used"}) is None


def test_a_used_gpu_without_stalls_has_an_empty_result() -> None:
    assert stalls_of(ON_GPUS, uuid="GPU-1") == ()
    assert stalls_of(ON_GPUS) is None
