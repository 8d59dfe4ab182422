"""Checkpoints in two tiers, on real ranks: uploads delay no step, and the newest whole copy of both tiers is loaded."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.distributed.checkpoint.interrupted import SAVED, STEPS, resumed, uninterrupted
from tests.distributed.checkpoint.saving import begin, save_steps
from tests.distributed.checkpoint.test_damage import cut, entries, flip
from tests.distributed.checkpoint.uploading import (
    begin_training,
    finish,
    in_own_folders,
    on_s3,
    save_with_broken_bucket,
    train_and_save,
)
from tests.distributed.layouts import small_config
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from tests.s3 import BUCKET, S3, files, s3_server
from traincope.engine.checkpoint.manifest import MANIFEST
from traincope.engine.checkpoint.places.bucket import DAMAGED, Bucket
from traincope.engine.config import CheckpointConfig, Config, ParallelConfig
from traincope.errors import CheckpointError

OLD, NEW = "step-00000002", "step-00000004"
URL = f"s3://{BUCKET}/run"


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with s3_server() as running:
        yield running


def config_with(text: str, url: str, *, parallel: ParallelConfig | None = None, **settings: object) -> Config:
    config = small_config(text, parallel or ParallelConfig(fsdp=2))
    table = CheckpointConfig(upload=url, **settings)  # type: ignore[arg-type]
    return replace(config, model=replace(config.model, dropout=0.1), checkpoint=table)


def stored(server: S3, prefix: str) -> dict[str, set[str]]:
    """Objects by their folder in the bucket."""
    folders: dict[str, set[str]] = {}
    for path in files(server).find(f"{BUCKET}/{prefix}"):
        _, _, folder, name = path.split("/")
        folders.setdefault(folder, set()).add(name)
    return folders


@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_a_training_continues_to_the_bit_from_the_bucket_alone(
    two_ranks: Pool, text: str, tmp_path: Path, server: S3, asynchronous: bool
) -> None:
    prefix = f"alone-{asynchronous}"
    config = config_with(text, f"s3://{BUCKET}/{prefix}", asynchronous=asynchronous)
    expected = two_ranks.run(on_s3, server.environment, uninterrupted, config, tmp_path / "checkpoints")
    ((folder, names),) = stored(server, prefix).items()
    assert folder.startswith(f"step-{SAVED:08d}-")
    assert names == {".metadata", "__0_0.distcp", "__1_0.distcp", MANIFEST}
    shutil.rmtree(tmp_path / "checkpoints")
    for rank, digests in enumerate(two_ranks.run(on_s3, server.environment, resumed, config, tmp_path / "checkpoints")):
        assert digests == {step: expected[rank][step] for step in range(SAVED, STEPS + 1)}
    assert entries(tmp_path / "checkpoints") == [f"step-{SAVED:08d}"]


def test_a_bucket_that_does_not_answer_delays_neither_steps_nor_saves(
    two_ranks: Pool, text: str, tmp_path: Path, server: S3
) -> None:
    """The server stands still until all steps are trained and saved, so nothing of them waited for it.

    The upload of the first checkpoint does not end. Its folder stays, in addition to the newest that `keep` counts.
    """
    prefix, environment = "slow", server.environment
    config = config_with(text, f"s3://{BUCKET}/{prefix}", keep=1)
    two_ranks.run(on_s3, environment, begin_training, config, tmp_path)
    server.process.send_signal(signal.SIGSTOP)
    try:
        assert two_ranks.run(on_s3, environment, train_and_save) == [STEPS, STEPS]
        assert entries(tmp_path) == ["step-00000001", f"step-{STEPS:08d}"]
    finally:
        server.process.send_signal(signal.SIGCONT)
    of_first, of_other = two_ranks.run(on_s3, environment, finish)
    assert [(end.step, end.error) for end in of_first] == [
        *((step, "the upload of step 1 still runs") for step in range(2, STEPS + 1)),
        (1, None),
        (STEPS, None),
    ]
    assert of_other == []
    assert [folder[:13] for folder in stored(server, prefix)] == [f"step-{STEPS:08d}"]


@pytest.mark.sweep
def test_the_end_waits_a_bounded_time_for_a_bucket(two_ranks: Pool, text: str, tmp_path: Path, server: S3) -> None:
    config = config_with(text, f"s3://{BUCKET}/bounded", upload_wait_seconds=0.1)
    two_ranks.run(on_s3, server.environment, begin_training, config, tmp_path)
    server.process.send_signal(signal.SIGSTOP)
    try:
        two_ranks.run(on_s3, server.environment, train_and_save)
        ends = two_ranks.run(on_s3, server.environment, finish)
    finally:
        server.process.send_signal(signal.SIGCONT)
    for uploads in ends:
        assert (uploads[-1].step, uploads[-1].error) == (
            STEPS,
            "its upload did not end in 0.1 s (checkpoint.upload_wait_seconds)",
        )


def test_a_bucket_that_accepts_and_does_not_answer_is_an_error(server: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincope.engine.checkpoint.places.bucket.ANSWER_SECONDS", 0.5)
    server.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(CheckpointError, match=r"cannot be used \(FSTimeoutError: no answer in 0\.5 s\); check the"):
            on_s3(server.environment, Bucket(f"s3://{BUCKET}/silent").stored)
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_a_failed_upload_costs_a_warning_and_the_next_checkpoint_is_uploaded(
    two_ranks: Pool, text: str, tmp_path: Path
) -> None:
    broken = tmp_path / "file"
    config = config_with(text, f"file://{broken}/run", keep=9)
    first, other = two_ranks.run(save_with_broken_bucket, config, tmp_path / "checkpoints", broken)
    for uploads, lines in (first, other):
        failed = [end for end in uploads if end.error is not None]
        assert [end.step for end in failed] == [1, 2]
        assert all("cannot be used (NotADirectoryError: " in (end.error or "") for end in failed)
        assert [line.partition(" is ")[0] for line in lines] == [f"the checkpoint of step {step}" for step in (1, 2)]
    assert [end.step for end in first[0] if end.error is None] == [3, 4, 5]
    assert [len(list(folder.iterdir())) for folder in sorted((broken / "run").iterdir())] == [4, 4, 4]
    assert {end.bytes for end in first[0]} == {
        sum(path.stat().st_size for path in folder.iterdir() if path.name != MANIFEST)
        for folder in (tmp_path / "checkpoints").glob("step-*")
    }


@pytest.fixture(scope="module")
def saved(two_ranks: Pool, text: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """A folder `checkpoints` and a bucket with checkpoints of steps 2 and 4, and the first rank's digests."""
    root = tmp_path_factory.mktemp("tiers")
    config = config_with(text, f"file://{root}/bucket", keep=5)
    return root, two_ranks.run(save_steps, config, root / "checkpoints", 2, 4)[0]


