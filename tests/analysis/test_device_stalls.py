"""What GPUs measured stands beside a ledger whose phases are the host's."""

from dataclasses import replace

from tests.timeline.build import Row, collective, group, rank, run, stall, step
from traincope.analysis import DeviceStall, analyze
from traincope.events import Flag
from traincope.report import to_document
from traincope.report.waterfall import on_device
from traincope.timeline import build_timeline

ON_GPUS = {"torch": "2.13.0+cu130", "cuda": "13.0", "nccl": "2.28.3"}
GROUPS = (group("fsdp", 0, 1), group("tp", 0, 1))


def on_gpu(start_ns: int, end_ns: int, *, at: int, of: int = 0) -> Row:
    """As the thread writes it that looks at the events."""
    call = collective(start_ns, end_ns, group=of, at=at)
    return replace(stall(call, start_ns, end_ns), flags=Flag.DEVICE, thread="thread-1")


STALLS = (on_gpu(10, 90, at=0), on_gpu(110, 140, at=1), on_gpu(150, 160, at=1, of=1), on_gpu(220, 225, at=2))


def found(versions: dict[str, str], *stalls: Row, uuid: str = "") -> tuple[DeviceStall, ...] | None:
    """Steps of 100 ns on two ranks; the first is left out of sums."""
    rows = [*(step(at, 100 * at, 100 * at + 100) for at in range(3)), *stalls]
    ranks = [rank(number, *rows, groups=GROUPS) for number in (0, 1)]
    device = {"name": "a GPU"} | ({"uuid": uuid} if uuid else {})
    made = run(*(replace(one, info=replace(one.info, device=device)) for one in ranks))
    made = replace(made, info=replace(made.info, versions=versions))
    analysis = analyze(build_timeline(made))
    ledger = to_document(analysis)["ledger"]
    assert ledger is not None
    assert sum(ns or 0 for ns in ledger["terms"].values()) == ledger["wall_ns"] == 400, "they are in no term"
    told = ledger["device_stalls"]
    assert (told is None) == (analysis.device_stalls is None)
    assert [one["ratio"] for one in told or ()] == ([70 / 400, 20 / 400] if analysis.device_stalls else [])
    return analysis.device_stalls


def test_stalls_of_compute_streams_are_summed_by_axis_over_counted_steps() -> None:
    fsdp, tp = DeviceStall(axis="fsdp", count=4, total_ns=70), DeviceStall(axis="tp", count=2, total_ns=20)
    assert found(ON_GPUS, *STALLS) == (fsdp, tp)


def test_where_waits_are_on_the_host_the_ledger_has_all() -> None:
    assert found({"torch": "2.13.0+cpu"}) is None
    assert found(ON_GPUS | {"nccl": "not used"}) is None


def test_a_gpu_that_was_used_had_none_and_one_that_was_not_says_nothing() -> None:
    assert found(ON_GPUS, uuid="GPU-1") == ()
    assert found(ON_GPUS) is None


def test_in_words() -> None:
    stalls = [
        {"axis": "fsdp", "count": 4, "total_ns": 8_000_000, "ratio": 0.04},
        {"axis": "tp", "count": 2, "total_ns": 2_000, "ratio": 0.01},
    ]
    said = "their compute streams stood still a step for communication: fsdp 2.00 ms (4.0 %), tp 500 ns (1.0 %)"
    assert on_device(stalls, rank_steps=4).endswith(said)  # type: ignore[arg-type]
    assert "was not recorded" in on_device([], rank_steps=4)
