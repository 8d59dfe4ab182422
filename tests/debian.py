"""Programs from Debian's packages that tests need."""

import os
import shutil
import subprocess
from collections.abc import Mapping

import pytest

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
"""Daemons lie in the folders at its end."""


def installed(programs: Mapping[str, str]) -> bool:
    """Return True if these programs (name -> package) are there. As root, install them if one is missing."""
    if not all(shutil.which(program, path=PATH) for program in programs) and os.getuid() == 0:
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *programs.values()]
        variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        if shutil.which("apt-get"):
            subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
            subprocess.run(install, env=variables, check=False, stdout=subprocess.DEVNULL)
    return all(shutil.which(program, path=PATH) for program in programs)


def need(program: str, *, package: str) -> str:
    """Path of `program`. If it is not installed, the test is skipped; in CI it fails."""
    path = shutil.which(program)
    if path is None:
        reason = f"{program} is not installed: apt-get install {package}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path
