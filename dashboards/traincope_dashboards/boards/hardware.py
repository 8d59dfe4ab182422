"""Do the GPUs hold what they promise? What NVML says, and memory."""

from collections.abc import Iterator

from traincope.metrics import (
    GPU_CLOCK,
    GPU_ECC,
    GPU_NVLINK,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_THROTTLED,
    GPU_XID,
    MEMORY,
)
from traincope_dashboards.board import Board
from traincope_dashboards.panels import BYTES, Column, Panel, Query, listing, over_time, rows
from traincope_dashboards.variables import Scopes

_NO_GPU = "no GPU, or NVML is not there: see traincope doctor"
_GPU = "{{host}} GPU {{gpu}}"


def _panels(scopes: Scopes) -> Iterator[Panel]:
    shown = scopes.shown
    yield rows(
        "SM clock",
        how="A row a GPU of the chosen hosts, darker where it runs faster. A light row computes slower than the"
        " others and holds them up: see why it is throttled.",
        query=Query(expression=f"max by (host, gpu) ({shown.of(GPU_CLOCK)})", legend=_GPU),
        unit="hertz",
        none=_NO_GPU,
    )
    yield over_time(
        "Throttled",
        how="GPUs slowed down, by reason. Thermal: cooling, dust, position in the rack; power brake: the host's"
        " supply; software power cap: the limit set for the GPU, ordinary under full load.",
        queries=[Query(expression=f"sum by (reason) ({shown.of(GPU_THROTTLED)})", legend="{{reason}}")],
        none=f"nothing, or {_NO_GPU}",
    )
    yield over_time(
        "Power",
        how="Power of each chosen GPU. One well below the others under the same load: it waits, or is throttled."
        " All low: the job waits for something, see MFU ledger.",
        queries=[Query(expression=f"max by (host, gpu) ({shown.of(GPU_POWER)})", legend=_GPU)],
        unit="watt",
        none=_NO_GPU,
    )
    yield over_time(
        "Temperature",
        how="Of each chosen GPU. Above some 85 C clocks are lowered; one that is hotter than its neighbours needs a"
        " technician.",
        queries=[Query(expression=f"max by (host, gpu) ({shown.of(GPU_TEMPERATURE)})", legend=_GPU)],
        unit="celsius",
        none=_NO_GPU,
    )
    yield listing(
        "XID errors",
        how="Errors of a GPU by NVIDIA's number, since the attempt began. 48, 63, 64, 94, 95: memory; 79: fell off"
        " the bus; 74: NVLink; 13, 31: the program. Take a host with the first ones out of the job.",
        keys=["host", "gpu", "xid"],
        columns=[Column(name="errors", expression=f"max by (host, gpu, xid) ({shown.of(GPU_XID)})", unit="none")],
        none="none so far",
        width=12,
    )
    yield listing(
        "ECC errors",
        how="Since the driver was loaded. Corrected ones are harmless unless they come by the thousand; an"
        " uncorrected one kills the process that owns the page.",
        keys=["host", "gpu", "kind"],
        columns=[Column(name="errors", expression=f"max by (host, gpu, kind) ({shown.of(GPU_ECC)})", unit="none")],
        none=_NO_GPU,
        width=12,
    )
    yield over_time(
        "NVLink errors",
        how="CRC, replay and recovery errors of the chosen GPUs. A counter that climbs is a bad link: the tensor"
        " axis slows down first.",
        queries=[Query(expression=f"max by (host, gpu) ({shown.of(GPU_NVLINK)})", legend=_GPU)],
        none=_NO_GPU,
    )
    yield over_time(
        "Memory",
        how="The most that a chosen rank has, by measure: of torch's allocator on a GPU, of the process on a CPU."
        " Reserved far above allocated: fragmentation; a climb over steps: a leak.",
        queries=[Query(expression=f"max by (measure) ({shown.of(MEMORY)})", legend="{{measure}}")],
        unit=BYTES,
    )


HARDWARE = Board(
    uid="traincope-hardware",
    title="traincope / Hardware",
    about="Do the GPUs hold what they promise: clocks, power, heat, errors, memory?",
    panels=_panels,
)
