"""Environments of packages on which traincope does not depend: tools that read its files, or that start trainings.

They are made once, next to `.venv`; `make clean` removes them. A package that does not install is reported, and what it
would check is not checked.
"""

import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


@cache
def environment(name: str, *packages: str, on_ours: bool = False) -> Path | None:
    """Python of the environment `.venv-for-NAME` with these packages. None if they do not install.

    `on_ours`: it also has the packages of the environment that runs the tests, such as torch and traincope.
    """
    place = ROOT / f".venv-for-{name}"
    names = "-".join(package for package in packages if package not in CONSTRAINTS)
    python, ready = place / "bin" / "python", place / f".has-{names}"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        if on_ours:
            ours, theirs = (sysconfig.get_path("purelib", vars=paths) for paths in (None, {"base": str(place)}))
            Path(theirs, "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    if not ready.exists():
        if subprocess.run([str(python), *PIP, *packages], check=False).returncode:
            return None
        ready.touch()
    return python
