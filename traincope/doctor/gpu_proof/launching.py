"""Start the trainings of the proof, one process per GPU through torchrun, and judge what they leave."""

import importlib.util
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from traincope.doctor.gpu import build_of, driver_version
from traincope.doctor.gpu_proof.judging import judge
from traincope.doctor.gpu_proof.proof import Proof
from traincope.engine.launch import Launch, launch
from traincope.errors import TraincopeError, TrainingError
from traincope.whole_files import write_whole

RANK = "traincope.cli.launch.gpu_proof_rank"
REASON_FILE = "reason.txt"
"""Reason of the first rank that failed, in one sentence."""
CPU = "cpu"
OTHER_SECONDS = 300.0
"""Longest time for all but the overhead: start, comparison, traces."""
GRACE_SECONDS = 45.0
"""Time for torchrun to end. It waits 30 s for its ranks before it kills them."""
ENVIRONMENT = {
    "TRAINCOPE": "on",
    "TRAINCOPE_AGENT": "off",
    "TRAINCOPE_BUDGET": "",
    "TRAINCOPE_LEVEL": "",
    "TRAINCOPE_RUN_ID": "",
}
"""Settings of the user do not change the proof."""


def prove(*, seconds: float, on_start: Callable[[int], object] = lambda _: None) -> Proof:
    """Train on every visible GPU and compare. `seconds`: length of the run that measures the overhead.

    `on_start` is called with the number of GPUs. Raises TraincopeError without a GPU, and TrainingError if a rank fails
    or does not end.
    """
    ranks = _count_gpus()
    on_start(ranks)
    with tempfile.TemporaryDirectory(prefix="traincope-proof-") as directory:
        run_ranks(Path(directory), ranks=ranks, seconds=seconds)
        return judge(Path(directory), on_gpu=True, driver=driver_version())


def run_ranks(
    folder: Path,
    *,
    ranks: int,
    seconds: float,
    device: str | None = None,
    module: str = RANK,
    other_seconds: float = OTHER_SECONDS,
) -> None:
    """Train in `ranks` processes, which leave their files in `folder`. `device`: CPU hides the GPUs.

    Raises TrainingError with the reason of the first rank that failed.
    """
    patience = _Patience(seconds=seconds + other_seconds)
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == CPU else {}
    job = Launch(
        ranks=ranks,
        arguments=(str(folder), str(seconds)),
        module=module,
        environment={**ENVIRONMENT, **hidden},
        wait=patience.wait,
    )
    try:
        launch(job)
    except TrainingError as error:
        if patience.over:
            raise TrainingError(
                f"the trainings did not end within {patience.seconds:.0f} s and were stopped; "
                "set NCCL_DEBUG=INFO and read where NCCL stands still"
            ) from error
        reason = folder / REASON_FILE
        if reason.is_file():
            raise TrainingError(reason.read_text(errors="replace")) from error
        raise


@contextmanager
def leaving_reason(folder: Path, *, rank: int) -> Iterator[None]:
    """Write why a rank failed, if its GPU or its process group was the reason. The first rank that fails counts.

    Raises TrainingError in place of these errors.
    """
    import torch
    import torch.distributed as dist

    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = (
            f"rank {rank} ran out of GPU memory; end other programs on its GPU, or choose other GPUs with "
            f"CUDA_VISIBLE_DEVICES ({_first_line(error)})"
        )
    except torch.AcceleratorError as error:
        reason = f"rank {rank} cannot use its GPU; end other programs on it, and read nvidia-smi ({_first_line(error)})"
    except dist.DistError as error:
        reason = f"rank {rank} failed in torch.distributed; set NCCL_DEBUG=INFO and read its log ({_first_line(error)})"
    else:
        return
    write_whole(folder / REASON_FILE, reason.encode(), only_new=True)
    raise TrainingError(reason)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _count_gpus() -> int:
    """Number of GPUs that torch sees. Raises TraincopeError without one."""
    if importlib.util.find_spec("torch") is None:
        raise TraincopeError("nothing was proved: torch is not installed in this Python")
    import torch

    if not torch.cuda.is_available():
        raise TraincopeError(
            f"nothing was proved: torch {torch.__version__} sees no GPU (it {build_of(torch.version.cuda)})"
        )
    return torch.cuda.device_count()


@dataclass(slots=True)
class _Patience:
    """Waits for torchrun, and stops it after some seconds."""

    seconds: float
    over: bool = field(default=False)

    def wait(self, torchrun: "subprocess.Popen[bytes]") -> int:
        """Return the exit code."""
        try:
            return torchrun.wait(self.seconds)
        except subprocess.TimeoutExpired:
            self.over = True
            torchrun.send_signal(signal.SIGTERM)
        try:
            return torchrun.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            torchrun.kill()
            return torchrun.wait()
