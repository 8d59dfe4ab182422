"""Types of numpy arrays, and the 64-bit times before and after all others."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Codes = NDArray[np.int32]
"""Positions in a table of names."""
Numbers = NDArray[np.int64] | NDArray[np.int32]

BEFORE_ALL_NS, AFTER_ALL_NS = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
"""The time before all times and the time after all times. Do no arithmetic with them."""
