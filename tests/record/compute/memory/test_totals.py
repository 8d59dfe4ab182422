"""Peaks of phases on a GPU, by an allocator that counts as `torch.cuda` does; tests/gpu has the real one."""

import torch

from traincope.record.compute.memory.totals import ALL, ALLOCATED, CURRENT, PEAK, RESERVED, AllocatorTotals


class VirtualAllocator:
    """Counters of torch's caching allocator: a reset sets the peak to the current bytes (torch.cuda.memory)."""

    def __init__(self) -> None:
        self.current = self.peak = self.reserved = 0

    def allocate(self, num_bytes: int) -> None:
        self.current += num_bytes
        self.peak, self.reserved = max(self.peak, self.current), max(self.reserved, self.current)

    def memory_stats_as_nested_dict(self) -> dict[str, dict[str, dict[str, int]]]:
        if not self.reserved:
            return {}
        allocated = {CURRENT: self.current, PEAK: self.peak}
        return {ALLOCATED: {ALL: allocated}, RESERVED: {ALL: {CURRENT: self.reserved}}}

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.current


def test_without_permission_the_peak_stays_the_training_s() -> None:
    allocator = VirtualAllocator()
    totals = AllocatorTotals(allocator)
    allocator.allocate(70)
    allocator.allocate(-60)
    assert totals.read()[:3] == totals.read()[:3] == (10, 70, 70)
    counters, process = totals.measures[:3], totals.measures[3:]
    assert [str(measure) for measure in counters] == ["allocated", "reserved", "peak allocated"]
    assert [str(measure) for measure in process] == ["resident", "peak resident"]
    assert allocator.peak == 70


def test_with_permission_each_reading_has_the_peak_since_the_one_before() -> None:
    """Forward reaches 50 and leaves 40, backward reaches 90 and leaves 10, the optimizer reaches 15."""
    allocator, readings = VirtualAllocator(), []
    totals = AllocatorTotals(allocator, resets_peaks=True)
    assert totals.read()[:4] == (0, 0, 0, 0)
    for reached, left in ((50, 40), (90, 10), (15, 10)):
        allocator.allocate(reached - allocator.current)
        allocator.allocate(left - allocator.current)
        readings.append(totals.read()[:4])
    assert readings == [(40, 50, 50, 50), (10, 90, 90, 90), (10, 90, 90, 15)]
    assert len(totals.measures) == len(totals.read())


def test_torch_has_these_counters_and_this_reset() -> None:
    """Without a GPU the counters are empty, so only their names' making can be checked."""
    assert callable(torch.cuda.reset_peak_memory_stats)
    assert torch.cuda.is_available() or torch.cuda.memory_stats_as_nested_dict() == {}
    documentation = torch.cuda.memory_stats.__doc__ or ""
    assert all(
        f'"{name}.{{all,large_pool,small_pool}}' in documentation for name in ("allocated_bytes", "reserved_bytes")
    )
    assert all(word in documentation for word in ("current", "peak"))
