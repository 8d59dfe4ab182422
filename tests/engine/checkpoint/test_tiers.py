"""Both tiers: which checkpoints there are, in which order, and what is refused before a training begins."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.engine.checkpoint.test_directory import write
from traincope.engine.checkpoint.manifest import MANIFEST, read_manifest
from traincope.engine.checkpoint.places import directory as folder
from traincope.engine.checkpoint.places.bucket import DAMAGED, Bucket, folder_of
from traincope.engine.checkpoint.places.tiers import (
    Torn,
    check_resumable,
    check_unused,
    in_bucket,
    in_folder,
    open_bucket,
    ordered,
)
from traincope.engine.checkpoint.places.uploads import Part, Upload, Uploads
from traincope.engine.config import CheckpointConfig
from traincope.errors import CheckpointError, ConfigError, MissingDependencyError, UsageError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "folder"


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(f"file://{tmp_path / 'bucket'}")


def write_both(directory: Path, bucket: Bucket, *, step: int, layers: int = 1, keep: int = 2) -> str:
    """Save a checkpoint and upload it. Returns its folder in the bucket."""
    write(directory, step=step, layers=layers, keep=keep)
    checkpoint = folder.complete_path(directory, step=step)
    manifest = read_manifest(checkpoint)
    bucket.upload(checkpoint / "shard", folder_of(manifest))
    bucket.commit(folder_of(manifest), manifest, keep=keep)
    return folder_of(manifest)


def wanted(layers: int = 1) -> Mapping[str, object]:
    return {"model.layers": layers}


def test_a_checkpoint_in_both_tiers_is_one_and_the_newest_is_first(directory: Path, bucket: Bucket) -> None:
    names = [write_both(directory, bucket, step=step) for step in (9, 10)]
    write(directory, step=11, keep=3)
    (directory / "step-00000009" / "shard").unlink()
    found = ordered(in_folder(directory) + in_bucket(bucket))
    assert [(each.step, each.remote) for each in found] == [(11, None), (10, names[1]), (9, names[0])]
    assert {each.place for each in found} == {str(directory / f"step-{step:08d}") for step in (9, 10, 11)}


def test_of_one_step_the_folder_comes_first_unless_only_the_bucket_has_it(directory: Path, bucket: Bucket) -> None:
    write_both(directory, bucket, step=5, layers=1)
    write(directory, step=5, layers=2)
    places = [each.place for each in ordered(in_bucket(bucket) + in_folder(directory))]
    assert places[0] == str(directory / "step-00000005")
    assert places[1].startswith(f"{bucket.url}/step-00000005-")


def test_the_bucket_keeps_as_many_as_the_folder_and_removes_what_is_incomplete(
    tmp_path: Path, directory: Path, bucket: Bucket
) -> None:
    names = [write_both(directory, bucket, step=step) for step in (1, 2)]
    shard = tmp_path / "shard"
    shard.write_bytes(b"x")
    bucket.upload(shard, "step-00000003-00000000")  # its upload did not end
    bucket.upload(shard, "step-00000005-00000000")  # a rank that is ahead of the others
    names.append(write_both(directory, bucket, step=4))
    assert [stored.name for stored in bucket.stored()] == ["step-00000005-00000000", names[2], names[1]]
    assert [each.step for each in in_bucket(bucket) if each.damage is None] == [4, 2]


def test_a_step_that_is_uploaded_again_replaces_the_one_before(directory: Path, bucket: Bucket) -> None:
    older = write_both(directory, bucket, step=2)
    write_both(directory, bucket, step=3, layers=1)
    again = write_both(directory, bucket, step=3, layers=2)
    assert [stored.name for stored in bucket.stored()] == [again, older]


def test_what_is_set_aside_is_neither_loaded_nor_counted_nor_removed(directory: Path, bucket: Bucket) -> None:
    damaged = write_both(directory, bucket, step=1)
    assert bucket.set_aside(damaged) == f"{bucket.url}/{damaged}/{DAMAGED}"
    names = [write_both(directory, bucket, step=step) for step in (2, 3, 4)]
    assert [stored.name for stored in bucket.stored()] == [names[2], names[1], damaged]
    assert [each.step for each in in_bucket(bucket)] == [4, 3]


def test_damage_that_the_listing_shows_is_named(tmp_path: Path, directory: Path, bucket: Bucket) -> None:
    names = [write_both(directory, bucket, step=step, keep=9) for step in (2, 3, 4, 5)]
    root = tmp_path / "bucket"
    (root / names[0] / "shard").write_bytes(b"")
    (root / names[1] / "shard").unlink()
    (root / names[2] / MANIFEST).write_bytes(b"{")
    (root / names[3] / MANIFEST).unlink()
    found = {each.step: each.damage for each in in_bucket(bucket)}
    assert isinstance(found[5], Torn)
    assert {step: str(damage) for step, damage in found.items()} == {
        2: f"{bucket.url}/{names[0]}/shard has 0 bytes instead of 2",
        3: f"{bucket.url}/{names[1]}/shard is missing",
        4: f"{bucket.url}/{names[2]}/{MANIFEST} is not a manifest",
        5: f"{bucket.url}/{names[3]} has no {MANIFEST}, because its upload did not end",
    }


def test_another_training_is_refused_before_a_process_starts(directory: Path, bucket: Bucket) -> None:
    check_resumable(directory, bucket, wanted)
    name = write_both(directory, bucket, step=1, layers=4)
    check_resumable(directory, None, lambda: wanted(4))
    with pytest.raises(ConfigError, match=r"another training: model\.layers is 4 there and 1 here; .*\.directory$"):
        check_resumable(directory, bucket, wanted)
    with pytest.raises(ConfigError, match=f"^{bucket.url}/{name} is of another training: .*checkpoint.upload$"):
        check_resumable(directory / "other", bucket, wanted)


def test_missing_shards_are_an_error_only_if_neither_tier_has_them(directory: Path, bucket: Bucket) -> None:
    for step in (1, 2):
        write(directory, step=step)
    (directory / "step-00000002" / "shard").unlink()
    check_resumable(directory, None, wanted)
    (directory / "step-00000001" / "shard").write_bytes(b"")
    message = (
        f"can be loaded: {directory}/step-00000002/shard is missing; {directory}/step-00000001/shard has 0 bytes "
        "instead of 1; restore the files from a copy, or start anew in another directory"
    )
    with pytest.raises(CheckpointError) as refused:
        check_resumable(directory, None, wanted)
    assert str(refused.value) == f"no checkpoint in {directory} {message}"
    with pytest.raises(CheckpointError) as refused:
        check_resumable(directory, bucket, wanted)
    assert str(refused.value) == f"no checkpoint in {directory} or {bucket.url} {message}"
    write_both(directory, bucket, step=3)
    (directory / "step-00000003" / "shard").unlink()
    check_resumable(directory, bucket, wanted)


def test_an_upload_that_did_not_end_is_no_checkpoint_to_continue_but_one_to_refuse(
    tmp_path: Path, directory: Path, bucket: Bucket
) -> None:
    (tmp_path / "shard").touch()
    bucket.upload(tmp_path / "shard", "step-00000003-00000000")
    check_resumable(directory, bucket, wanted)
    with pytest.raises(UsageError, match=f"^{bucket.url}/step-00000003-00000000 is a checkpoint of a training; cont"):
        check_unused(directory, bucket)


def test_without_a_second_tier_no_library_is_needed() -> None:
    assert open_bucket(CheckpointConfig()) is None


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        (
            "nosuch://a/b",
            ConfigError,
            "upload = 'nosuch://a/b': Protocol not known: nosuch; give a URL that fsspec kn",
        ),
        (
            "gs://a/b",
            MissingDependencyError,
            "upload = 'gs://a/b': Please install gcsfs .*; install what it",
        ),
    ],
)
def test_a_url_that_cannot_be_used_is_one_error(url: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_bucket(CheckpointConfig(upload=url))


def test_the_table_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.upload is 'bucket/prefix'; give a URL, for example s3://"):
        CheckpointConfig(upload="bucket/prefix")
    with pytest.raises(ConfigError, match=r"checkpoint\.upload_wait_seconds"):
        CheckpointConfig(upload_wait_seconds=0)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_checkpoint_that_was_replaced_during_its_upload_is_not_completed_in_the_bucket(
    directory: Path, bucket: Bucket, replaced: bool
) -> None:
    """Its file may be of either."""
    write(directory, step=3, layers=1)
    checkpoint, ends = folder.complete_path(directory, step=3), list[Upload]()
    part = Part(checkpoint=checkpoint, manifest=read_manifest(checkpoint), names=("shard",))
    if replaced:
        write(directory, step=3, layers=2)
    uploads = Uploads(bucket, rank=0, keep=2, report=ends.append)
    uploads.start(part)
    uploads.finish(seconds=60)
    assert [end.error for end in ends] == [f"{checkpoint} was replaced during its upload" if replaced else None]
    assert [isinstance(each.damage, Torn) for each in in_bucket(bucket)] == [replaced]
