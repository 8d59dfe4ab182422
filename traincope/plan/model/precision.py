"""Bytes of a parameter: itself, its gradient, and its optimizer state."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from traincope.errors import UsageError

DTYPES: Mapping[str, int] = MappingProxyType({"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1})
"""Name -> bytes of a number."""

OPTIMIZERS: Mapping[str, int] = MappingProxyType({"adamw": 2, "lion": 1, "muon": 1, "momentum": 1, "sgd": 0})
"""Name -> numbers that the optimizer keeps per parameter, without the parameter itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number formats by names of DTYPES and OPTIMIZERS. Raises UsageError for other names.

    The defaults are mixed precision as ZeRO counts it, 2 + 2 + 12 bytes (Rajbhandari et al. 2019, arXiv:1910.02054,
    section 3.1). Megatron-LM sums gradients in fp32: 2 + 4 + 12.
    """

    weights: str = "bf16"
    gradients: str = "bf16"
    activations: str = "bf16"
    optimizer: str = "adamw"
    states: str = "fp32"
    """Type of the optimizer's state."""
    master: bool = True
    """The optimizer keeps an fp32 copy of weights that are not fp32."""

    def __post_init__(self) -> None:
        for name in ("weights", "gradients", "activations", "states"):
            if getattr(self, name) not in DTYPES:
                raise UsageError(f"{name} = {getattr(self, name)!r} is not known; choose one of {', '.join(DTYPES)}")
        if self.optimizer not in OPTIMIZERS:
            raise UsageError(f"optimizer = {self.optimizer!r} is not known; choose one of {', '.join(OPTIMIZERS)}")

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of optimizer state per parameter: ZeRO's K."""
        master = DTYPES["fp32"] if self.master and self.weights != "fp32" else 0
        return master + OPTIMIZERS[self.optimizer] * DTYPES[self.states]


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes of model state on a rank."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer

    def __add__(self, other: "States") -> "States":
        return States(
            weights=self.weights + other.weights,
            gradients=self.gradients + other.gradients,
            optimizer=self.optimizer + other.optimizer,
        )


def model_states(parameters: int, *, precision: Precision, zero: int = 0, shards: int = 1) -> States:
    """Bytes of `parameters` parameters, shared by `shards` ranks as ZeRO's stage says.

    A share is rounded up. Rajbhandari et al. 2019, ZeRO, arXiv:1910.02054, section 5 and figure 1.
    """
    weights, gradients, states = (
        -(-parameters * size // (shards if zero >= stage else 1))
        for stage, size in (
            (3, DTYPES[precision.weights]),
            (2, DTYPES[precision.gradients]),
            (1, precision.optimizer_bytes),
        )
    )
    return States(weights=weights, gradients=gradients, optimizer=states)
