"""Student's distribution: quantiles of 95 % intervals, and probabilities."""

from math import atan2, inf, pi, sqrt
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)
"""Points and weights of the Gauss-Legendre quadrature."""


def student_quantile(freedom: int) -> float:
    """Two-sided quantile of CONFIDENCE of Student's t (Abramowitz and Stegun 1964, 26.7.5); 3 digits from 4 degrees."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160
    return z + first / freedom + second / freedom**2 + third / freedom**3 + fourth / freedom**4


def student_tail(t: float, freedom: float) -> float:
    """Two-sided probability of a value as far from 0 as `t` by Student's distribution.

    With t = sqrt(freedom) tan(a), the density of a is proportional to cos(a) ** (freedom - 1).
    """

    def area(begin: float) -> float:
        middle, half = (pi / 2 + begin) / 2, (pi / 2 - begin) / 2
        return half * float(WEIGHTS @ np.cos(middle + half * NODES) ** (freedom - 1))

    return area(atan2(abs(t), sqrt(freedom))) / area(0.0) if abs(t) < inf else 0.0
