"""A finished run on this node, to be shipped."""

import shutil
from pathlib import Path

import pytest

from traincope.store.job.manifests import read_rank_info
from traincope.topology import Host

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(DEMO, tmp_path / "local", ignore=shutil.ignore_patterns("MADE_BY", "expected.json"))
    return tmp_path / "local"


@pytest.fixture
def host() -> Host:
    return read_rank_info(DEMO / "attempt-000" / "rank-00000").host
