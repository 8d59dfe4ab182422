"""Measure kernels over a grid of shapes on this device: products, attention, copies and launches."""

import time
from collections.abc import Callable, Iterator
from itertools import product as grid

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from traincope.plan.search.kernel_rates import AttentionTime, KernelRates, ProductTime
from traincope.record.session.environment import processor

ROWS, INNERS, OUTERS = (2048, 4096, 8192, 16384), (512, 1024, 2048, 4096, 8192), (1024, 4096, 12288)
TOKENS, HEADS = (512, 1024, 2048, 4096, 8192, 16384), (64, 128)
ATTENTION_TOKENS, ATTENTION_WIDTH = 16384, 2048
"""Tokens of all sequences together, and width of all heads together."""
COPIED_ELEMENTS = 1 << 28
SMALLER = 32
"""A processor takes shapes that are smaller by this factor, in each size."""
Parts = tuple[Tensor, Tensor, Tensor]
ENOUGH_SECONDS, MIN_CALLS, LAUNCHES = 0.05, 5, 1000


def measure_kernels() -> KernelRates:
    """Measure the current GPU, or this processor, which should be idle. Takes up to two minutes."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda") if on_gpu else torch.device("cpu")
    less = 1 if on_gpu else SMALLER
    copied = torch.zeros(COPIED_ELEMENTS // less, dtype=torch.bfloat16, device=device)
    result = torch.empty_like(copied)
    seconds = _seconds(lambda: torch.add(copied, 1.0, out=result), device)
    return KernelRates(
        device=torch.cuda.get_device_name() if on_gpu else processor(),
        products=tuple(_products(device, less=less)),
        attention=tuple(_attention(device, less=less)),
        copied_bytes_per_second=2 * copied.nbytes / seconds,
        launch_seconds=_launch_seconds(device),
    )


def _products(device: torch.device, *, less: int) -> Iterator[ProductTime]:
    for sizes in grid(ROWS, INNERS, OUTERS):
        rows, inner, outer = (size // less for size in sizes)
        left = torch.randn(rows, inner, dtype=torch.bfloat16, device=device)
        right = torch.randn(inner, outer, dtype=torch.bfloat16, device=device)
        seconds = _seconds(lambda: left @ right, device)  # noqa: B023 - called at once
        yield ProductTime(rows=rows, inner=inner, outer=outer, seconds=seconds)


def _attention(device: torch.device, *, less: int) -> Iterator[AttentionTime]:
    for tokens, head in grid(TOKENS, HEADS):
        tokens //= less
        sequences, heads = max(ATTENTION_TOKENS // less // tokens, 1), max(ATTENTION_WIDTH // less // head, 1)
        shape = sequences, heads, tokens, head
        query, key, value = (
            torch.randn(shape, dtype=torch.bfloat16, device=device, requires_grad=True) for _ in range(3)
        )

        def attend(query: Tensor = query, key: Tensor = key, value: Tensor = value) -> Tensor:
            return scaled_dot_product_attention(query, key, value, is_causal=True)

        result = attend()
        gradient = torch.ones_like(result)

        def back(result: Tensor = result, gradient: Tensor = gradient, parts: Parts = (query, key, value)) -> object:
            return torch.autograd.grad(result, parts, gradient, retain_graph=True)

        with torch.no_grad():
            seconds = _seconds(attend, device)
        backward = _seconds(back, device)
        yield AttentionTime(
            sequences=sequences, heads=heads, head=head, tokens=tokens, seconds=seconds, backward_seconds=backward
        )


def _launch_seconds(device: torch.device) -> float:
    """Time in which the host queues a kernel that the device finishes sooner."""
    number = torch.zeros(1, device=device)
    _wait(device)
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        number.add_(1.0)
    took = time.perf_counter() - began
    _wait(device)
    return took / LAUNCHES


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Mean time of a call, from as many as fill ENOUGH_SECONDS, after as many to warm up."""
    calls = MIN_CALLS
    while True:
        _wait(device)
        began = time.perf_counter()
        for _ in range(calls):
            run()
        _wait(device)
        took = time.perf_counter() - began
        if took >= ENOUGH_SECONDS:
            return took / calls
        calls *= 4


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
