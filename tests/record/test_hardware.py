"""Faults of a GPU become events: the real `pynvml` over a driver's library that plays a script."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from traincope.analysis.faults import FaultKind
from traincope.analysis.hardware import hardware_faults
from traincope.events import CLEAN, Kind
from traincope.record.hardware import NO_DRIVER, NO_GPU, gpu_in_use
from traincope.record.surroundings import devices
from traincope.record.xids import meaning
from traincope.store import RankRecords, read_run
from traincope.timeline import open_run

STUB = Path(__file__).with_name("nvml_stub.c")
GPU = "00000000-0000-0000-0000-000000000001"
INSTANCE = "00000000-0000-0000-0000-000000000002"

POWER_CAP, SLOWDOWN, THERMAL, IDLE = 0x04, 0x08, 0x40, 0x01

RECORDING = """
import os, pathlib, sys, threading, time
import traincope
from traincope.record import hardware, nvml, run as running

out, script, uuid, until, sets = sys.argv[1:]
hardware.LOOK_SECONDS = hardware.WAIT_SECONDS = 0.005
exec(sets)
running.make_hooks = lambda: (hardware.Hardware(find_gpu=lambda: uuid or None),)
log = pathlib.Path(script, "log")

def wait():
    while not (log.exists() and until in log.read_text()):
        time.sleep(0.005)

with traincope.run(out) as run:
    run.step()
    if until:
        wait()
    run.step()
    if "FORK" in os.environ:
        if os.fork():
            assert os.wait()[1] == 0
        else:
            assert threading.active_count() == 1
"""

LOOKING = """
import json, sys
from traincope.record import measures, nvml

gpu = nvml.Gpu.open(nvml.load(), sys.argv[1])
throttling = measures.Throttling()
print(json.dumps([throttling.look(gpu, second * 10**9) for second in (10, 11, 14, 20, 28)]))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a `libnvidia-ml.so.1`."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: the GPU's events are NOT tested")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the pretended driver: the GPU's events are NOT tested")
    folder = tmp_path_factory.mktemp("nvml")
    command = [compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(STUB)]
    subprocess.run(command, check=True, timeout=60)
    return folder


@dataclass(frozen=True, kw_only=True)
class Line:
    """What the GPU says at one look."""

    reasons: int = IDLE
    corrected: int = 0
    uncorrected: int = 0
    rows: tuple[int, int] = (0, 0)
    pending: int = 0
    failure: int = 0
    xid: int = 0
    gone: int = 0

    def text(self) -> str:
        counts = (self.reasons, self.corrected, self.uncorrected, *self.rows, self.pending, self.failure)
        return " ".join(map(str, (*counts, self.xid, self.gone)))


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a run of one script left."""

    rank: RankRecords
    calls: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        return self.rank.info.probes["hardware"]

    @property
    def happened(self) -> list[tuple[str, dict[str, Any]]]:
        """The events without when they were seen."""
        return [
            (name, {key: value for key, value in told.items() if key not in ("gpu", *TIMES)})
            for name, told in self.events
        ]

    @property
    def readings(self) -> dict[str, set[int]]:
        """What the training's thread wrote of them."""
        main = self.rank.thread("main")
        read = main[main["kind"] == Kind.GPU]
        return {
            self.rank.name(at): set(read["value"][read["name"] == at].tolist()) for at in set(read["name"].tolist())
        }

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        records = [record for thread in self.rank.threads for record in self.rank.thread(thread)]
        events = sorted((r for r in records if r["kind"] == Kind.EVENT), key=lambda r: int(r["start_ns"]))
        return [(self.rank.name(int(event["name"])), dict(self.rank.details[int(event["group"])])) for event in events]


TIMES = ("seen_within_seconds", "lasted_seconds")


