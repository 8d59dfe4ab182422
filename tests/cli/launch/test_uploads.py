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
from tests.distributed.checkpoint.uploading import on_s3, train_and_upload
from tests.distributed.ranks.pool import Pool
from tests.s3 import BUCKET, S3, files, s3_server
from traincope.engine.checkpoint.manifest import MANIFEST
from traincope.engine.config.load import load_config
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


def resume(config: Path, run: Path, *, server: S3) -> dict[int, float]:
    """Continue on two ranks under torchrun. Returns the loss of each step."""
    log = run.with_suffix(".log")
    job = Launch(
        ranks=2,
        arguments=(str(config), "--out", str(run), "--resume"),
        module=WORKER,
        notes=notes_path(run),
        environment={"KILLED": "[]", "STEPS_LOG": str(log), **server.environment},
    )
    launch(job)
    return {line["step"]: line["loss"] for line in map(json.loads, log.read_text().splitlines())}


@pytest.mark.sweep
def test_another_host_continues_from_the_newest_whole_copy_to_the_bit(
    two_ranks: Pool, config: Path, tmp_path: Path, server: S3
) -> None:
    """The folder is lost, and the upload of the last checkpoint did not end: its manifest is missing."""
    lost = tmp_path / "lost"
    losses = two_ranks.run(on_s3, server.environment, train_and_upload, load_config(config), lost, (6, STEPS))[0]
    shutil.rmtree(lost)
    bucket = files(server)
    older, newest = sorted(path for path in bucket.find(f"{BUCKET}/run") if path.endswith(MANIFEST))
    assert [path.split("/")[2][:13] for path in (older, newest)] == ["step-00000006", f"step-{STEPS:08d}"]
    bucket.rm_file(newest)
    run = tmp_path / "run"
    assert resume(config, run, server=server) == {step: losses[step] for step in (7, 8)}
    newest = max(path for path in bucket.find(f"{BUCKET}/run") if path.endswith(MANIFEST))
    copy = bucket.find(newest.removesuffix(f"/{MANIFEST}"), detail=True)
    (uploaded,) = uploads(run)
    assert uploaded["step"] == STEPS
    assert uploaded["bytes"] == sum(entry["size"] for path, entry in copy.items() if path != newest) > 0
    assert uploaded["seconds"] > 0


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
