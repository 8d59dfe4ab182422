"""Measure the peak of this processor, and keep it for reports of runs on this machine."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from traincope.doctor.finding import Examination, Finding, Section, note, ok
from traincope.doctor.kernel_times import measure_kernels
from traincope.engine.ranks.peak import saturated_peak
from traincope.errors import UsageError
from traincope.plan.measured_peaks import MeasuredPeak, cache_file, keep_peak
from traincope.plan.search.kernel_rates import KernelRates
from traincope.record.session.environment import processor
from traincope.record.session.identity import this_host
from traincope.units import count, duration, flops, gigabytes_per_second

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def measure_peak(environment: Mapping[str, str], *, threads: int | None, rates: Path | None = None) -> Examination:
    """Measure matrix products of each dtype with `threads` threads; None: as many as torch uses here.

    Takes up to a minute. The machine should be idle. `rates`: file for the times of kernels by shape, on the GPU if
    there is one, which take up to two minutes more. Raises UsageError if it cannot be written.
    """
    before = torch.get_num_threads()
    threads = before if threads is None else threads
    torch.set_num_threads(threads)
    try:
        measured = {dtype_name(dtype): saturated_peak(dtype) for dtype in DTYPES}
        kernels = None if rates is None else measure_kernels()
    finally:
        torch.set_num_threads(before)
    peak = MeasuredPeak(
        host=this_host().name,
        device=processor(),
        threads=threads,
        flops={name: rate for name, (rate, _) in measured.items()},
    )
    sizes = {name: side for name, (_, side) in measured.items()}
    sections = [Section(title="PEAK", findings=(*_rates(peak, sizes), _kept(peak, environment)))]
    if rates is not None and kernels is not None:
        sections.append(Section(title="KERNELS", findings=tuple(_written(rates, kernels))))
    return Examination(
        subject=f"{peak.device}, {count(threads, 'thread')} of one process",
        sections=tuple(sections),
    )


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _rates(peak: MeasuredPeak, sizes: Mapping[str, int]) -> Iterator[Finding]:
    for dtype, rate in peak.flops.items():
        side = sizes[dtype]
        yield ok(dtype, f"{flops(rate, 'FLOP/s')}, in products of {side} x {side} matrices")


def _written(path: Path, kernels: KernelRates) -> Iterator[Finding]:
    """Write the times of kernels. Raises UsageError if that fails."""
    try:
        path.write_text(json.dumps(kernels.document(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--rates {path} cannot be written: {error.strerror or error}") from error
    rows = ((2 * row.rows * row.inner * row.outer / row.seconds, row) for row in kernels.products)
    best, row = max(rows, key=lambda each: each[0])
    yield ok("products", f"up to {flops(best, 'FLOP/s')}, {row.rows} x {row.inner} x {row.outer} in bfloat16")
    yield ok("copies", f"{gigabytes_per_second(kernels.copied_bytes_per_second)} GB/s")
    yield ok("launches", f"{duration(kernels.launch_seconds * 1e9)} each")
    yield ok("kernels", f"of {kernels.device} in {path}, for `traincope plan search --rates {path}`")


def _kept(peak: MeasuredPeak, environment: Mapping[str, str]) -> Finding:
    """Keep the peak, or say how to use it without the file."""
    path = cache_file(environment)
    rates = ", ".join(f"'{dtype}': {rate:.4g}" for dtype, rate in peak.flops.items())
    remedy = f"set XDG_CACHE_HOME to a directory that you can write, or call run.describe(peak_flops={{{rates}}})"
    if path is None:
        return note("kept", "nowhere: HOME and XDG_CACHE_HOME name no directory", do=remedy)
    try:
        keep_peak(path, peak)
    except OSError as error:
        return note("kept", f"nowhere: {path} cannot be written: {error.strerror or error}", do=remedy)
    return ok("kept", f"in {path}, for runs on {peak.host} with {count(peak.threads, 'thread')} per rank")
