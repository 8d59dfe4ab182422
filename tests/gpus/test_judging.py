"""`make test-gpus` passes a run whose waits are those of the rank that spun, and fails others, on virtual GPUs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.gpus.judging import judged
from tests.timeline.device.nccl import compile_with_clock, plugin_with_clock
from tests.timeline.device.recorded import padded, record
from tests.timeline.device.test_nccl import LEAD_US, sharded
from tests.virtual_gpu.actions import Program
from traincope.native.build import find_compiler
from traincope.timeline import open_run

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler is installed")

SLOWER_US = 10_000
"""The last rank computes this much longer in its step. The other one waits for it, less 50 us of a hidden gather."""


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with plugin_with_clock(compile_with_clock(tmp_path_factory.mktemp("plugin") / "plugin.so")):
        yield


def failed(folder: Path, *, nccl: int | None, spun_us: int) -> list[str]:
    program = padded(Program(ranks=(sharded(10), sharded(10 + SLOWER_US))), lead_us=LEAD_US)
    timeline = open_run(record(program, folder, nccl=nccl))
    return [check.name for check in judged(timeline, [0, spun_us * 1_000]) if not check.passed]


def test_a_run_that_shows_the_spin_passes(tmp_path: Path) -> None:
    assert failed(tmp_path, nccl=6, spun_us=SLOWER_US) == []


def test_a_wait_of_another_length_fails(tmp_path: Path) -> None:
    assert failed(tmp_path, nccl=6, spun_us=SLOWER_US * 11 // 10) == ["wait of rank 0 for it"]


def test_a_run_without_records_of_nccl_fails(tmp_path: Path) -> None:
    missing = "collectives joined with NCCL's operations on all ranks"
    assert failed(tmp_path, nccl=None, spun_us=SLOWER_US)[0] == missing


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="this machine has several GPUs")
def test_without_two_gpus_the_script_says_that_nothing_was_verified(tmp_path: Path) -> None:
    out = tmp_path / "gpus.json"
    command = [sys.executable, "-m", "tests.gpus", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, out.exists()) == (1, False)
    assert done.stdout.startswith("NOTHING BETWEEN GPUS WAS VERIFIED")
