"""The known answer about a training program: what it does, counted by hand."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FLOAT = 4
"""Bytes of a float32."""

Traffic = Mapping[tuple[str, str], tuple[int, int]]
"""Axis and operation -> number of collectives, and their bytes as nccl-tests count them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Amounts of one training, the same on every rank unless a field says otherwise."""

    steps: int
    optimizer: str
    """Class of the optimizer; empty if the program updates its weights by hand."""
    mesh: Mapping[str, int] = field(default_factory=dict)
    """Axis -> ranks, of the mesh that the program names; the report's header."""
    traffic: Traffic
    """Collectives of one rank in one step, the mean over ranks. Step 0 and evaluations do not count."""
    once: Traffic = field(default_factory=dict)
    """Collectives of one rank in the whole run after step 0, in addition, the mean over ranks."""
    flops: int | None
    """FLOPs of a step, summed over ranks: forward and backward. None: they cannot be counted."""
    evaluated_after: tuple[int, ...] = ()
    """Numbers of optimizer steps after which the program evaluates."""
    saved_after: tuple[int, ...] = ()
    """Numbers of optimizer steps after which it saves a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program, how it is launched, and the truth about it."""

    name: str
    program: str
    """Path below `evaluation/frameworks`."""
    arguments: tuple[str, ...] = ()
    package: str = "torch"
    """Environment in which it runs (`environments.PACKAGES`)."""
    ranks: int = 2
    own_launcher: bool = False
    """True if the program starts its ranks itself; otherwise torchrun does."""
    environment: Mapping[str, str] = field(default_factory=dict)
    truth: Truth

    def is_called(self, name: str) -> bool:
        """Return whether the name, the package or the file contains `name`, in any case."""
        return any(name.lower() in text.lower() for text in (self.name, self.package, self.program))
