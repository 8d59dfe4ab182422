"""Damaged checkpoints are found and named, and the one before is loaded. Refusals and full disks lose nothing."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.distributed.checkpoint.saving import begin, save_on_full_disk, save_steps
from tests.distributed.layouts import small_config
from tests.distributed.ranks.pool import Pool
from traincope.engine.config import CheckpointConfig, Config, ParallelConfig

OLD, NEW = "step-00000002", "step-00000004"
HOLDER = """
import sys
from pathlib import Path
from traincope.engine.checkpoint.places.claim import take
take(Path(sys.argv[1]), after=int(sys.argv[2]), agents=())
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def config(text: str) -> Config:
    config = small_config(text, ParallelConfig(fsdp=2), layers=1)
    return replace(config, checkpoint=CheckpointConfig(keep=5))


@pytest.fixture(scope="module")
def saved(two_ranks: Pool, config: Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """A folder with the checkpoints of steps 2 and 4, and the digests of rank 0."""
    directory = tmp_path_factory.mktemp("saved")
    return directory, two_ranks.run(save_steps, config, directory, 2, 4)[0]


@pytest.fixture
def directory(saved: tuple[Path, dict[int, str]], tmp_path: Path) -> Path:
    return shutil.copytree(saved[0], tmp_path / "checkpoints")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def edit(path: Path) -> None:
    path.write_text(path.read_text().replace('"step": 4', '"step": 5'))


def entries(directory: Path) -> list[str]:
    """Names in the folder, without the claim."""
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("claim-"))


DAMAGE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a flipped bit": (flip, "__1_0.distcp", "does not have its checksum"),
    "a flipped bit of the index": (flip, ".metadata", "does not have its checksum"),
    "a cut shard": (cut, "__0_0.distcp", "bytes instead of"),
    "a missing shard": (Path.unlink, "__0_0.distcp", "is missing"),
    "a missing manifest": (Path.unlink, "manifest.json", "is missing"),
    "an edited manifest": (edit, "manifest.json", "does not have its checksum"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_checkpoint_before_a_damaged_one_is_loaded_with_a_warning(
    two_ranks: Pool, config: Config, saved: tuple[Path, dict[int, str]], directory: Path, damage: str
) -> None:
    do, name, reason = DAMAGE[damage]
    do(directory / NEW / name)
    begun = two_ranks.run(begin, config, directory)
    assert [(rank.step, rank.error) for rank in begun] == [(2, None), (2, None)]
    assert begun[0].digest == saved[1][2]
    (warning,) = begun[0].warnings
    assert begun[1].warnings == []
    assert warning.startswith(f"checkpoint damaged: {directory / NEW / name} ")
    assert reason in warning
    assert warning.endswith(f"; loaded {directory / OLD} instead, and renamed it to {directory / 'damaged-00000004'}")
    assert entries(directory) == ["damaged-00000004", OLD]


def test_a_checkpoint_of_another_version_is_no_damaged_one(two_ranks: Pool, config: Config, directory: Path) -> None:
    """Its checksum is right. To go back to the older one would cost steps, and replace it later."""
    manifest = directory / NEW / "manifest.json"
    values = json.loads(manifest.read_text())
    del values["sha256"]
    values["version"] = 3
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    manifest.write_text(json.dumps({"sha256": digest, **values}))
    for rank in two_ranks.run(begin, config, directory):
        assert rank.error is not None
        assert rank.error[0] == "CheckpointError"
        assert "has version 3, but this traincope reads versions 1 and 2" in rank.error[1]
    assert entries(directory) == [OLD, NEW]


def test_a_folder_that_another_training_holds_is_refused(two_ranks: Pool, config: Config, directory: Path) -> None:
    command = [sys.executable, "-c", HOLDER, directory, "1"]  # `saved` has claim 1
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    for rank in two_ranks.run(begin, config, directory):
        assert rank.error is not None
        assert rank.error[0] == "CheckpointError"
        assert f"another training (process {other.pid} on host {os.uname().nodename}) writes" in rank.error[1]
    other.kill()
    other.communicate()
    assert [rank.error for rank in two_ranks.run(begin, config, directory)] == [None, None]


def test_if_all_are_damaged_the_training_does_not_begin_anew(two_ranks: Pool, config: Config, directory: Path) -> None:
    flip(directory / NEW / "__0_0.distcp")
    cut(directory / OLD / "__1_0.distcp")
    for rank in two_ranks.run(begin, config, directory):
        assert rank.error is not None
        kind, message = rank.error
        assert (kind, rank.step) == ("CheckpointError", 0)
        assert message.startswith(f"no checkpoint in {directory} can be loaded: {directory / NEW / '__0_0.distcp'} ")
        assert str(directory / OLD / "__1_0.distcp") in message
    assert entries(directory) == [OLD, NEW]


def test_a_checkpoint_of_another_model_is_refused_by_the_first_key_that_differs(
    two_ranks: Pool, config: Config, directory: Path
) -> None:
    larger = replace(config, model=replace(config.model, layers=2))
    for rank in two_ranks.run(begin, larger, directory):
        assert rank.error == (
            "ConfigError",
            f"{directory / NEW} is of another training: model.layers is 1 there and 2 here; resume with its "
            "configuration, or give another checkpoint.directory",
        )
    assert entries(directory) == [OLD, NEW]


def test_a_new_training_does_not_touch_the_checkpoints_of_another(
    two_ranks: Pool, config: Config, directory: Path
) -> None:
    for rank in two_ranks.run(begin, config, directory, False):
        assert rank.error is not None
        assert rank.error[0] == "UsageError"
        assert "continue it with --resume" in rank.error[1]


def test_a_restart_continues_what_its_launch_has_claimed_and_nothing_else(
    two_ranks: Pool, config: Config, directory: Path
) -> None:
    """torchrun restarts a training that was refused, and gives it no option."""
    for _ in range(2):
        for rank in two_ranks.run(begin, config, directory, False, True):
            assert rank.error is not None
            assert rank.error[0] == "UsageError"
    assert [rank.step for rank in two_ranks.run(begin, config, directory, True, True)] == [4, 4]
    assert [rank.step for rank in two_ranks.run(begin, config, directory, False, True)] == [4, 4]
    assert [rank.error for rank in two_ranks.run(begin, config, directory, True)] == [None, None]
    for rank in two_ranks.run(begin, config, directory, False, True):
        assert rank.error is not None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem with room for some checkpoints."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a full disk needs the right to mount one: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_is_one_error_and_leaves_the_checkpoint_before(
    two_ranks: Pool, config: Config, small_disk: Path, asynchronous: bool
) -> None:
    config = replace(config, checkpoint=CheckpointConfig(asynchronous=asynchronous))
    for message, left, in_the_end in two_ranks.run(save_on_full_disk, config, small_disk, asynchronous):
        assert message.startswith(f"the checkpoint in {small_disk / 'checkpoints'} failed on rank ")
        assert "No space left on device" in message
        assert left == ["step-00000001"]
        assert in_the_end == ["step-00000001", "step-00000002"]
