"""Both files of a release contain what the repository has in its packages, and nothing else."""

import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from tests.release.distribution import ROOT, build_wheel
from tests.release.environments import SECONDS

pytestmark = [pytest.mark.release, pytest.mark.timeout(SECONDS)]

PACKAGES = ("traincope", "exporters/traincope_exporters", "dashboards/traincope_dashboards")
LINKED = ("traincope/findings", "docs/findings")
OF_THE_BUILD = ("PKG-INFO", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
"""Files of an sdist in addition to the packages and their egg-info."""


def tracked() -> set[str]:
    """Files of the packages in the repository, as paths of the repository. The link to the findings has its files."""
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES, LINKED[1]], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return {name.replace(LINKED[1], LINKED[0]) for name in listed} - {LINKED[0]}


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_the_wheel_has_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    installed = {name.removeprefix("exporters/").removeprefix("dashboards/") for name in tracked()}
    assert {name for name in contents(wheel) if ".dist-info/" not in name} == installed


def test_the_sdist_has_no_other_files(sdist: Path) -> None:
    with tarfile.open(sdist) as file:
        names = {"/".join(PurePosixPath(member.name).parts[1:]) for member in file if member.isfile()}
    expected = tracked() | set(OF_THE_BUILD)
    assert names - expected == {name for name in names if ".egg-info/" in name}
    assert expected <= names


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    assert contents(build_wheel(sdist, tmp_path)) == contents(wheel)


def test_an_older_python_is_refused_in_one_sentence(wheel: Path) -> None:
    """With the newest pyenv Python 3.10, where there is one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [*pyenv.glob("versions/3.10.*/bin/python"), *filter(None, [shutil.which("python3.10")])]
    if not found:
        pytest.skip("no Python 3.10 is here")
    command = [str(found[0]), "-m", "pip", "install", "--no-deps", "--dry-run", str(wheel)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    (sentence,) = [line for line in refused.stderr.splitlines() if line.startswith("ERROR")]
    assert "'traincope' requires a different Python: 3.10." in sentence
    assert "not in '>=3.11'" in sentence
