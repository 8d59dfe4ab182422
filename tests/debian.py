"""Programs from Debian's packages that tests need."""

import os
import shutil

import pytest


def need(program: str, *, package: str) -> str:
    """Path of `program`. If it is not installed, the test is skipped; in CI it fails."""
    path = shutil.which(program)
    if path is None:
        reason = f"{program} is not installed: apt-get install {package}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path
