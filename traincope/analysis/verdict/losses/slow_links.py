"""Evidence of the hosts' links for findings about communication and late ranks. It names host and port.

A link with errors need not be what makes communication slow: the finding states both, and the time of the steps with
errors next to that of the others.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from traincope.analysis.faults.faults import OF_LINKS, Fault, FaultKind
from traincope.analysis.verdict.findings import Finding
from traincope.timeline import Timeline
from traincope.units import count

ADVICE = {
    FaultKind.LINK_ERRORS: (
        "Find where the packets are lost: compare the counts of both ends and of the switch (`ethtool -S`, "
        "`ip -s link`, `tc -s qdisc`, `perfquery`, `nvidia-smi nvlink -e`). Change cable, transceiver, port or card"
    ),
    FaultKind.LINK_DOWN: "Look into the log of the switch for that port, and change cable or transceiver",
    FaultKind.LINK_SLOW: (
        "Compare that link with a faster one (`ibstat`, `ethtool`, `lspci -vv`), reseat its card or cable, and restart "
        "the host"
    ),
}
MAX_SHOWN = 2


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """The faults of links of a run."""

    timeline: Timeline
    faults: tuple[Fault, ...]

    @classmethod
    def among(cls, faults: Sequence[Fault], timeline: Timeline) -> "LinkFaults":
        return cls(timeline, tuple(fault for fault in faults if fault.kind in OF_LINKS))

    def on_axis(self, axis: str) -> tuple[Fault, ...]:
        """Return the faults of links that groups of this axis use: those of a host, if the group has members on
        others, and those of a rank's own GPU.
        """
        if not self.faults:
            return ()
        hosts = {rank.rank: rank.info.host.name for rank in self.timeline.run.ranks}
        groups = {group.ranks for rank in self.timeline.ranks for group in rank.groups if group.axis == axis}
        shared = {ranks for ranks in groups if len({hosts.get(rank, "") for rank in ranks}) > 1}
        return tuple(
            fault
            for fault in self.faults
            if any(
                {*fault.ranks} & {*ranks} and len(ranks) > 1 and (len(fault.ranks) == 1 or ranks in shared)
                for ranks in groups
            )
        )

    def of_ranks(self, ranks: Collection[int], *, peers: Collection[int]) -> tuple[Fault, ...]:
        """Return the faults of links that all these ranks use, and none of their peers does."""
        return tuple(
            fault for fault in self.faults if {*ranks} <= {*fault.ranks} and not {*fault.ranks} & ({*peers} - {*ranks})
        )

    def explain(self, finding: Finding, axis: str) -> Finding:
        """Return the finding about communication on this axis with what its links show."""
        faults = self.on_axis(axis)
        if not faults:
            return finding
        return replace(
            finding,
            evidence=f"{finding.evidence}; {shown(faults)}",
            advice=f"{ADVICE[faults[0].kind]}. {finding.advice}",
        )


def shown(faults: Sequence[Fault]) -> str:
    """Return the first of these faults with their evidence, and the number of the others."""
    texts = [f"{fault.what} ({fault.evidence})" for fault in faults[:MAX_SHOWN]]
    more = len(faults) - MAX_SHOWN
    return "; ".join([*texts, *([f"and {count(more, 'more fault')} of links"] if more > 0 else [])])
