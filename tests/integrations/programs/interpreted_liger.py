"""Liger's kernels in Triton's interpreter, on a CPU. TRITON_INTERPRET=1 must be set.

The interpreter leaves a float of Python as it is, and lacks CUDA's `rsqrt`. A compiled kernel has both.
"""

from typing import Any

import numpy as np
import triton.language as tl
from liger_kernel.ops import rms_norm
from triton.runtime import interpreter


def interpret() -> None:
    converted = interpreter._implicit_cvt

    def convert(argument: Any) -> Any:
        if not isinstance(argument, float):
            return converted(argument)
        return tl.tensor(interpreter.TensorHandle(np.array([argument], dtype=np.float32), tl.float32), tl.float32)

    interpreter._implicit_cvt = convert
    rms_norm.rsqrt = lambda value: 1.0 / tl.sqrt(value)
