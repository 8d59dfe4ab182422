"""Build the files of a release from this checkout: `python -m tests.release.distribution DIRECTORY` (`make dist`)."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
SDIST = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"


def copy_sources(target: Path) -> Path:
    """Copy the files of this checkout that a build reads. A build writes next to them."""
    for name in ("traincope", "exporters", "dashboards"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    return target


def build_wheel(source: Path, target: Path) -> Path:
    """Build the wheel of a source tree or of an sdist with this environment's setuptools, without an index."""
    without = ("--no-deps", "--no-index", "--no-build-isolation")
    subprocess.run([*PIP, "wheel", *without, "-w", str(target), str(source)], check=True)
    (wheel,) = target.glob("*.whl")
    return wheel


def build_sdist(source: Path, target: Path) -> Path:
    subprocess.run([sys.executable, "-c", SDIST, str(target)], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (sdist,) = target.glob("*.tar.gz")
    return sdist


def main(target: Path) -> int:
    target.mkdir(exist_ok=True)
    if left := sorted(path.name for path in target.iterdir()):
        sys.exit(f"{target} holds {', '.join(left)}; give an empty directory")
    with tempfile.TemporaryDirectory() as folder:
        source = copy_sources(Path(folder))
        build_wheel(build_sdist(source, target), target)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
