"""The constants of a family of devices, fitted on published trainings.

The fit minimises the sum of soft absolute errors, in logs, of predicted over published time, and of the squared
distances of the constants from what kernels and links are known to reach (`PRIORS`). The distances keep a constant that
the trainings say little about where it is plausible. Rows of one model in one table are nearly alike, so together they
weigh as the square root of their number.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.truth.formulas.trainings import Training
from traincope.errors import UsageError
from traincope.plan.layout.families import AMPERE, HOPPER, Family
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.memory import RankMemory, memory
from traincope.plan.layout.prediction import Prediction, exact_bubble, predict

ERROR = 0.1
"""Error in logs above which a row's weight falls."""
STEP = 1e-3
KERNELS = (
    "product",
    "depth",
    "attention",
    "attention_head",
    "attention_tokens",
    "triton",
    "copies",
    "unhidden",
    "contention",
)
LINKS = ("link_share", "network_share")
NAMES = KERNELS + LINKS
SHARES = frozenset(NAMES) - {"depth", "attention_head", "attention_tokens"}

PRIORS: Mapping[str, Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        AMPERE.name: {
            "product": (0.85, 0.1),
            "depth": (120, 0.5),
            "attention": (0.70, 0.25),
            "attention_head": (20, 1.0),
            "attention_tokens": (400, 0.5),
            "triton": (0.65, 0.3),
            "copies": (0.75, 0.3),
            "unhidden": (0.4, 0.5),
            "contention": (0.4, 0.5),
            "link_share": (0.75, 0.2),
            "network_share": (0.75, 0.2),
        },
        HOPPER.name: {
            "product": (0.70, 0.1),
            "depth": (250, 0.5),
            "attention": (0.50, 0.25),
            "attention_head": (20, 1.0),
            "attention_tokens": (500, 0.5),
            "triton": (0.4, 0.5),
            "copies": (0.75, 0.3),
            "unhidden": (0.4, 0.5),
            "contention": (0.4, 0.5),
            "link_share": (0.75, 0.2),
            "network_share": (0.75, 0.2),
        },
    }
)
"""Family -> constant -> its value and its standard deviation in logs. Products and attention: figures 4 to 6 of
FlashAttention-2 (arXiv:2307.08691) and 5 and 6 of FlashAttention-3 (arXiv:2407.08608); copies: Azure AI benchmarking
guide; links: bus bandwidths that nccl-tests show on such nodes; the others are orders of magnitude."""


class Predictor:
    """Predicts a training for any constants. What does not depend on them is computed once."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self._parts: list[tuple[Layout, tuple[RankMemory, ...], float]] = []
        for layout in training.layouts:
            try:
                held = memory(training.shape, layout=layout, precision=training.precision, policy=training.policy)
            except UsageError:
                continue
            self._parts.append((layout, held, exact_bubble(training.shape, layout=layout)))

    def prediction(self, family: Family) -> Prediction:
        """Prediction of the fastest possible layout."""
        training = self.training
        machine = family.applied(training.machine)
        return min(
            (
                predict(
                    training.shape,
                    layout=layout,
                    precision=training.precision,
                    policy=training.policy,
                    machine=machine,
                    causal_half=training.causal_half,
                    held=held,
                    bubble=bubble,
                )
                for layout, held, bubble in self._parts
            ),
            key=lambda predicted: predicted.expected_seconds,
        )

    def log_error(self, family: Family) -> float:
        """Logarithm of predicted over published time."""
        return float(np.log(self.prediction(family).expected_seconds / self.training.seconds))


def fit(predictors: Sequence[Predictor], start: Family, *, rounds: int = 12) -> Family:
    """Constants of `start`'s family, by Levenberg and Marquardt from those of `start`, in the constants' logs."""
    point, damping = np.log([value(start, name) for name in NAMES]), 1e-2
    residuals = _residuals(predictors, start, point)
    for _ in range(rounds):
        steps = np.eye(len(point)) * STEP
        slopes = np.stack([_residuals(predictors, start, point + each) - residuals for each in steps], axis=1) / STEP
        squares, before = slopes.T @ slopes, residuals @ residuals
        while damping < 1e6:
            moved = point + np.linalg.solve(squares + damping * np.diag(np.diag(squares)), -slopes.T @ residuals)
            after = _residuals(predictors, start, moved)
            if after @ after < before:
                point, residuals, damping = moved, after, damping / 4
                break
            damping *= 5
        if before - residuals @ residuals < 1e-4 * before:
            break
    return _family(start, point)


def _residuals(predictors: Sequence[Predictor], family: Family, point: NDArray[np.float64]) -> NDArray[np.float64]:
    alike = Counter(_alike(each.training) for each in predictors)
    weights = np.array([alike[_alike(each.training)] ** -0.25 for each in predictors])
    fitted = _family(family, point)
    errors = np.array([each.log_error(fitted) for each in predictors]) / ERROR
    # The square of this is a soft absolute value.
    soft = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
    priors = PRIORS[family.name]
    away = [(value - np.log(priors[name][0])) / priors[name][1] for name, value in zip(NAMES, point, strict=True)]
    return np.concatenate([weights * soft, away])


def _alike(training: Training) -> tuple[str, str]:
    return training.source, training.model


def value(family: Family, name: str) -> float:
    """A constant by its name."""
    return float(getattr(family if name in LINKS else family.kernels, name))


def _family(family: Family, point: NDArray[np.float64]) -> Family:
    values = dict(zip(NAMES, map(float, np.exp(point)), strict=True))
    values = {name: min(value, 1.0) if name in SHARES else value for name, value in values.items()}
    reached: dict[str, Any] = {name: values[name] for name in KERNELS}
    kernels = replace(family.kernels, **reached)
    return Family(
        name=family.name,
        kernels=kernels,
        link_share=values["link_share"],
        network_share=values["network_share"],
    )
