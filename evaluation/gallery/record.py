"""Gallery of injected faults: `python -m evaluation.gallery.record DIRECTORY [NAME ...]` records them.

Each is a real training of a tiny model on two ranks of this machine. The committed run is a copy with other paths.
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from evaluation.gallery.committed import ROOT, copy_to_commit
from traincope.analysis import FaultKind, FindingKind
from traincope.store.job.hang_notices import read_notices

MODEL = "parallel.dp=2 model.layers=2 model.hidden=64 model.heads=2 model.kv_heads=2 model.ffn=128 model.sequence=64"
TRAINING = "train.steps=16 train.batch=8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """One recorded fault and the verdict that it must have."""

    name: str
    fault: str
    settings: str = ""
    finding: FindingKind | None
    """Kind of the first finding; None: the fault costs no time, and is only in the section FAULTS."""
    first_fault: FaultKind | None
    """Kind of the first entry of FAULTS; None: it has none."""
    ranks: tuple[int, ...]
    words: str
    """Words in the evidence of the finding, or in the entry of FAULTS."""
    stands_still: bool = False
    """The job would stand still for ever. It gets SIGTERM once its agent has announced that."""


EXHIBITS = (
    Exhibit(
        name="killed",
        fault="sigkill@rank=1,step=8",
        finding=FindingKind.KILLED_RANK,
        first_fault=FaultKind.KILLED,
        ranks=(1,),
        words="was killed (signal 9)",
    ),
    Exhibit(
        name="missing-collective",
        fault="missing_collective@rank=1,step=8",
        finding=FindingKind.MISMATCH,
        first_fault=FaultKind.MISMATCH,
        ranks=(1,),
        words="rank 1 issued all_reduce of 4 bytes",
    ),
    Exhibit(
        name="slow-rank",
        fault="slow@rank=1,step=2,phase=forward,seconds=0.1",
        settings="train.steps=72",
        finding=FindingKind.STRAGGLER,
        first_fault=None,
        ranks=(1,),
        words="rank 1",
    ),
    Exhibit(
        name="nan-gradient",
        fault="nan_gradient@rank=1,step=8",
        settings="stability.not_finite=skip",
        finding=None,
        first_fault=FaultKind.SKIPPED_STEP,
        ranks=(0, 1),
        words="the gradient norm is NaN",
    ),
    Exhibit(
        name="worker-killed",
        fault="worker_killed@rank=1,step=8",
        settings="data.workers=1",
        finding=FindingKind.FAILED_RANK,
        first_fault=FaultKind.EXCEPTION,
        ranks=(1,),
        words="it raised RuntimeError",
    ),
    Exhibit(
        name="checkpoint-stuck",
        fault="checkpoint_stuck@rank=1,step=8",
        settings="checkpoint.every=3",
        finding=FindingKind.STALL,
        first_fault=FaultKind.STALL,
        ranks=(1,),
        words="checkpoint",
        stands_still=True,
    ),
)


def record(exhibit: Exhibit, target: Path) -> None:
    """Train with the fault, and copy the run to `target`."""
    traincope = (sys.executable, "-m", "traincope.cli.main")
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / exhibit.name
        settings = f"{MODEL} {TRAINING} {exhibit.settings}".split()
        if "checkpoint.every" in exhibit.settings:
            settings.append(f"checkpoint.directory={Path(directory) / 'checkpoints'}")
        options = [word for setting in settings for word in ("--set", setting)]
        config = ("train", str(ROOT / "examples" / "ddp.toml"), *options)
        environment = {**os.environ, "TRAINCOPE_BUDGET": "none", "OMP_NUM_THREADS": "1"}
        fault = ("--fault", exhibit.fault, "--on-hang", "exit")
        command = [*traincope, *config, *fault, "--out", str(run)]
        with subprocess.Popen(command, env=environment) as training:
            if exhibit.stands_still:
                while not read_notices(run):
                    time.sleep(1)
                training.terminate()
            training.wait(timeout=500)
        while _is_named(run):  # torchrun and agents outlive their command
            time.sleep(1)
        copy_to_commit(run, target)
    subprocess.run(
        [*traincope, "report", str(target), "--format", "json", "-o", str(target / "expected.json")], check=True
    )
    (target / "MADE_BY").write_text(
        f"make sample-runs (traincope train --fault {exhibit.fault}, by evaluation/gallery)\n"
    )


def _is_named(run: Path) -> bool:
    """True while the command line of some process has the run's path."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(run).encode() in (process / "cmdline").read_bytes():
                return True
    return False


if __name__ == "__main__":
    directory, *names = sys.argv[1:]
    for exhibit in EXHIBITS:
        if not names or exhibit.name in names:
            record(exhibit, Path(directory) / exhibit.name)
