"""`checkpoint.upload` under real torchrun, with a real S3 server: a training continues from the bucket alone."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import traincope
from tests.cli.launch.test_restarts import CONFIG, STEPS, WORKER
from tests.s3 import BUCKET, S3, files, s3_server
from traincope.engine.checkpoint.manifest import MANIFEST
from traincope.engine.launch import Launch, launch
from traincope.store.job.launcher import notes_path

URL = f"s3://{BUCKET}/run"


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with s3_server() as running:
        yield running


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text("\n".join(f"{n} squared is {n * n}" for n in range(200)))
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(text=tmp_path / "text") + f'upload = "{URL}"\n')
    return path


def train(config: Path, run: Path, *words: str, server: S3) -> dict[int, float]:
    """Train on two ranks. Returns the loss of each step."""
    log = run.with_suffix(".log")
    job = Launch(
        ranks=2,
        arguments=(str(config), "--out", str(run), *words),
        module=WORKER,
        notes=notes_path(run),
        environment={"KILLED": "[]", "STEPS_LOG": str(log), **server.environment},
    )
    launch(job)
    return {line["step"]: line["loss"] for line in map(json.loads, log.read_text().splitlines())}


def test_another_host_continues_from_the_newest_whole_copy_to_the_bit(config: Path, tmp_path: Path, server: S3) -> None:
    """The folder is lost, and the upload of the last checkpoint did not end: its manifest is missing."""
    losses = train(config, tmp_path / "first", server=server)
    bucket = files(server)
    older, newest = sorted(path for path in bucket.find(f"{BUCKET}/run") if path.endswith(MANIFEST))
    step = int(older.split("/")[2][5:13])
    assert newest.split("/")[2].startswith(f"step-{STEPS:08d}-")
    copy = bucket.find(newest.removesuffix(f"/{MANIFEST}"), detail=True)
    num_bytes = sum(entry["size"] for path, entry in copy.items() if path != newest)
    (uploaded,) = (end for end in uploads(tmp_path / "first") if end["step"] == STEPS)
    assert uploaded["bytes"] == num_bytes > 0
    assert uploaded["seconds"] > 0
    shutil.rmtree(tmp_path / "first" / "checkpoints")
    bucket.rm_file(newest)
    again = train(config, tmp_path / "second", "--resume", server=server)
    assert again == {after: losses[after] for after in range(step + 1, STEPS + 1)}


def uploads(run: Path) -> list[dict[str, Any]]:
    """Details of the uploads that a run recorded."""
    recorded = (details for rank in traincope.open_run(run).run.ranks for details in rank.details.values())
    return [details for details in recorded if details.keys() == {"step", "seconds", "bytes"}]


def test_a_bucket_that_does_not_answer_is_one_error_before_a_process_starts(
    config: Path, tmp_path: Path, server: S3
) -> None:
    closed = {**server.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    out = tmp_path / "run"
    ended = subprocess.run(
        [sys.executable, "-m", "traincope.cli.main", "train", str(config), "--out", str(out)],
        env={"PATH": "", **closed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, out.exists()) == (12, "", False)
    (line,) = ended.stderr.splitlines()
    assert line.startswith(
        f"traincope train: {URL} cannot be used (EndpointConnectionError: Could not connect to the endpoint"
    )
    assert line.endswith("check the address, the credentials and the network, or remove checkpoint.upload")