@pytest.fixture
def tiers(saved: tuple[Path, dict[int, str]], tmp_path: Path) -> Path:
    return shutil.copytree(saved[0], tmp_path / "tiers")


def remote(tiers: Path, step: int) -> Path:
    """Folder of a step in the bucket."""
    (folder,) = (tiers / "bucket").glob(f"step-{step:08d}-*")
    return folder


DAMAGE = {
    "a flipped bit": (flip, "__1_0.distcp", "does not have its checksum"),
    "a cut object": (cut, "__0_0.distcp", "bytes instead of"),
    "a missing object": (Path.unlink, ".metadata", "is missing"),
    "no manifest": (Path.unlink, MANIFEST, "because its upload did not end"),
}


@pytest.mark.parametrize("damage", swept(DAMAGE, but={"a flipped bit", "no manifest"}))
def test_the_copy_before_a_damaged_one_is_loaded_with_a_warning(
    two_ranks: Pool, text: str, saved: tuple[Path, dict[int, str]], tiers: Path, damage: str
) -> None:
    do, name, reason = DAMAGE[damage]
    shutil.rmtree(tiers / "checkpoints")
    old, new = remote(tiers, 2), remote(tiers, 4)
    do(new / name)
    config = config_with(text, f"file://{tiers}/bucket", keep=5)
    begun = two_ranks.run(begin, config, tiers / "checkpoints")
    assert [(rank.step, rank.error) for rank in begun] == [(2, None), (2, None)]
    assert begun[0].digest == saved[1][2]
    (warning,) = begun[0].warnings
    assert begun[1].warnings == []
    assert reason in warning
    assert f"loaded file://{old} instead" in warning
    if damage == "no manifest":
        assert warning.startswith(f"checkpoint not complete: file://{new} ")
    else:
        assert warning.startswith(f"checkpoint damaged: file://{new}/{name} ")
        assert warning.endswith(f"and renamed it to file://{new}/{DAMAGED}")
        assert not (new / MANIFEST).exists()
    assert entries(tiers / "checkpoints") == [OLD]


