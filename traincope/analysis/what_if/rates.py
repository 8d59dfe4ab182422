"""Rates of a run for `plan search --like`: FLOP/s of its compute, links of its axes, and the rest of its step."""

from statistics import median

from traincope.analysis.analyze import Analysis
from traincope.analysis.attribution.terms import AFTER_BUBBLE, COMPUTE, UNATTRIBUTED
from traincope.analysis.what_if.link_law import link_laws, sent_messages
from traincope.errors import UsageError
from traincope.plan.search.rates import MeasuredLink, MeasuredRates
from traincope.topology import PIPELINE_AXIS

HOST = (*AFTER_BUBBLE, UNATTRIBUTED)
"""Terms of a step that is neither compute, nor communication, nor bubble."""


def measured_rates(analysis: Analysis, *, source: str) -> MeasuredRates:
    """The rates. Raises UsageError if the run's FLOPs are unknown, or it has no counted step."""
    work = analysis.utilization.work
    ledgers = [rank for rank in analysis.ledger.ranks if rank.counted.any()]
    if not ledgers:
        raise UsageError(f"--like {source}: it has no counted step, so it shows no rate")
    steps = sum(int(rank.counted.sum()) for rank in ledgers)
    compute_ns = sum(rank.total(term) or 0 for rank in ledgers for term in COMPUTE) / steps
    executed = work.executed if work.executed is not None else work.model
    if executed is None or not compute_ns:
        raise UsageError(f"--like {source}: its FLOPs are unknown: {work.reason or work.model_reason}")
    axes = sorted({row.axis for row in analysis.comm if row.axis != PIPELINE_AXIS})
    links = {
        across: _link(analysis, [axis for axis in axes if _crosses(analysis, axis) is across])
        for across in (False, True)
    }
    return MeasuredRates(
        source=source,
        flops_per_second=executed / len(work.ranks) / (compute_ns / 1e9),
        holds_pointwise=True,
        node=links[False],
        network=links[True],
        host_seconds=median(sum(rank.total(term) or 0 for term in HOST) / int(rank.counted.sum()) for rank in ledgers)
        / 1e9,
    )


def _crosses(analysis: Analysis, axis: str) -> bool:
    """A group of the axis has ranks of several hosts."""
    hosts = {rank.rank: rank.info.host.name for rank in analysis.timeline.run.ranks}
    groups = {group.ranks for rank in analysis.timeline.ranks for group in rank.groups if group.axis == axis}
    return any(len({hosts.get(rank) for rank in group}) > 1 for group in groups)


def _link(analysis: Analysis, axes: list[str]) -> MeasuredLink | None:
    """The law of the axis with the largest groups whose fit separates bandwidth from latency; None without one."""
    for axis in sorted(axes, key=lambda axis: -_ranks(analysis, axis)):
        laws = link_laws(sent_messages(analysis.comm, axis), ranks=_ranks(analysis, axis))
        if len(laws) == 1 and laws[0].seconds_per_byte:
            return MeasuredLink(latency_seconds=laws[0].latency_seconds, bytes_per_second=1 / laws[0].seconds_per_byte)
    return None


def _ranks(analysis: Analysis, axis: str) -> int:
    sizes = [len(group.ranks) for rank in analysis.timeline.ranks for group in rank.groups if group.axis == axis]
    return max(sizes, default=1)
