"""Environments of frameworks, each with its own packages before those of this project: `make test-integrations`.

An environment sees the project's packages, so torch is on the disk once.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-integrations"
TRACKERS = ("wandb==0.30.0", "mlflow-skinny==3.17.2", "tensorboard==2.21.0")
PACKAGES = {
    "hugging_face": ("transformers==5.24.0", "accelerate==1.15.0", *TRACKERS),
    "kernels": (
        "transformers==5.24.0",
        "accelerate==1.15.0",
        "peft==0.21.2",
        "liger-kernel==0.8.5",
        "triton==3.9.0",  # its interpreter runs Liger's kernels on a CPU
    ),
    "trl": (
        "trl==1.16.0",
        "transformers==5.24.0",
        "accelerate==1.15.0",
        "datasets==5.2.0",
        "pandas==2.3.3",  # datasets cannot hash a table with a later one
    ),
    "lightning": ("lightning==2.6.6", *TRACKERS),
    "deepspeed": ("deepspeed==0.19.8",),
    "ray": ("ray[train]==2.60.0",),
    "torchft": ("torchft==0.2.0",),
    "torchtitan": ("torchtitan==0.2.2", "triton==3.9.0"),  # triton only for its import
    "torchtitan_log": ("--no-deps", "torchtitan==0.3.0"),  # its log; its trainer needs a later torch
}
"""Environment -> its packages."""
SEES_THE_PROJECT = "import site; site.addsitedir({!r})\n"
"""Line of a .pth file. It also follows the .pth file of the editable install."""


def python_of(name: str) -> Path:
    return FOLDER / name / "bin" / "python"


def build(name: str, packages: tuple[str, ...]) -> None:
    """Create an environment, unless it has these packages."""
    made = FOLDER / name / "packages.txt"
    if made.is_file() and made.read_text().split() == [*packages]:
        return
    venv.create(FOLDER / name, with_pip=True)
    place = FOLDER / name / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (place / "project.pth").write_text(SEES_THE_PROJECT.format(sysconfig.get_path("purelib")))
    pip = (str(python_of(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # DeepSpeed's set-up imports the torch of this environment.
    subprocess.run([*pip, "--no-build-isolation", *packages], check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
    made.write_text("\n".join(packages))


if __name__ == "__main__":
    for name in sys.argv[1:] or PACKAGES:
        build(name, PACKAGES[name])
