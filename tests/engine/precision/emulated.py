"""Rounding to binary formats in float64, written from IEEE 754 and the OCP's FP8 specification, without torch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A binary format: its mantissa bits, its smallest normal exponent and its largest number."""

    mantissa: int
    exponent: int
    largest: float

    def round(self, numbers: Numbers) -> Numbers:
        """Round to nearest even, gradually to zero below the normal numbers, and saturate."""
        exponents = np.maximum(np.frexp(numbers)[1] - 1, self.exponent)
        unit = np.ldexp(1.0, exponents - self.mantissa)
        return np.clip(np.rint(numbers / unit) * unit, -self.largest, self.largest)

    def scale(self, amax: float) -> float:
        """Largest power of two that takes `amax` into the format."""
        power = 1.0
        while power * amax > self.largest:
            power /= 2
        while 2 * power * amax <= self.largest:
            power *= 2
        return power

    def scaled_round(self, numbers: Numbers, *, amax: float | None = None) -> Numbers:
        scale = self.scale(float(np.abs(numbers).max()) if amax is None else amax)
        return self.round(numbers * scale) / scale


E4M3 = Binary(mantissa=3, exponent=-6, largest=448.0)
E5M2 = Binary(mantissa=2, exponent=-14, largest=57344.0)
FP16 = Binary(mantissa=10, exponent=-14, largest=65504.0)
BF16 = Binary(mantissa=7, exponent=-126, largest=3.3895313892515355e38)
