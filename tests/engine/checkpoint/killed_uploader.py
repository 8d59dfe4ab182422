"""Saves checkpoints in a loop, uploads them in the background, and is killed: `python -m ... DIRECTORY INSTANTS`.

A child saves and uploads; its parent kills it at a random instant, and checks the bucket. The next child continues.
"""

import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path

from traincope.engine.checkpoint.manifest import Manifest, Sum
from traincope.engine.checkpoint.places import directory as folder
from traincope.engine.checkpoint.places.bucket import Bucket
from traincope.engine.checkpoint.places.claim import take
from traincope.engine.checkpoint.places.tiers import Torn, in_bucket
from traincope.engine.checkpoint.places.uploads import Part, Upload, Uploads

MAX_SECONDS = 0.3
KEEP = 2
SHARDS = tuple(f"shard-{number}" for number in range(16))


def main(directory: Path, instants: int) -> None:
    rng = random.Random(instants)
    reported = 0
    for number in range(instants):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            save_and_upload(directory, number=number, first=reported + 1, report=writing)
        os.close(writing)
        with os.fdopen(reading) as ends:
            try:
                steps = [int(ends.readline())]  # also a busy machine uploads one between two kills
                time.sleep(rng.uniform(0, MAX_SECONDS))
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            steps += [int(line) for line in ends]
        newest = check(directory)
        reported = max([reported, *steps])
        assert newest >= reported, f"step {reported} was uploaded, but {newest} is the newest in the bucket"
        reported = newest


def save_and_upload(directory: Path, *, number: int, first: int, report: int) -> None:
    """Save and upload without end, as attempt `number`. Writes the steps that are in the bucket."""

    def ended(upload: Upload) -> None:
        assert upload.error is None, upload.error
        os.write(report, f"{upload.step}\n".encode())

    uploads = Uploads(Bucket(f"file://{directory}/bucket"), rank=0, keep=KEEP, report=ended)
    claim, step = take(directory / "folder", after=number, agents=()), first
    while True:
        manifest = save(claim.folder, step=step)
        checkpoint = folder.complete_path(directory / "folder", step=step)
        uploads.start(Part(checkpoint=checkpoint, manifest=manifest, names=tuple(manifest.files)))
        uploads.finish(seconds=60)
        step += 1


def save(claim: Path, *, step: int) -> Manifest:
    """Save files whose content differs from step to step."""
    new = folder.new_path(claim, step=step)
    folder.prepare(new)
    for name in SHARDS:
        (new / name).write_bytes(f"{name} of step {step}".encode() * 1000)
    files = {name: Sum.of(new / name) for name in SHARDS}
    manifest = Manifest(step=step, identity={}, layout={}, files=files)
    folder.commit(new, manifest, keep=KEEP)
    return manifest


def check(directory: Path) -> int:
    """Every copy with a manifest is whole. Returns the newest step."""
    found = in_bucket(Bucket(f"file://{directory}/bucket"))
    whole = [candidate for candidate in found if not isinstance(candidate.damage, Torn)]
    for candidate in whole:
        assert candidate.damage is None, candidate.damage
        assert candidate.manifest is not None
        for name, saved in candidate.manifest.files.items():
            content = (directory / "bucket" / str(candidate.remote) / name).read_bytes()
            assert hashlib.sha256(content).hexdigest() == saved.sha256
    newest = whole[0].step if whole else 0
    assert len(whole) >= min(newest, KEEP), whole
    return newest


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
