"""The folder of checkpoints: what is complete, what is kept, what is refused."""

from pathlib import Path

import pytest

from traincope.engine.checkpoint.manifest import MANIFEST, Damaged, Manifest, Sum, read_manifest
from traincope.engine.checkpoint.places import directory as folder
from traincope.engine.checkpoint.places.claim import CLAIM_FILE, take
from traincope.engine.config import CheckpointConfig
from traincope.errors import ConfigError, UsageError


def write(directory: Path, *, step: int, keep: int = 2, layers: int = 1) -> None:
    new = folder.new_path(claim_of(directory), step=step)
    folder.prepare(new)
    (new / "shard").write_bytes(bytes(step))
    files = {"shard": Sum.of(new / "shard")}
    folder.commit(new, Manifest(step=step, identity={"model.layers": layers}, layout={}, files=files), keep=keep)


def claim_of(directory: Path) -> Path:
    """Return the folder of the newest claim, or make the first one."""
    return max(directory.glob("claim-*"), default=None) or take(directory, after=0, agents=()).folder


def names(directory: Path) -> list[str]:
    """Names in the folder, without the claim."""
    return sorted(path.name for path in directory.iterdir() if path != claim_of(directory))


def unfinished(directory: Path) -> list[str]:
    """Names of checkpoints that the attempt with the claim writes or removes."""
    return sorted(path.name for path in claim_of(directory).iterdir() if path.name != CLAIM_FILE)


def test_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    for step in (9, 10, 200):
        write(tmp_path, step=step)
    assert [folder.step_of(path) for path in folder.complete_checkpoints(tmp_path)] == [200, 10]
    assert names(tmp_path) == ["step-00000010", "step-00000200"]


def test_what_is_not_of_a_save_stays(tmp_path: Path) -> None:
    kept = tmp_path / "old-experiments" / "results.csv"
    kept.parent.mkdir()
    kept.touch()
    for left in ("new-00000001", "old-00000002"):
        (claim_of(tmp_path) / left).mkdir()
    write(tmp_path, step=3)
    assert (names(tmp_path), unfinished(tmp_path)) == (["old-experiments", "step-00000003"], [])
    assert kept.exists()


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path, step=3, layers=7)
    manifest = read_manifest(tmp_path / "step-00000003")
    assert (manifest.step, manifest.identity, manifest.layout) == (3, {"model.layers": 7}, {})
    zeros = "709e80c88487a2411e1ee4dfb9f22a861492d20c4765150c0c794abd70f8147c"  # printf '\0\0\0' | sha256sum
    assert manifest.files == {"shard": Sum(bytes=3, sha256=zeros)}


def test_a_step_that_is_saved_again_replaces_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, step=3, layers=7)
    write(tmp_path, step=3, layers=8)
    assert names(tmp_path) == ["step-00000003"]
    assert read_manifest(tmp_path / "step-00000003").identity == {"model.layers": 8}


def test_what_a_failed_save_left_is_removed_before_the_next_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "damaged-00000001").mkdir()
    for name in ("new-00000001", "new-00000002", "old-00000001"):
        (claim_of(tmp_path) / name).mkdir()
        (claim_of(tmp_path) / name / "shard").touch()
    write(tmp_path, step=2)
    assert (names(tmp_path), unfinished(tmp_path)) == (["damaged-00000001", "step-00000002"], [])


def test_damaged_checkpoints_are_not_counted_and_never_replace_each_other(tmp_path: Path) -> None:
    for _ in range(3):
        write(tmp_path, step=2)
        folder.set_aside(tmp_path / "step-00000002", claim_of(tmp_path))
    assert names(tmp_path) == ["damaged-00000002", "damaged-00000002.1", "damaged-00000002.2"]
    assert folder.complete_checkpoints(tmp_path) == []


def test_a_folder_with_checkpoints_is_refused_without_resume(tmp_path: Path) -> None:
    folder.check_unused(tmp_path / "absent")
    folder.check_unused(tmp_path)
    write(tmp_path, step=1)
    with pytest.raises(UsageError, match=f"{tmp_path} holds checkpoints of a training"):
        folder.check_unused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b'{"sha256": 1}', b"\xff"])
def test_what_is_not_a_manifest_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(Damaged):
        read_manifest(tmp_path)


def test_the_folder_is_in_the_run_directory_unless_it_is_named(tmp_path: Path) -> None:
    assert folder.checkpoint_directory(CheckpointConfig(), run=tmp_path) == tmp_path / "checkpoints"
    assert folder.checkpoint_directory(CheckpointConfig(directory="x"), run=tmp_path) == Path("x")
    with pytest.raises(ConfigError, match=r"checkpoint\.directory is not set"):
        folder.checkpoint_directory(CheckpointConfig(), run=None)


def test_a_save_leaves_the_marks_of_other_attempts_that_begin(tmp_path: Path) -> None:
    mark = folder.mark(tmp_path, f"{folder.MARK}other-0")
    write(tmp_path, step=3)
    assert mark.exists()
