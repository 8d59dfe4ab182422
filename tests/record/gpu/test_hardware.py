"""Faults of a GPU become events: the real `pynvml` on a driver library that plays a script."""

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

from traincope.analysis.faults.anomalies.hardware import hardware_faults
from traincope.analysis.faults.faults import FaultKind
from traincope.events import CLEAN, Kind
from traincope.record.gpu.hardware import NO_DRIVER, NO_GPU
from traincope.record.gpu.xids import meaning
from traincope.record.session.environment import current_gpu_is_in_use, devices, gpu_in_use
from traincope.store import RankRecords, read_run
from traincope.timeline import open_run

STUB = Path(__file__).with_name("nvml_stub.c")
GPU = "00000000-0000-0000-0000-000000000001"
INSTANCE = "00000000-0000-0000-0000-000000000002"

POWER_CAP, SLOWDOWN, THERMAL, IDLE = 0x04, 0x08, 0x40, 0x01

RECORDING = """
import os, pathlib, sys, threading, time
import traincope
from traincope.record import run as running
from traincope.record.gpu import hardware, nvml

out, script, uuid, until, sets = sys.argv[1:]
hardware.POLL_SECONDS = hardware.WAIT_SECONDS = 0.005
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
from traincope.record.gpu import measures, nvml

gpu = nvml.Gpu.open(nvml.load(), sys.argv[1])
throttling = measures.Throttling()
print(json.dumps([throttling.poll(gpu, second * 10**9) for second in (10, 11, 14, 20, 28)]))
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
    subprocess.run(command, check=True, timeout=150)
    return folder


@dataclass(frozen=True, kw_only=True)
class Line:
    """The GPU's state at one poll."""

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
    """The result of a run with one script."""

    rank: RankRecords
    calls: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        return self.rank.info.probes["hardware"]

    @property
    def happened(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the events without their times."""
        return [
            (name, {key: value for key, value in details.items() if key not in ("gpu", *TIMES)})
            for name, details in self.events
        ]

    @property
    def readings(self) -> dict[str, set[int]]:
        """Return the samples that the training's thread wrote."""
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
    """Run the program above with a script."""

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
        """`until`: text in the log after which the run may end. `sets`: Python that sets constants of the recorder."""
        self.write(lines)
        out = self.folder / "run"
        subprocess.run(
            [sys.executable, "-W", "error", "-c", RECORDING, str(out), str(self.folder), uuid, until, sets],
            check=True,
            timeout=150,
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


def test_throttling_and_faults_of_a_gpu_are_recorded_once_and_in_order(
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
    assert {details["gpu"] for _, details in played.events} == {f"GPU-{GPU}"}
    gauges = {"power": {612_500}, "SM clock": {1_755}, "temperature": {61}, "utilization": {97}}
    assert played.readings == gauges | {"energy": {5_000_000_000_001}}
    assert played.state == "on"


def test_samples_have_the_time_of_their_reading(play: Play) -> None:
    """They are written at the end of the step, and were read before the poll that shows the last line."""
    main = play(Line(), Line()).rank.thread("main")
    read, steps = main[main["kind"] == Kind.GPU], main[main["kind"] == Kind.STEP]
    last = read[read["step"] == steps["step"][-1]]
    assert len(set(last["start_ns"].tolist())) == 1
    assert steps["start_ns"][0] < last["start_ns"][0] < steps["end_ns"][-1]
    assert (read["end_ns"] == read["start_ns"]).all()


SLOW_POLL = """
poll = hardware._Watch._poll
def slow_poll(*arguments):
    until = time.thread_time_ns() + 5_000_000
    while time.thread_time_ns() < until:
        pass
    return poll(*arguments)
hardware._Watch._poll = slow_poll
"""


def test_the_cost_of_a_poll_counts_in_its_step(play: Play) -> None:
    """At least three polls, each counted by itself. The last one in a step may end after the step."""
    played = play(Line(), Line(), Line(), sets=SLOW_POLL)
    main = played.rank.thread("main")
    first, _ = main[main["kind"] == Kind.STEP]
    assert first["value"] >= 2 * 5_000_000


def test_hardware_events_become_faults_and_markers(play: Play) -> None:
    play(
        Line(),
        Line(reasons=POWER_CAP, corrected=1),
        Line(reasons=THERMAL, corrected=1, uncorrected=1, rows=(0, 1), pending=1, xid=94),
        Line(gone=1),
        until="shutdown",
    )
    details = hardware_faults(open_run(play.folder / "run"))
    assert Counter(fault.kind for fault in details) == Counter(
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


def test_throttling_lasts_from_the_first_poll_that_shows_it_to_the_first_that_does_not(play: Play) -> None:
    """Polled in seconds 10, 11, 14, 20 and 28."""
    reasons = (IDLE, POWER_CAP, POWER_CAP | SLOWDOWN | THERMAL, SLOWDOWN | THERMAL, IDLE)
    play.write(tuple(Line(reasons=bits) for bits in reasons))
    command = [sys.executable, "-c", LOOKING, GPU]
    printed = subprocess.run(command, check=True, timeout=150, env=play.environment, capture_output=True, text=True)
    hot = ["hardware slowdown", "hardware thermal slowdown"]
    assert json.loads(printed.stdout) == [
        [],
        [["gpu throttled", {"reasons": ["software power cap"]}]],
        [["gpu throttled", {"reasons": hot}]],
        [["gpu not throttled", {"reasons": ["software power cap"], "lasted_seconds": 9.0}]],
        [["gpu not throttled", {"reasons": hot, "lasted_seconds": 14.0}]],
    ]


def test_a_state_at_the_first_poll_is_recorded_without_a_start(play: Play) -> None:
    first, second = play(Line(reasons=THERMAL, failure=1, corrected=5), Line(reasons=THERMAL, failure=1)).events
    assert first == ("gpu throttled", {"reasons": ["hardware thermal slowdown"], "gpu": f"GPU-{GPU}"})
    assert second[0] == "gpu rows remapped"
    assert "seen_within_seconds" not in second[1]


def test_later_events_have_a_maximum_delay(play: Play) -> None:
    ((_, details),) = play(Line(), Line(reasons=POWER_CAP)).events
    assert details["seen_within_seconds"] > 0


def test_the_last_poll_sees_what_may_have_ended_the_training(play: Play) -> None:
    """Without it the second poll would come an hour later."""
    late = "hardware.POLL_SECONDS = 3600; hardware.WAIT_SECONDS = 0.005"
    played = play(Line(), Line(uncorrected=1, xid=94), until="line 0", sets=late)
    assert [name for name, _ in played.happened] == ["gpu ecc error", "gpu xid"]


def test_an_unsupported_measure_is_off_alone_and_reported(play: Play) -> None:
    refuse = "nvmlDeviceGetTotalEccErrors=3,nvmlDeviceGetRemappedRows=3,nvmlEventSetCreate=4"
    played = play(Line(), Line(reasons=SLOWDOWN, corrected=1), refuse=refuse)
    assert played.happened == [("gpu throttled", {"reasons": ["hardware slowdown"]})]
    assert played.state == (
        "on, without XIDs (Insufficient Permissions), ECC errors (Not Supported), row remapping (Not Supported)"
    )


def test_an_older_driver_is_queried_by_its_name_of_the_reasons(play: Play) -> None:
    played = play(Line(), Line(reasons=SLOWDOWN), refuse="nvmlDeviceGetCurrentClocksEventReasons=13")
    assert played.happened == [("gpu throttled", {"reasons": ["hardware slowdown"]})]
    assert played.state == "on"


def test_a_lost_gpu_is_reported_once_and_not_queried_again(play: Play) -> None:
    played = play(Line(xid=79), Line(gone=1), until="shutdown")
    assert played.happened == [
        ("gpu xid", {"xid": 79, "meaning": "the GPU has fallen off the bus"}),
        ("gpu lost", {"why": "GPU is lost"}),
    ]
    lost = "(GPU is lost)"
    assert (
        played.state == f"absent: no throttling {lost}, ECC errors {lost}, row remapping {lost}, "
        f"NVLink errors {lost}, readings {lost}, XIDs {lost}"
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


def test_for_a_mig_instance_the_whole_gpu_is_watched(play: Play) -> None:
    """In MIG mode it reports no utilization, and its energy is not this process's own."""
    played = play(Line(), Line(reasons=SLOWDOWN), uuid=INSTANCE, refuse="nvmlDeviceGetUtilizationRates=3")
    ((_, details),) = played.events
    assert details["gpu"] == f"GPU-{GPU}"
    assert played.readings.keys() == {"power", "SM clock", "temperature"}
    assert details["of"] == "the whole GPU, shared in MIG mode"


def test_nvml_is_not_started_while_no_gpu_is_in_use(play: Play) -> None:
    played = play(Line(), uuid="", until="")
    assert (played.state, played.calls, played.happened) == (NO_GPU, [], [])


def test_a_forked_child_has_no_thread_and_leaves_nvml_to_its_parent(play: Play) -> None:
    played = play(Line(), Line(reasons=SLOWDOWN), FORK="1")
    balance = [call for call in played.calls if not call.startswith(("line", "beyond"))]
    pid = played.rank.info.pid
    assert balance == [f"init {pid}", f"free {pid}", f"shutdown {pid}"]


def test_a_hanging_driver_delays_the_end_by_a_limited_time(play: Play) -> None:
    """The call never returns. The end of this test is the proof."""
    played = play(Line(), refuse="nvmlDeviceGetTotalEccErrors=hang", until="hangs", sets="hardware.JOIN_SECONDS = 0.05")
    assert played.happened == []
    assert not [call for call in played.calls if call.startswith("shutdown")]


@pytest.mark.parametrize(
    ("sets", "state"),
    [
        ("nvml.LIBRARY = 'libnone.so.1'; nvml.DRIVER = pathlib.Path('/none')", NO_DRIVER),
        (
            "nvml.LIBRARY = 'libnone.so.1'; nvml.DRIVER = pathlib.Path('/')",
            "absent: FileNotFoundError: libnone.so.1 is missing although an NVIDIA driver is installed; "
            "in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        (
            "sys.modules['pynvml'] = None",
            "absent: ImportError: nvidia-ml-py is not installed: pip install 'traincope[gpu]'",
        ),
    ],
)
def test_the_probe_names_a_missing_part_and_the_remedy(play: Play, sets: str, state: str) -> None:
    assert play(Line(), until="", sets=sets).state == state


def cuda(*reserved: int | None, initialized: bool = True) -> Any:
    """`torch.cuda` with these bytes on its devices, the last of which is the current one."""

    def memory_reserved(device: int) -> int:
        bytes_reserved = reserved[device]
        if bytes_reserved is None:
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
        return bytes_reserved

    return SimpleNamespace(
        is_initialized=lambda: initialized,
        device_count=lambda: len(reserved),
        current_device=lambda: len(reserved) - 1,
        memory_reserved=memory_reserved,
        get_device_properties=lambda device: SimpleNamespace(uuid=f"uuid of {device}"),
    )


@pytest.mark.parametrize(
    ("torch_cuda", "uuid", "is_current"),
    [
        (cuda(2, 512, 0), "uuid of 1", False),
        (cuda(2, 512, 1), "uuid of 1", False),
        (cuda(2, 512), "uuid of 1", True),
        (cuda(0, 0), None, False),
        (cuda(512, initialized=False), None, False),
        (cuda(None, None, None), "uuid of 2", True),
    ],
)
def test_the_gpu_in_use_is_the_one_that_holds_most_tensors(torch_cuda: Any, uuid: str | None, is_current: bool) -> None:
    assert gpu_in_use(torch_cuda) == uuid
    assert current_gpu_is_in_use(torch_cuda) == is_current


def test_a_rank_records_its_gpu_once_it_holds_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    def details(torch_cuda: Any) -> dict[str, str | int]:
        torch_cuda.get_device_name = lambda: "NVIDIA H200"
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=torch_cuda))
        return {name: value for name, value in devices().items() if name != "memory_bytes"}

    assert details(cuda(0, 512)) == {"name": "NVIDIA H200", "count": 2, "uuid": "uuid of 1"}
    assert details(cuda(0, 0)) == {"name": "NVIDIA H200", "count": 2}
    without_uuids = cuda(512)
    without_uuids.get_device_properties = lambda _: SimpleNamespace()
    assert details(without_uuids) == {"name": "NVIDIA H200", "count": 1}
    with_memory = cuda(0, 512)
    with_memory.get_device_properties = lambda index: SimpleNamespace(uuid="u", total_memory=1_000 + index)
    assert details(with_memory) == {"name": "NVIDIA H200", "count": 2, "uuid": "u", "gpu_memory_bytes": 1_001}


def test_an_unknown_xid_refers_to_the_catalogue() -> None:
    assert meaning(31) == "GPU memory page fault; mostly the program: an illegal address"
    assert meaning(9999) == "see NVIDIA's XID catalogue"