class Play:
    """Runs the program above over a script."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"LD_LIBRARY_PATH": str(library), "NVML_STUB": str(folder)}

    def __call__(
        self,
        *lines: Line,
        uuid: str = GPU,
        refuse: str = "",
        until: str = "beyond",
        sets: str = "",
        **environment: str,
    ) -> Recorded:
        """`until`: what the log says when the run may end; `sets`: Python that sets constants of ours."""
        self.write(lines)
        out = self.folder / "run"
        subprocess.run(
            [sys.executable, "-W", "error", "-c", RECORDING, str(out), str(self.folder), uuid, until, sets],
            check=True,
            timeout=60,
            env=self.environment | environment | {"NVML_STUB_REFUSE": refuse},
        )
        (rank,) = read_run(out).ranks
        log = self.folder / "log"
        calls = log.read_text().splitlines() if log.exists() else []
        assert rank.info.ending == CLEAN
        return Recorded(rank=rank, calls=calls)

    def write(self, lines: tuple[Line, ...]) -> None:
        (self.folder / "script").write_text("".join(f"{line.text()}\n" for line in lines))


@pytest.fixture
def play(library: Path, tmp_path: Path) -> Play:
    return Play(library, tmp_path)


def test_what_slows_or_breaks_a_gpu_is_told_once_and_in_order_beside_its_readings(
    play: Play,
) -> None:
    played = play(
        Line(corrected=7),
        Line(corrected=7, reasons=POWER_CAP | IDLE),
        Line(corrected=9, reasons=POWER_CAP, xid=92),
        Line(corrected=9, uncorrected=1, rows=(0, 1), pending=1, xid=48),
        Line(corrected=9, uncorrected=1, rows=(0, 1), pending=1),
    )
    assert played.happened == [
        ("gpu throttled", {"reasons": ["software power cap"]}),
        ("gpu ecc error", {"corrected": 2, "uncorrected": 0}),
        ("gpu xid", {"xid": 92, "meaning": "high rate of corrected (single bit) ECC errors"}),
        ("gpu not throttled", {"reasons": ["software power cap"]}),
        ("gpu ecc error", {"corrected": 0, "uncorrected": 1}),
        ("gpu rows remapped", {"corrected": 0, "uncorrected": 1, "pending": True, "failure": False}),
        ("gpu xid", {"xid": 48, "meaning": "uncorrectable (double bit) ECC error"}),
    ]
    assert {told["gpu"] for _, told in played.events} == {f"GPU-{GPU}"}
    assert played.readings == {"power": {612_500}, "SM clock": {1_755}, "temperature": {61}, "utilization": {97}}
    assert played.state == "on"


SLOW_LOOK = """
look = hardware._Watch._look
def slow_look(*told):
    until = time.thread_time_ns() + 5_000_000
    while time.thread_time_ns() < until:
        pass
    return look(*told)
