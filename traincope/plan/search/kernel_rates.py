"""Times of kernels that `traincope doctor --measure-peak --rates FILE` measured, and the constants that they give.

A constant is the one with which the formulas of `layout.kernels` miss the logarithms of the times least, in the mean of
absolute differences.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import Any

from traincope.errors import UsageError
from traincope.plan.layout.kernels import Kernels
from traincope.plan.layout.machine import Machine

FORMAT = "traincope kernel rates 1"
DEPTHS = (0.0, *(2 ** (each / 4) for each in range(52)))
"""Candidates of sizes with which a rate halves, 1 to 7,000 in steps of 19 %."""
HEADS = (0.0, *(2 ** (each / 2) for each in range(15)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTime:
    """Time of a product of rows x inner and inner x outer in 16 bits."""

    rows: int
    inner: int
    outer: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTime:
    """Time of the forward of causal attention, fused, in 16 bits."""

    sequences: int
    heads: int
    head: int
    """Width of a head."""
    tokens: int
    seconds: float
    backward_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """Times of kernels of one device."""

    device: str
    products: tuple[ProductTime, ...]
    attention: tuple[AttentionTime, ...]
    copied_bytes_per_second: float
    """Bytes that elementwise kernels read and write."""
    launch_seconds: float
    """Time in which the host launches one kernel."""

    def document(self) -> Mapping[str, Any]:
        """The JSON of a file."""
        return {"format": FORMAT, **asdict(self)}


def read_kernel_rates(path: Path) -> KernelRates:
    """Read a file of rates. Raises UsageError for any other file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise UsageError(f"--rates {path}: its format is {document['format']!r}, not {FORMAT!r}; measure again")
        rates = KernelRates(
            device=document["device"],
            products=tuple(ProductTime(**row) for row in document["products"]),
            attention=tuple(AttentionTime(**row) for row in document["attention"]),
            copied_bytes_per_second=float(document["copied_bytes_per_second"]),
            launch_seconds=float(document["launch_seconds"]),
        )
        if not (rates.products and rates.attention):
            raise ValueError("no rows")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"--rates {path}: not a file of `traincope doctor --measure-peak --rates`: {error or type(error).__name__}"
        ) from error
    return rates


def fitted_kernels(rates: KernelRates, machine: Machine) -> Kernels:
    """The machine's kernels with the measured constants. Raises UsageError if a rate is above the machine's peak."""
    known = machine.kernels
    depth, product = _product(rates.products, known, peak=machine.peak_flops)
    head, tokens, attention = _attention(rates.attention, peak=machine.peak_flops)
    if max(product, attention) > 1:
        raise UsageError(
            f"{rates.device} computes more than the peak of {machine.peak_flops:.3g} FLOP/s; name it with --gpu"
        )
    memory = machine.memory_bytes_per_second
    return replace(
        known,
        product=product,
        depth=depth,
        attention=attention,
        attention_head=head,
        attention_tokens=tokens,
        attention_backward=median(row.backward_seconds / row.seconds for row in rates.attention),
        copies=known.copies if memory is None else min(rates.copied_bytes_per_second / memory, 1.0),
        launch_seconds=rates.launch_seconds,
    )


def _product(rows: Sequence[ProductTime], known: Kernels, *, peak: float) -> tuple[float, float]:
    """(depth, share of peak of a large product)."""

    def shares(depth: float) -> Iterator[float]:
        kernels = replace(known, product=1.0, depth=depth)
        for row in rows:
            reached = 2 * row.rows * row.inner * row.outer / (row.seconds * peak)
            yield log(reached / kernels.product_share(row.rows, row.inner, row.outer))

    depth = min(DEPTHS, key=lambda each: _spread(shares(each)))
    return depth, exp(median(shares(depth)))


def _attention(rows: Sequence[AttentionTime], *, peak: float) -> tuple[float, float, float]:
    """(width of a head, and tokens, with which the rate halves; share of peak of a long attention with wide heads)."""

    def shares(constants: tuple[float, float]) -> Iterator[float]:
        kernels = Kernels(product=1.0, attention=1.0, attention_head=constants[0], attention_tokens=constants[1])
        for row in rows:
            # Two products, and the half that a causal mask leaves.
            flops = 2 * row.sequences * row.heads * row.head * row.tokens**2
            yield log(flops / (row.seconds * peak) / kernels.attention_share(row.tokens, row.head))

    candidates = ((head, tokens) for head in HEADS for tokens in DEPTHS)
    head, tokens = min(candidates, key=lambda each: _spread(shares(each)))
    return head, tokens, exp(median(shares((head, tokens))))


def _spread(logs: Iterator[float]) -> float:
    values = list(logs)
    middle = median(values)
    return mean(abs(value - middle) for value in values)