def test_a_damaged_file_of_the_folder_comes_from_the_bucket(
    two_ranks: Pool, text: str, saved: tuple[Path, dict[int, str]], tiers: Path
) -> None:
    """Two thirds of the copy in the bucket are damaged too, but not the file that is damaged in the folder."""
    directory = tiers / "checkpoints"
    flip(directory / NEW / "__1_0.distcp")
    flip(remote(tiers, 4) / "__0_0.distcp")
    flip(remote(tiers, 4) / ".metadata")
    config = config_with(text, f"file://{tiers}/bucket", keep=5)
    begun = two_ranks.run(begin, config, directory)
    assert [(rank.step, rank.error) for rank in begun] == [(4, None), (4, None)]
    assert begun[0].digest == saved[1][4]
    assert begun[0].warnings == [
        f"checkpoint damaged: {directory / NEW / '__1_0.distcp'} does not have its checksum; fetched it from the "
        "bucket (checkpoint.upload)"
    ]
    assert entries(directory) == ["damaged-00000004", OLD, NEW]


def test_if_both_tiers_are_damaged_the_training_does_not_begin_anew(two_ranks: Pool, text: str, tiers: Path) -> None:
    directory = tiers / "checkpoints"
    for step, checkpoint in ((2, OLD), (4, NEW)):
        flip(directory / checkpoint / "__1_0.distcp")
        flip(remote(tiers, step) / "__1_0.distcp")
    config = config_with(text, f"file://{tiers}/bucket", keep=5)
    for rank in two_ranks.run(begin, config, directory):
        assert rank.error is not None
        kind, message = rank.error
        assert (kind, rank.step) == ("CheckpointError", 0)
        assert message.startswith(f"no checkpoint in {directory} or file://{tiers}/bucket can be loaded: ")
        assert f"file://{remote(tiers, 4)}/__1_0.distcp does not have its checksum" in message
    assert entries(directory) == [OLD, NEW]


def test_a_new_training_does_not_touch_the_bucket_of_another(two_ranks: Pool, text: str, tiers: Path) -> None:
    config = config_with(text, f"file://{tiers}/bucket")
    for rank in two_ranks.run(begin, config, tiers / "new", False):
        assert rank.error is not None
        assert rank.error[0] == "UsageError"
        assert "continue it with --resume, or give another checkpoint.upload" in rank.error[1]


def test_hosts_need_no_shared_folder(two_ranks: Pool, text: str, tmp_path: Path) -> None:
    """Each rank has a folder of its own. That of one is lost, like its host. DDP needs the files of both."""
    config = config_with(text, f"file://{tmp_path}/bucket", parallel=ParallelConfig(dp=2))
    expected = two_ranks.run(in_own_folders, uninterrupted, config, tmp_path)
    assert entries(tmp_path / "host-1" / f"step-{SAVED:08d}") == ["__1_0.distcp", MANIFEST]
    shutil.rmtree(tmp_path / "host-0")
    for rank, digests in enumerate(two_ranks.run(in_own_folders, resumed, config, tmp_path)):
        assert digests == {step: expected[rank][step] for step in range(SAVED, STEPS + 1)}
        whole = [".metadata", "__0_0.distcp", "__1_0.distcp", MANIFEST]
        assert entries(tmp_path / f"host-{rank}" / f"step-{SAVED:08d}") == whole