hardware._Watch._look = slow_look
"""


def test_what_looking_costs_is_in_the_step_in_which_it_looked(play: Play) -> None:
    """Of three looks or more, each by itself; the last one of the step may not be over when that is."""
    played = play(Line(), Line(), Line(), sets=SLOW_LOOK)
    main = played.rank.thread("main")
    first, _ = main[main["kind"] == Kind.STEP]
    assert first["value"] >= 2 * 5_000_000


def test_what_is_recorded_the_report_tells_as_faults_and_marks(play: Play) -> None:
    play(
        Line(),
        Line(reasons=POWER_CAP, corrected=1),
        Line(reasons=THERMAL, corrected=1, uncorrected=1, rows=(0, 1), pending=1, xid=94),
        Line(gone=1),
        until="shutdown",
    )
    told = hardware_faults(open_run(play.folder / "run"))
    assert Counter(fault.kind for fault in told) == Counter(
        [
            FaultKind.POWER_CAPPED,
            FaultKind.ECC_CORRECTED,
            FaultKind.THROTTLED,
            FaultKind.ECC_ERROR,
            FaultKind.ROWS_REMAPPED,
            FaultKind.XID,
            FaultKind.GPU_LOST,
        ]
    )


def test_every_reason_lasts_from_the_look_that_finds_it_to_the_one_that_does_not(play: Play) -> None:
    """Looked at in seconds 10, 11, 14, 20 and 28."""
    reasons = (IDLE, POWER_CAP, POWER_CAP | SLOWDOWN | THERMAL, SLOWDOWN | THERMAL, IDLE)
    play.write(tuple(Line(reasons=bits) for bits in reasons))
    command = [sys.executable, "-c", LOOKING, GPU]
    printed = subprocess.run(command, check=True, timeout=60, env=play.environment, capture_output=True, text=True)
    hot = ["hardware slowdown", "hardware thermal slowdown"]
    assert json.loads(printed.stdout) == [
        [],
        [["gpu throttled", {"reasons": ["software power cap"]}]],
        [["gpu throttled", {"reasons": hot}]],
        [["gpu not throttled", {"reasons": ["software power cap"], "lasted_seconds": 9.0}]],
        [["gpu not throttled", {"reasons": hot, "lasted_seconds": 14.0}]],
    ]


def test_what_was_so_before_the_first_look_is_told_without_a_claim_when_it_began(play: Play) -> None:
    first, second = play(Line(reasons=THERMAL, failure=1, corrected=5), Line(reasons=THERMAL, failure=1)).events
    assert first == ("gpu throttled", {"reasons": ["hardware thermal slowdown"], "gpu": f"GPU-{GPU}"})
    assert second[0] == "gpu rows remapped"
    assert "seen_within_seconds" not in second[1]


def test_what_happens_later_says_how_late_it_was_seen_at_most(play: Play) -> None:
    ((_, told),) = play(Line(), Line(reasons=POWER_CAP)).events
    assert told["seen_within_seconds"] > 0


def test_the_last_look_at_the_end_sees_what_may_have_ended_the_training(play: Play) -> None:
    """Without it there would be no second look for an hour."""
    late = "hardware.LOOK_SECONDS = 3600; hardware.WAIT_SECONDS = 0.005"
    played = play(Line(), Line(uncorrected=1, xid=94), until="line 0", sets=late)
    assert [name for name, _ in played.happened] == ["gpu ecc error", "gpu xid"]


def test_what_nvml_does_not_support_is_off_alone_and_said(play: Play) -> None:
    refuse = "nvmlDeviceGetTotalEccErrors=3,nvmlDeviceGetRemappedRows=3,nvmlEventSetCreate=4"
    played = play(Line(), Line(reasons=SLOWDOWN, corrected=1), refuse=refuse)
    assert played.happened == [("gpu throttled", {"reasons": ["hardware slowdown"]})]
    assert played.state == (
        "on, without XIDs (Insufficient Permissions), ECC errors (Not Supported), row remapping (Not Supported)"
    )


def test_a_driver_that_knows_only_the_old_name_of_the_reasons_is_asked_by_it(play: Play) -> None:
    played = play(Line(), Line(reasons=SLOWDOWN), refuse="nvmlDeviceGetCurrentClocksEventReasons=13")
    assert played.happened == [("gpu throttled", {"reasons": ["hardware slowdown"]})]
    assert played.state == "on"


def test_a_gpu_that_falls_off_the_bus_is_told_once_and_asked_no_more(play: Play) -> None:
    played = play(Line(xid=79), Line(gone=1), until="shutdown")
    assert played.happened == [
        ("gpu xid", {"xid": 79, "meaning": "the GPU has fallen off the bus"}),
        ("gpu lost", {"why": "GPU is lost"}),
    ]
    lost = "(GPU is lost)"
    assert (
        played.state
        == f"absent: no throttling {lost}, ECC errors {lost}, row remapping {lost}, readings {lost}, XIDs {lost}"
    )


@pytest.mark.parametrize(
    ("uuid", "refuse", "why", "calls"),
    [
        ("another", "", "Not Found", ["init", "shutdown"]),
        (GPU, "nvmlInitWithFlags=9", "Driver Not Loaded", []),
    ],
)
def test_a_gpu_or_driver_that_nvml_does_not_find_is_absent(
    play: Play, uuid: str, refuse: str, why: str, calls: list[str]
) -> None:
    played = play(Line(), uuid=uuid, refuse=refuse, until=calls[-1] if calls else "")
    assert played.state == f"absent: NVML refuses: {why}"
    assert [call.split()[0] for call in played.calls] == calls


def test_of_a_mig_instance_the_gpu_it_is_a_part_of_is_watched_and_the_events_say_so(play: Play) -> None:
    """Which tells no utilization then."""
    played = play(Line(), Line(reasons=SLOWDOWN), uuid=INSTANCE, refuse="nvmlDeviceGetUtilizationRates=3")
    ((_, told),) = played.events
    assert told["gpu"] == f"GPU-{GPU}"
    assert played.readings.keys() == {"power", "SM clock", "temperature"}
    assert told["of"] == "the whole GPU, shared in MIG mode"


def test_while_no_gpu_is_in_use_nvml_is_not_even_started(play: Play) -> None:
    played = play(Line(), uuid="", until="")
    assert (played.state, played.calls, played.happened) == (NO_GPU, [], [])


def test_a_forked_child_has_no_thread_and_leaves_nvml_to_its_parent(play: Play) -> None:
    played = play(Line(), Line(reasons=SLOWDOWN), FORK="1")
    balance = [call for call in played.calls if not call.startswith(("line", "beyond"))]
    pid = played.rank.info.pid
    assert balance == [f"init {pid}", f"free {pid}", f"shutdown {pid}"]


def test_a_driver_that_hangs_delays_the_end_no_longer_than_we_wait_for_it(play: Play) -> None:
    """The call never returns; that this test does is the proof."""
    played = play(Line(), refuse="nvmlDeviceGetTotalEccErrors=hang", until="hangs", sets="hardware.JOIN_SECONDS = 0.05")
    assert played.happened == []
    assert not [call for call in played.calls if call.startswith("shutdown")]


@pytest.mark.parametrize(
    ("sets", "state"),
    [
        ("nvml.LIBRARY = 'libnone.so.1'; nvml.DRIVER = pathlib.Path('/none')", NO_DRIVER),
        (
            "nvml.LIBRARY = 'libnone.so.1'; nvml.DRIVER = pathlib.Path('/')",
            "absent: FileNotFoundError: libnone.so.1 is missing beside an NVIDIA driver; "
            "in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        (
            "sys.modules['pynvml'] = None",
            "absent: ImportError: nvidia-ml-py is not installed: pip install 'traincope[gpu]'",
        ),
    ],
)
def test_where_a_part_is_missing_the_probe_says_which_and_what_to_do(play: Play, sets: str, state: str) -> None:
    assert play(Line(), until="", sets=sets).state == state


def cuda(*reserved: int | None, initialized: bool = True) -> Any:
    """`torch.cuda` with these bytes on its devices, the last of which is the current one."""

    def memory_reserved(device: int) -> int:
        found = reserved[device]
        if found is None:
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
        return found

    return SimpleNamespace(
        is_initialized=lambda: initialized,
        device_count=lambda: len(reserved),
        current_device=lambda: len(reserved) - 1,
        memory_reserved=memory_reserved,
        get_device_properties=lambda device: SimpleNamespace(uuid=f"uuid of {device}"),
    )


@pytest.mark.parametrize(
    ("torch_cuda", "uuid"),
    [
        (cuda(2, 512, 0), "uuid of 1"),
        (cuda(0, 0), None),
        (cuda(512, initialized=False), None),
        (cuda(None, None, None), "uuid of 2"),
    ],
)
def test_the_gpu_in_use_is_the_one_that_holds_most_tensors(torch_cuda: Any, uuid: str | None) -> None:
    assert gpu_in_use(torch_cuda) == uuid


def test_a_rank_says_which_gpu_it_trains_on_once_it_holds_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(torch_cuda: Any) -> dict[str, str | int]:
        torch_cuda.get_device_name = lambda: "NVIDIA H200"
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=torch_cuda))
        return {name: value for name, value in devices().items() if name != "memory_bytes"}

    assert told(cuda(0, 512)) == {"name": "NVIDIA H200", "count": 2, "uuid": "uuid of 1"}
    assert told(cuda(0, 0)) == {"name": "NVIDIA H200", "count": 2}
    without_uuids = cuda(512)
    without_uuids.get_device_properties = lambda _: SimpleNamespace()
    assert told(without_uuids) == {"name": "NVIDIA H200", "count": 1}


def test_an_xid_that_is_not_in_the_table_says_where_to_look() -> None:
    assert meaning(31) == "GPU memory page fault; mostly the program: an illegal address"
    assert meaning(9999) == "see NVIDIA's XID catalogue"
