"""GPU metrics: the real `pynvml` with a scripted driver library (`tests/record/nvml_stub.c`)."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.live.windows import ranks, statuses
from tests.record.gpu.test_hardware import GPU, IDLE, INSTANCE, SLOWDOWN, THERMAL, Line, Play, library, play
from traincope.live.metrics.hardware import Gpus

__all__ = ["library", "play"]

LOOKING = """
import json, sys
from dataclasses import replace
from tests.live.windows import ranks, statuses
from traincope.live.metrics.hardware import Gpus
from traincope.live.window import RankState

alive = statuses(ranks(0, device={"name": "H100", "uuid": sys.argv[1]}))[:1]
gpus = Gpus()
for _ in range(int(sys.argv[2])):
    print(json.dumps([[*key, value] for key, value in gpus.look(alive).items()]))
assert gpus.look([replace(alive[0], state=RankState.GONE)]) == {}
gpus.close()
"""

WATCHING = """
import pathlib, sys, time
from tests.live.windows import ranks, statuses
from traincope.live.metrics import hardware

uuid, until, log = sys.argv[1:]
hardware.JOIN_SECONDS = 0.05 if until == "hangs" else 30
watch = hardware.Watcher(hardware.Gpus(), "gpus")
alive = statuses(ranks(0, device={"name": "H100", "uuid": uuid}))[:1]
assert watch.latest() == {}
watch.request(alive)
while until not in pathlib.Path(log).read_text():
    time.sleep(0.005)
if until != "hangs":
    while not watch.latest():
        time.sleep(0.005)
    hardware.STALE_NS = 0
assert watch.latest() == {}
watch.stop()
print("stopped")
"""

Values = dict[tuple[str, ...], float]
LABELS = ("0", f"GPU-{GPU}")


@pytest.fixture
def look(play: Play) -> Callable[..., list[Values]]:
    def looking(*lines: Line, uuid: str = GPU, refuse: str = "", times: int | None = None) -> list[Values]:
        """Look once per line."""
        play.write(lines)
        command = [sys.executable, "-W", "error", "-c", LOOKING, uuid, str(times or len(lines))]
        environment = play.environment | {"NVML_STUB_REFUSE": refuse}
        printed = subprocess.run(command, check=True, timeout=150, env=environment, capture_output=True, text=True)
        looks = (json.loads(line) for line in printed.stdout.splitlines())
        return [{(name, *labels): value for name, labels, value in values_of_look} for values_of_look in looks]

    return looking


def test_gpu_metrics_are_in_base_units(look: Callable[..., list[Values]]) -> None:
    both = Line(reasons=SLOWDOWN | THERMAL, corrected=3)
    first, second, third = look(Line(reasons=IDLE, corrected=3), both, Line(reasons=SLOWDOWN, uncorrected=1))
    assert first == {
        ("gpu.ecc.errors", *LABELS, "corrected"): 3,
        ("gpu.ecc.errors", *LABELS, "uncorrected"): 0,
        ("gpu.power", *LABELS): 612.5,
        ("gpu.energy", LABELS[1]): 5_000_000_000.001,
        ("gpu.sm.clock", *LABELS): 1.755e9,
        ("gpu.temperature", *LABELS): 61,
        ("gpu.nvlink.errors", *LABELS): 21 + 2**40,
    }
    throttled = ("gpu.throttled", *LABELS)
    reasons = {(*throttled, "hardware slowdown"), (*throttled, "hardware thermal slowdown")}
    assert {key: value for key, value in second.items() if key[0] == throttled[0]} == dict.fromkeys(reasons, 1)
    assert (third[*throttled, "hardware slowdown"], third[*throttled, "hardware thermal slowdown"]) == (1, 0)


def test_a_metric_that_nvml_refuses_has_no_series(look: Callable[..., list[Values]]) -> None:
    refuse = "nvmlDeviceGetTotalEccErrors=3,nvmlDeviceGetFieldValues=3"
    (sample_table,) = look(Line(), refuse=refuse)
    assert {key[0] for key in sample_table} == {"gpu.power", "gpu.energy", "gpu.sm.clock", "gpu.temperature"}


def test_the_energy_of_a_shared_gpu_is_not_that_of_the_rank(look: Callable[..., list[Values]]) -> None:
    (sample_table,) = look(Line(), uuid=INSTANCE)
    assert ("gpu.power", *LABELS) in sample_table
    assert "gpu.energy" not in {key[0] for key in sample_table}


def test_a_lost_gpu_has_no_metrics(look: Callable[..., list[Values]]) -> None:
    first, _, third = look(Line(), Line(gone=1), times=3)
    assert ("gpu.power", *LABELS) in first
    assert third == {}


@pytest.mark.parametrize(("uuid", "refuse"), [("another", ""), (GPU, "nvmlInitWithFlags=9")])
def test_a_missing_gpu_or_driver_raises_nothing(look: Callable[..., list[Values]], uuid: str, refuse: str) -> None:
    assert look(Line(), uuid=uuid, refuse=refuse) == [{}]


@pytest.mark.parametrize(("refuse", "until"), [("", "line 0"), ("nvmlDeviceGetPowerUsage=hang", "hangs")])
def test_a_hanging_driver_blocks_nothing_and_old_values_are_dropped(play: Play, refuse: str, until: str) -> None:
    """The driver call never returns. The test passes if it ends."""
    play.write((Line(),))
    log = play.folder / "log"
    log.touch()
    command = [sys.executable, "-W", "error", "-c", WATCHING, GPU, until, str(log)]
    environment = play.environment | {"NVML_STUB_REFUSE": refuse}
    printed = subprocess.run(command, check=True, timeout=150, env=environment, capture_output=True, text=True)
    assert printed.stdout == "stopped\n"
    assert ("shutdown" in log.read_text()) == (until != "hangs")


def test_without_driver_or_gpu_there_are_no_metrics() -> None:
    gpus = Gpus()
    assert gpus.look(statuses(ranks(0))) == {}
    assert gpus.look(statuses(ranks(0, device={"name": "H100", "uuid": GPU}))) == {}
    gpus.close()
