"""The wheel and the sdist of this checkout, built once per session."""

from pathlib import Path

import pytest

from tests.release.distribution import build_sdist, build_wheel, copy_sources


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="session")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sdist(source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))
