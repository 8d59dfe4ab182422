"""The table `[checkpoint]`: when and where the training's state is saved."""

from dataclasses import dataclass

from traincope.engine.config.checks import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints of a training. Without this table none is saved."""

    directory: str | None = None
    """Folder of the checkpoints, which all ranks reach. None: `checkpoints` in the run directory."""
    every: int = 100
    """Steps from one checkpoint to the next. The last step is always saved."""
    keep: int = 2
    """Newest checkpoints that stay. With 1, a damaged checkpoint leaves none."""
    asynchronous: bool = False
    """Write in the background, from a copy in the CPU's memory. The training waits only for the copy, and for the
    checkpoint before if that is not complete."""

    def __post_init__(self) -> None:
        for name in ("every", "keep"):
            require_positive(getattr(self, name), key=f"checkpoint.{name}")