def test_without_a_shared_folder_the_newest_copy_in_the_bucket_counts(
    two_ranks: Pool, text: str, tmp_path: Path
) -> None:
    """Each host has only its own files of step 4, and the upload of step 4 did not end."""
    config = config_with(text, f"file://{tmp_path}/bucket", parallel=ParallelConfig(dp=2))
    saved = two_ranks.run(in_own_folders, save_steps, config, tmp_path, 2, 4)
    (remote(tmp_path, 4) / MANIFEST).unlink()
    begun = two_ranks.run(in_own_folders, begin, config, tmp_path)
    assert [(rank.step, rank.error, rank.digest) for rank in begun] == [(2, None, saved[0][2])] * 2
    assert [warning.partition(":")[0] for warning in begun[0].warnings] == [
        "checkpoint damaged",
        "checkpoint not complete",
    ]
    for rank in (0, 1):
        assert entries(tmp_path / f"host-{rank}") == ["damaged-00000004", OLD]


def test_a_newer_copy_in_the_bucket_is_loaded_rather_than_an_older_checkpoint_in_the_folder(
    two_ranks: Pool, text: str, saved: tuple[Path, dict[int, str]], tiers: Path
) -> None:
    directory = tiers / "checkpoints"
    shutil.rmtree(directory / NEW)
    config = config_with(text, f"file://{tiers}/bucket", keep=5)
    begun = two_ranks.run(begin, config, directory)
    assert [(rank.step, rank.error, rank.warnings) for rank in begun] == [(4, None, [])] * 2
    assert begun[0].digest == saved[1][4]
    assert entries(directory) == [OLD, NEW]
    kept = sorted(path.read_bytes() for path in remote(tiers, 4).iterdir())
    assert sorted(path.read_bytes() for path in (directory / NEW).iterdir()) == kept


def test_without_a_bucket_all_ranks_must_share_the_folder(two_ranks: Pool, text: str, tmp_path: Path) -> None:
    config = replace(small_config(text, ParallelConfig(dp=2)), checkpoint=CheckpointConfig())
    for rank in two_ranks.run(in_own_folders, begin, config, tmp_path):
        assert rank.error is not None
        kind, message = rank.error
        assert kind == "CheckpointError"
        assert message.startswith("rank 1 does not share the folder ")
        assert message.endswith("give a checkpoint.directory that all hosts share, or set checkpoint.upload")


@pytest.mark.sweep
def test_only_a_restart_with_a_checkpoint_needs_no_bucket(two_ranks: Pool, text: str, tiers: Path, server: S3) -> None:
    config = config_with(text, "s3://no-such-bucket/run")
    directory = tiers / "checkpoints"
    refused = ("CheckpointError", "s3://no-such-bucket/run cannot be used (FileNotFoundError: The specified bucket ")
    for arguments in ((tiers / "new", False), (directory, True, False), (tiers / "new", True, True)):
        for rank in two_ranks.run(on_s3, server.environment, begin, config, *arguments):
            assert rank.error is not None
            assert (rank.error[0], rank.error[1][: len(refused[1])]) == refused
    two_ranks.run(begin, config_with(text, f"file://{tiers}/bucket"), directory, True, True)  # the first attempt
    begun = two_ranks.run(on_s3, server.environment, begin, config, directory, True, True)
    assert [(rank.step, rank.error) for rank in begun] == [(4, None), (4, None)]
    (warning,) = begun[0].warnings
    assert warning.endswith(f"the restart uses the checkpoints in {directory} alone")


def test_a_full_disk_while_files_are_fetched_is_one_error(
    two_ranks: Pool, text: str, tiers: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a full disk needs the right to mount one: {mounted.stderr.strip()}")
    config = config_with(text, f"file://{tiers}/bucket")
    try:
        begun = two_ranks.run(begin, config, disk / "checkpoints")
        assert entries(disk / "checkpoints") == []
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    message = f"{disk / 'checkpoints'} cannot be written (No space left on device); give another checkpoint.directory"
    assert [rank.error for rank in begun] == [("CheckpointError", message)] * 2
