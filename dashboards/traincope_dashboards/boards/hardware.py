"""Dashboard: clocks, power, temperature and errors of the GPUs as NVML reports them, the hosts' links, and memory."""

from collections.abc import Iterator

from traincope.metrics.catalogue import (
    GPU_CLOCK,
    GPU_ECC,
    GPU_ENERGY,
    GPU_NVLINK,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_THROTTLED,
    GPU_XID,
    LINK_ERRORS,
    LINK_SPEED,
    LINK_TRAFFIC,
    LINK_UP,
    MEMORY,
    SLOT_WIDTH,
)
from traincope_dashboards.foreign import pods, utilization
from traincope_dashboards.panels.board import Board
from traincope_dashboards.panels.panels import BYTES, RATIO, Column, Panel, Query, listing, over_time, rows
from traincope_dashboards.panels.variables import RANKS_NEED, Scopes

_NO_GPU = "no GPU, or NVML is missing: see traincope doctor"
_GPU = "{{host}} GPU {{gpu}}"


def _panels(scopes: Scopes) -> Iterator[Panel]:
    shown = scopes.shown
    sent = shown.rate(LINK_TRAFFIC, direction='="sent"')
    yield rows(
        "SM clock",
        text=(
            f"One row per GPU, by default per host: its slowest GPU. {RANKS_NEED} Darker is faster. A light row holds "
            "the others up: look for the reason in Throttled."
        ),
        query=Query(expression=f"max by (host, gpu) ({shown.series_of(GPU_CLOCK)})", legend=_GPU),
        unit="hertz",
        if_empty=_NO_GPU,
    )
    yield over_time(
        "Throttled",
        text=(
            "Number of throttled GPUs, by reason. Thermal: check cooling, dust and position in the rack. Power "
            "brake: check the host's power supply. Software power cap: the GPU's power limit, normal under full "
            "load."
        ),
        queries=[Query(expression=f"sum by (reason) ({shown.series_of(GPU_THROTTLED)})", legend="{{reason}}")],
        if_empty=f"nothing, or {_NO_GPU}",
    )
    yield over_time(
        "Power",
        text=(
            f"Power of each chosen GPU, by default of all GPUs of a host. {RANKS_NEED} A line well below the others "
            "under the same load waits or is throttled. "
            "If all are low, the job waits: see MFU ledger."
        ),
        queries=[Query(expression=f"max by (host, gpu) ({shown.series_of(GPU_POWER)})", legend=_GPU)],
        unit="watt",
        if_empty=_NO_GPU,
    )
    yield over_time(
        "Mean power by energy",
        text=(
            "Growth of the energy counters of each host's GPUs per second. It misses no peak between two readings. "
            "traincope report shows the energy of a step."
        ),
        queries=[Query(expression=f"sum by (host) ({shown.rate(GPU_ENERGY)})", legend="{{host}}")],
        unit="watt",
        if_empty=_NO_GPU,
    )
    yield over_time(
        "Temperature",
        text=(
            f"Temperature of each chosen GPU, by default of a host's hottest one. {RANKS_NEED} Above about 85 C the "
            "clocks are lowered. A GPU that is hotter than "
            "its neighbours needs a technician."
        ),
        queries=[Query(expression=f"max by (host, gpu) ({shown.series_of(GPU_TEMPERATURE)})", legend=_GPU)],
        unit="celsius",
        if_empty=_NO_GPU,
    )
    yield listing(
        "XID errors",
        text=(
            "GPU errors by NVIDIA's XID number, since the attempt began. 48, 63, 64, 94, 95: memory; 79: fell "
            "off the bus; 74: NVLink; 13, 31: the program. For memory errors and 79, take the host out of the "
            "job."
        ),
        keys=["host", "gpu", "xid"],
        columns=[
            Column(name="errors", expression=f"max by (host, gpu, xid) ({shown.series_of(GPU_XID)})", unit="none")
        ],
        if_empty="none so far, or no GPU",
        width=12,
    )
    yield listing(
        "ECC errors",
        text=(
            "ECC errors since the driver was loaded. Corrected errors are harmless up to thousands. An "
            "uncorrected error kills the process that owns the page."
        ),
        keys=["host", "gpu", "kind"],
        columns=[
            Column(name="errors", expression=f"max by (host, gpu, kind) ({shown.series_of(GPU_ECC)})", unit="none")
        ],
        if_empty=_NO_GPU,
        width=12,
    )
    yield over_time(
        "NVLink errors",
        text=(
            "CRC, replay and recovery errors of the chosen GPUs. A rising counter is a bad link: the tensor "
            "axis slows down first."
        ),
        queries=[Query(expression=f"max by (host, gpu) ({shown.series_of(GPU_NVLINK)})", legend=_GPU)],
        if_empty=_NO_GPU,
    )
    yield over_time(
        "Network",
        text=(
            "Bytes that the ports of the ten busiest hosts send per second, from the kernel. InfiniBand and RoCE count "
            "RDMA. A host below the others waits, or its link is slow: look for its errors and its speed."
        ),
        queries=[
            Query(
                expression=f"topk(10, sum by (host, port) ({sent}))",
                legend="{{host}} {{port}}",
            )
        ],
        unit="Bps",
        if_empty="no port with traffic",
    )
    yield listing(
        "Link errors",
        text=(
            "Errors of ports and PCIe slots by the kernel's name of the count, since the agent began. Retransmits and "
            "lost links make collectives of all ranks slow. TCP is all connections of the host."
        ),
        keys=["host", "port", "kind"],
        columns=[
            Column(name="errors", expression=f"max by (host, port, kind) ({shown.series_of(LINK_ERRORS)})", unit="none")
        ],
        if_empty="none so far",
        width=12,
    )
    yield listing(
        "Ports and narrow slots",
        text=(
            "20 ports, those without a link first: 0 is a port that had a link and lost it. Lanes: cards on the PCIe "
            "bus that had fewer lanes than they and the port above can have. Reseat cable or card, restart the host."
        ),
        keys=["host", "port"],
        columns=[
            Column(name="link", expression=f"bottomk(20, max by (host, port) ({shown.series_of(LINK_UP)}))"),
            Column(name="speed", expression=f"max by (host, port) ({shown.series_of(LINK_SPEED)})", unit="Bps"),
            Column(name="lanes", expression=f"max by (host, port) ({shown.series_of(SLOT_WIDTH)})", unit=RATIO),
        ],
        if_empty="none",
        width=12,
    )
    yield over_time(
        "Memory",
        text=(
            "Largest memory of a chosen rank, by measure: torch's allocator on a GPU, the process on a CPU. "
            "Reserved far above allocated is fragmentation; a steady rise over steps is a leak."
        ),
        queries=[Query(expression=f"max by (measure) ({shown.series_of(MEMORY)})", legend="{{measure}}")],
        unit=BYTES,
    )
    yield over_time(
        "Utilization by DCGM",
        text=(
            "Share of time in which any kernel ran on the GPUs of the ten least busy ranks, from dcgm-exporter. "
            "Low on one rank: it waits or feeds its GPU too slowly. It says nothing about efficiency: see MFU ledger."
        ),
        queries=[Query(expression=f"bottomk(10, {utilization(shown)})", legend="{{host}} rank {{rank}}")],
        unit=RATIO,
        if_empty="no dcgm-exporter, or no GPU",
        per_rank=True,
    )
    yield listing(
        "Pods",
        text=(
            "The run's pods with their node and what created them, from kube-state-metrics. To cordon a host, use the "
            "name of its node. It needs POD_NAME and POD_NAMESPACE in the pod: see docs/operate/fleet.md."
        ),
        keys=["host", "namespace", "pod", "node", "created_by_name"],
        columns=[Column(name="is known", expression=pods(shown))],
        if_empty="no kube-state-metrics, or not in Kubernetes",
        width=12,
    )


HARDWARE = Board(
    uid="traincope-hardware",
    title="traincope / Hardware",
    about="Do GPUs and links work at full speed: clocks, power, temperature, errors, memory?",
    panels=_panels,
)
