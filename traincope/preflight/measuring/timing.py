"""Time of one repetition of a piece of work on this rank's device."""

import time
from collections.abc import Callable
from statistics import median

import torch


def repetition_seconds(work: Callable[[], object], *, device: torch.device, repetitions: int) -> float:
    """Seconds of one repetition: the fastest on a CPU, whose cores others use too, the median on a GPU.

    The device's queue is empty before and after each repetition.
    """
    seconds = []
    for _ in range(repetitions):
        finish(device)
        started = time.perf_counter()
        work()
        finish(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds) if device.type == "cpu" else median(seconds)


def finish(device: torch.device) -> None:
    """Wait for the device's queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
