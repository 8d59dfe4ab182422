"""The table `[checkpoint]`: when and where the training's state is saved."""

from dataclasses import dataclass
from typing import Literal

from traincope.engine.config.checks import require, require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints of a training. Without this table none is saved."""

    directory: str | None = None
    """Folder of the checkpoints. All ranks share it, or with `upload` those of a host. None: `checkpoints` in the run
    directory."""
    every: int = 100
    """Steps from one checkpoint to the next. The last step is always saved."""
    cadence: Literal["fixed", "auto"] = "fixed"
    """With auto, `every` holds up to the first checkpoint of each attempt. Then the interval is Daly's, from the
    measured time of saves and steps and the rate of failures."""
    mtbf_hours: float | None = None
    """Expected time between failures of the whole job, for `auto`. None: 50,700 hours divided by the ranks."""
    keep: int = 2
    """Newest checkpoints that stay. With 1, a damaged checkpoint leaves none."""
    asynchronous: bool = False
    """Write in the background, from a copy in the CPU's memory. The training waits only for the copy, and for the
    checkpoint before if that is not complete."""
    upload: str | None = None
    """URL for fsspec, for example s3://bucket/prefix. Each checkpoint is copied there in the background."""
    upload_wait_seconds: float = 600
    """Longest wait at the end of the training for uploads."""

    def __post_init__(self) -> None:
        for name in ("every", "keep", "upload_wait_seconds"):
            require_positive(getattr(self, name), key=f"checkpoint.{name}")
        if self.upload is not None:
            require(
                "://" in self.upload,
                f"checkpoint.upload is {self.upload!r}; give a URL, for example s3://bucket/prefix",
            )
        if self.mtbf_hours is not None:
            require_positive(self.mtbf_hours, key="checkpoint.mtbf_hours")
            require(self.cadence == "auto", "checkpoint.mtbf_hours has no effect; set checkpoint.cadence to 'auto'")
