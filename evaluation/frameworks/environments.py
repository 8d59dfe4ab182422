"""Environments of the packages, one virtual environment each.

A line in each environment's site-packages adds those of `.venv`: torch as constraints.txt pins it, and traincope. pip
installs only what is missing there or must differ.
"""

import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torch": (),
    "transformers": ("transformers==5.23.0", "accelerate==1.15.0"),
    "accelerate": ("accelerate==1.15.0",),
    "lightning": ("pytorch-lightning==2.6.6",),
    "deepspeed": ("deepspeed==0.19.8",),
    "megatron": ("megatron-core==0.16.1",),
    "ray": ("ray[train]==2.60.0",),
    "torchtitan": ("torchtitan==0.2.2", "triton==3.9.0"),  # triton only for its import
}
"""Name of an environment -> its packages, pinned."""


class NotInstalled(Exception):
    """A package does not install here; with pip's reason."""


def python_of(package: str) -> Path:
    """Return the Python of a package's environment. Makes the environment if it is missing.

    Raises NotInstalled.
    """
    requirements = PACKAGES[package]
    if not requirements:
        return Path(sys.executable)
    place = ROOT / f".venv-frameworks-{package}"
    python, ready = place / "bin" / "python", place / ".ready"
    if not ready.exists() or ready.read_text().split() != list(requirements):
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(place)], check=True)
        _share(place)
        _install(python, place / "torch.txt", requirements)
        ready.write_text("\n".join(requirements))
    return python


def versions_of(package: str) -> str:
    """Return the pinned packages with their versions, torch included."""
    named = [requirement.replace("==", " ") for requirement in PACKAGES[package]]
    return ", ".join([*named, f"torch {version('torch').partition('+')[0]}"])


def _share(place: Path) -> None:
    """Add the packages of `.venv` after the environment's own. `addsitedir` also reads the .pth files there."""
    (own,) = place.glob("lib/python*/site-packages")
    (own / "shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")


def _install(python: Path, constraint: Path, requirements: tuple[str, ...]) -> None:
    """Install without build isolation: a package that builds against torch finds the one that is there."""
    constraint.write_text(f"torch=={version('torch')}\n")
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
    command = [str(python), *words, "-c", str(constraint), *requirements]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode:
        output = (ended.stdout + ended.stderr).splitlines()
        lines = [line for line in output if "depends on" in line or line.startswith("ERROR")]
        raise NotInstalled(lines[0].strip() if lines else f"pip ended with code {ended.returncode}")
