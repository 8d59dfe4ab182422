"""What is said of GPUs: the real `pynvml` over a driver's library that plays a script (`tests/record/nvml_stub.c`)."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.live.windows import ranks, statuses
from tests.record.test_hardware import GPU, IDLE, SLOWDOWN, THERMAL, Line, Play, library, play
from traincope.live.hardware import Gpus

__all__ = ["library", "play"]

LOOKING = """
import json, sys
from dataclasses import replace
from tests.live.windows import ranks, statuses
from traincope.live.hardware import Gpus
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
from traincope.live import hardware

uuid, until, log = sys.argv[1:]
hardware.JOIN_SECONDS = 0.05 if until == "hangs" else 30
watch = hardware.Watch()
alive = statuses(ranks(0, device={"name": "H100", "uuid": uuid}))[:1]
assert watch.latest() == {}
watch.ask(alive)
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

Told = dict[tuple[str, ...], float]
LABELS = ("0", f"GPU-{GPU}")


@pytest.fixture
def look(play: Play) -> Callable[..., list[Told]]:
    def looking(*lines: Line, uuid: str = GPU, refuse: str = "", times: int | None = None) -> list[Told]:
        """One look a line."""
        play.write(lines)
        command = [sys.executable, "-W", "error", "-c", LOOKING, uuid, str(times or len(lines))]
        environment = play.environment | {"NVML_STUB_REFUSE": refuse}
        printed = subprocess.run(command, check=True, timeout=60, env=environment, capture_output=True, text=True)
        looks = (json.loads(line) for line in printed.stdout.splitlines())
        return [{(name, *labels): value for name, labels, value in one} for one in looks]

    return looking


def test_power_clock_temperature_errors_and_reasons_are_told_in_base_units(look: Callable[..., list[Told]]) -> None:
    both = Line(reasons=SLOWDOWN | THERMAL, corrected=3)
    first, second, third = look(Line(reasons=IDLE, corrected=3), both, Line(reasons=SLOWDOWN, uncorrected=1))
    assert first == {
        ("gpu.ecc.errors", *LABELS, "corrected"): 3,
        ("gpu.ecc.errors", *LABELS, "uncorrected"): 0,
        ("gpu.power", *LABELS): 612.5,
        ("gpu.sm.clock", *LABELS): 1.755e9,
        ("gpu.temperature", *LABELS): 61,
        ("gpu.nvlink.errors", *LABELS): 21 + 2**40,
    }
    throttled = ("gpu.throttled", *LABELS)
    reasons = {(*throttled, "hardware slowdown"), (*throttled, "hardware thermal slowdown")}
    assert {key: value for key, value in second.items() if key[0] == throttled[0]} == dict.fromkeys(reasons, 1)
    assert (third[*throttled, "hardware slowdown"], third[*throttled, "hardware thermal slowdown"]) == (1, 0)


def test_what_nvml_does_not_tell_has_no_series_and_the_rest_has(look: Callable[..., list[Told]]) -> None:
    refuse = "nvmlDeviceGetTotalEccErrors=3,nvmlDeviceGetFieldValues=3"
    (told,) = look(Line(), refuse=refuse)
    assert {key[0] for key in told} == {"gpu.power", "gpu.sm.clock", "gpu.temperature"}


def test_of_a_gpu_that_is_lost_nothing_is_told(look: Callable[..., list[Told]]) -> None:
    first, _, third = look(Line(), Line(gone=1), times=3)
    assert ("gpu.power", *LABELS) in first
    assert third == {}


@pytest.mark.parametrize(("uuid", "refuse"), [("another", ""), (GPU, "nvmlInitWithFlags=9")])
def test_a_gpu_or_driver_that_is_not_found_is_no_error(look: Callable[..., list[Told]], uuid: str, refuse: str) -> None:
    assert look(Line(), uuid=uuid, refuse=refuse) == [{}]


@pytest.mark.parametrize(("refuse", "until"), [("", "line 0"), ("nvmlDeviceGetPowerUsage=hang", "hangs")])
def test_a_driver_that_hangs_keeps_nobody_waiting_and_what_is_old_is_not_told(
    play: Play, refuse: str, until: str
) -> None:
    """The call never returns; that this test does is the proof."""
    play.write((Line(),))
    log = play.folder / "log"
    log.touch()
    command = [sys.executable, "-W", "error", "-c", WATCHING, GPU, until, str(log)]
    environment = play.environment | {"NVML_STUB_REFUSE": refuse}
    printed = subprocess.run(command, check=True, timeout=60, env=environment, capture_output=True, text=True)
    assert printed.stdout == "stopped\n"
    assert ("shutdown" in log.read_text()) == (until != "hangs")


def test_without_a_driver_or_a_gpu_nothing_is_told() -> None:
    gpus = Gpus()
    assert gpus.look(statuses(ranks(0))) == {}
    assert gpus.look(statuses(ranks(0, device={"name": "H100", "uuid": GPU}))) == {}
    gpus.close()
