"""Rates of a run for `plan search --like`: FLOP/s of its compute, links of its axes, and the rest of its step."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from traincope.analysis.analyze import Analysis
from traincope.analysis.attribution.terms import AFTER_BUBBLE, COMPUTE, UNATTRIBUTED
from traincope.analysis.what_if.link_law import link_laws, sent_messages
from traincope.errors import UsageError
from traincope.plan.search.rates import MeasuredLink, MeasuredRates, network_link
from traincope.topology import PIPELINE_AXIS

HOST = (*AFTER_BUBBLE, UNATTRIBUTED)
"""Terms of a step that is neither compute, nor communication, nor bubble."""


def measured_rates(analysis: Analysis, *, source: str, asked_by: str = "--like ") -> MeasuredRates:
    """The rates. Raises UsageError if the run's FLOPs are unknown, or it has no counted step.

    `asked_by` precedes the source in errors.
    """
    work = analysis.utilization.work
    ledgers = [rank for rank in analysis.ledger.ranks if rank.counted.any()]
    if not ledgers:
        raise UsageError(f"{asked_by}{source}: it has no counted step, so it shows no rate")
    steps = sum(int(rank.counted.sum()) for rank in ledgers)
    compute_ns = sum(rank.total(term) or 0 for rank in ledgers for term in COMPUTE) / steps
    executed = work.executed if work.executed is not None else work.model
    if executed is None or not compute_ns:
        raise UsageError(f"{asked_by}{source}: its FLOPs are unknown: {work.reason or work.model_reason}")
    axes = sorted({row.axis for row in analysis.comm if row.axis != PIPELINE_AXIS})
    hosts = {axis: _hosts(analysis, axis) for axis in axes}
    node = _link(analysis, {axis: names for axis, names in hosts.items() if len(set(names)) == 1})
    rings = {axis: names for axis, names in hosts.items() if len(set(names)) > 1}
    return MeasuredRates(
        source=source,
        flops_per_second=executed / len(work.ranks) / (compute_ns / 1e9),
        holds_pointwise=True,
        # Only a processor has a number of threads.
        streams=not all("threads" in rank.info.device for rank in analysis.timeline.run.ranks),
        node=node,
        network=_link(analysis, rings, node=node),
        host_seconds=median(sum(rank.total(term) or 0 for term in HOST) / int(rank.counted.sum()) for rank in ledgers)
        / 1e9,
    )


def _hosts(analysis: Analysis, axis: str) -> list[str | None]:
    """Host of each rank, of the axis' group that has most hosts, and of those most ranks."""
    names = {rank.rank: rank.info.host.name for rank in analysis.timeline.run.ranks}
    groups = {group.ranks for rank in analysis.timeline.ranks for group in rank.groups if group.axis == axis}
    of_groups = [[names.get(rank) for rank in group] for group in sorted(groups)]
    return max(of_groups, key=lambda each: (len(set(each)), len(each)), default=[])


def _link(
    analysis: Analysis, hosts: Mapping[str, Sequence[str | None]], *, node: MeasuredLink | None = None
) -> MeasuredLink | None:
    """The law of an axis whose fit separates bandwidth from latency; None without one.

    Groups with one rank per host are best, and then the largest ones.
    """

    def crowd(axis: str) -> tuple[int, int]:
        crosses = len(set(hosts[axis])) > 1
        return max(Counter(hosts[axis]).values()) if crosses else 1, -len(hosts[axis])

    for axis in sorted(hosts, key=crowd):
        names = hosts[axis]
        laws = link_laws(sent_messages(analysis.comm, axis), ranks=len(names))
        if len(laws) == 1 and laws[0].seconds_per_byte:
            (law,) = laws
            ring = MeasuredLink(latency_seconds=law.latency_seconds, bytes_per_second=1 / law.seconds_per_byte)
            if len(set(names)) == 1:
                return ring
            return network_link(ring, names, node_latency_seconds=None if node is None else node.latency_seconds)
    return None
