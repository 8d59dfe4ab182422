"""Accelerators by their data sheets, and clusters of them.

Rates of links are per device and in one direction. A vendor's figure for both directions is halved.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from traincope.errors import UsageError
from traincope.plan.hardware import HardwareSpec, find_hardware
from traincope.plan.layout.families import AMPERE, BLACKWELL, CDNA3, H200, HOPPER, SYSTOLIC, Family
from traincope.plan.layout.machine import Host, Machine
from traincope.plan.search.rates import MeasuredRates

GIB = 1 << 30
DTYPE = "bfloat16"

AMPERE_WORKSPACES, HOPPER_WORKSPACES, CDNA_WORKSPACES = (2 * kib * 1024 for kib in (8_320, 32_768, 131_072))
"""torch's defaults (aten/src/ATen/cuda/CublasHandlePool.cpp), for the threads of forward and of backward."""
NODE_LATENCY_SECONDS, NETWORK_LATENCY_SECONDS = 3.4e-6, 14e-6
"""Time of one step of a ring: NVIDIA/nccl, src/graph/tuning.cc, `hwLat`, protocol Simple, NVLINK and NET."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device and its links."""

    spec: HardwareSpec
    family: Family
    memory_gib: int
    workspace_bytes: int = 0
    """Workspaces that torch keeps for the library of matrix products."""
    domain: int
    """Devices of one link domain: an NVLink node, a slice of TPUs."""
    domain_gb: float
    """GB/s to devices of the domain."""
    pair_gb: float | None = None
    """GB/s to one device of the domain. None: `domain_gb`, through a switch."""
    torus: bool = False
    """Links of the domain form a torus."""
    network_gb: float
    """GB/s to other domains, with one network link per device."""
    host: Host | None = None
    """Its share of the vendor's server of 8."""
    watts: float | None
    """Power limit of the device; None if the vendor prints none."""
    source: str
    """Documents that print memory, links and power."""


def _listed(device: str) -> HardwareSpec:
    spec = find_hardware(device)
    if spec is None:
        raise UsageError(f"{device} has no data sheet in traincope.plan.hardware; add one there")
    return spec


def _other(name: str, *, bf16: float, fp8: float, fp32: float | None, memory_gb: float, source: str) -> HardwareSpec:
    """Rates of a device that torch does not list by name."""
    rates = {DTYPE: bf16, "float16": bf16, "float8": fp8, "float32": fp32}
    tflops = {dtype: value for dtype, value in rates.items() if value is not None}
    return HardwareSpec(name=name, tflops=tflops, memory_gb=memory_gb, source=source)


def _eighth_of_server(*, link_gb: float, memory_gb: float, nvme_gb: float, source: str) -> Host:
    """A device's share of a server with 2 TB of memory and eight disks of 3.84 TB."""
    return Host(
        link_bytes_per_second=link_gb * 1e9,
        memory_bytes=int(2e12 / 8),
        memory_bytes_per_second=memory_gb * 1e9 / 8,
        nvme_bytes=int(3.84e12),
        nvme_bytes_per_second=nvme_gb * 1e9,
        source=source,
    )


DGX_A100 = _eighth_of_server(
    link_gb=31.5, memory_gb=409.6, nvme_gb=3.8, source="DGX A100: PCIe 4.0 x16; 16 channels of DDR4-3200; 8 NVMe disks"
)
DGX_H100 = _eighth_of_server(
    link_gb=63, memory_gb=614.4, nvme_gb=3.8, source="DGX H100: PCIe 5.0 x16; 16 channels of DDR5-4800; 8 NVMe disks"
)
"""By the data sheets, and 3.8 GB/s of a disk's writes; not confirmed on a server."""
V5P = "Google Cloud, TPU v5p system architecture: 1,200 GB/s of ICI in both directions, 50 Gbit/s of network per chip"
TRN2 = (
    "AWS Neuron, Trainium2 architecture: 16 chips per trn2.48xlarge; 1,024 GB/s of NeuronLink-v3 per chip to "
    "others of its instance, in both directions and over four links; 3.2 Tbit/s of EFA v3 per instance"
)

ACCELERATORS: Mapping[str, Accelerator] = MappingProxyType(
    {
        "a100": Accelerator(
            spec=_listed("NVIDIA A100-SXM4-80GB"),
            family=AMPERE,
            memory_gib=80,
            workspace_bytes=AMPERE_WORKSPACES,
            host=DGX_A100,
            domain=8,
            domain_gb=300,
            network_gb=25,
            watts=400,
            source="A100 80GB SXM data sheet; DGX A100: 200 Gbit/s per GPU",
        ),
        "h100": Accelerator(
            spec=_listed("NVIDIA H100 80GB HBM3"),
            family=HOPPER,
            memory_gib=80,
            workspace_bytes=HOPPER_WORKSPACES,
            host=DGX_H100,
            domain=8,
            domain_gb=450,
            network_gb=50,
            watts=700,
            source="H100 SXM data sheet; DGX H100: 400 Gbit/s per GPU",
        ),
        "h200": Accelerator(
            spec=_listed("NVIDIA H200"),
            family=H200,
            memory_gib=140,
            workspace_bytes=HOPPER_WORKSPACES,
            host=DGX_H100,
            domain=8,
            domain_gb=450,
            network_gb=50,
            watts=700,
            source="H200 SXM data sheet, 141 GB; DGX H200: 400 Gbit/s per GPU",
        ),
        "b200": Accelerator(
            spec=_listed("NVIDIA B200"),
            family=BLACKWELL,
            memory_gib=179,
            workspace_bytes=HOPPER_WORKSPACES,
            host=DGX_H100,
            domain=8,
            domain_gb=900,
            network_gb=50,
            watts=1000,
            source="HGX B200 data sheet, 180 GB; DGX B200: 400 Gbit/s per GPU",
        ),
        "mi300x": Accelerator(
            spec=_listed("AMD Instinct MI300X"),
            family=CDNA3,
            memory_gib=192,
            workspace_bytes=CDNA_WORKSPACES,
            domain=8,
            domain_gb=448,
            pair_gb=64,
            network_gb=50,
            watts=750,
            source="MI300X data sheet: seven Infinity Fabric links of 128 GB/s in both directions; a NIC of 400 Gbit/s",
        ),
        "tpu-v5p": Accelerator(
            spec=_other("TPU v5p", bf16=459, fp8=459, fp32=None, memory_gb=2765, source=V5P),
            family=SYSTOLIC,
            memory_gib=95,
            domain=6144,
            domain_gb=600,
            pair_gb=100,
            torus=True,
            network_gb=6.25,
            watts=None,
            source=V5P,
        ),
        "trainium2": Accelerator(
            spec=_other("Trainium2", bf16=667, fp8=1299, fp32=181, memory_gb=2900, source=TRN2),
            family=SYSTOLIC,
            memory_gib=96,
            domain=16,
            domain_gb=512,
            pair_gb=128,
            torus=True,
            network_gb=25,
            watts=None,
            source=TRN2,
        ),
    }
)
"""Name -> accelerator. Adding one is one entry."""


def find_accelerator(name: str) -> Accelerator:
    """The accelerator of this name, in any case. Raises UsageError for an unknown name, with the nearest one."""
    key = name.lower().replace("_", "-")
    if key not in ACCELERATORS:
        near = get_close_matches(key, ACCELERATORS, n=1, cutoff=0.0)[0]
        raise UsageError(f"--gpu {name} is not known; did you mean {near}? The choices are {', '.join(ACCELERATORS)}")
    return ACCELERATORS[key]


def host_of(device: str) -> Host | None:
    """Share of the vendor's server of the device with this name in torch; None if no server is known."""
    spec = find_hardware(device)
    return next((each.host for each in ACCELERATORS.values() if spec is not None and each.spec == spec), None)


def device_name(name: str) -> str:
    """The name of a data sheet by that of an accelerator in any case; any other name stays."""
    accelerator = ACCELERATORS.get(name.lower().replace("_", "-"))
    return name if accelerator is None else accelerator.spec.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices of one kind and the network between their link domains. Raises UsageError for impossible values."""

    accelerator: Accelerator
    gpus: int
    domain: int | None = None
    """Devices of one link domain. None: as in the data sheet."""
    rails: int | None = None
    """Network links of a domain, which its devices share. None: one for each device."""
    pod: int | None = None
    """Devices that reach each other without the spine. None: all."""
    oversubscription: float = 1.0
    """Rate into the spine's switches over the rate out of them."""
    reserve: float = 0.1
    """Share of the memory that stays free for what the formulas leave out."""
    rates: MeasuredRates | None = None
    """Measured rates, which take the place of those of the data sheet."""

    def __post_init__(self) -> None:
        for name in ("gpus", "domain", "rails", "pod"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; it must be at least 1")
        if self.oversubscription < 1:
            raise UsageError(f"oversubscription is {self.oversubscription:g}; it must be at least 1")
        if not 0 <= self.reserve < 1:
            raise UsageError(f"reserve is {self.reserve:g}; it must be at least 0 and below 1")

    @property
    def domain_ranks(self) -> int:
        return min(self.domain or self.accelerator.domain, self.gpus)

    @property
    def memory_bytes(self) -> int:
        """Memory of a device that a layout may fill."""
        return int(self.accelerator.memory_gib * GIB * (1 - self.reserve))

    def machine(self) -> Machine:
        """Rates of one device of the cluster."""
        accelerator = self.accelerator
        spec, ranks = accelerator.spec, self.domain or accelerator.domain
        rails = ranks if self.rails is None else self.rails
        machine = Machine(
            peak_flops=spec.tflops[DTYPE] * 1e12,
            memory_bytes=self.memory_bytes,
            workspace_bytes=accelerator.workspace_bytes,
            host=accelerator.host,
            ranks_per_node=self.domain_ranks,
            node_bytes_per_second=accelerator.domain_gb * 1e9,
            pair_bytes_per_second=None if accelerator.pair_gb is None else accelerator.pair_gb * 1e9,
            torus=accelerator.torus,
            network_bytes_per_second=accelerator.network_gb * 1e9 * rails / ranks,
            memory_bytes_per_second=spec.bytes_per_second,
            node_latency_seconds=NODE_LATENCY_SECONDS,
            network_latency_seconds=NETWORK_LATENCY_SECONDS,
            pod_ranks=self.pod,
            spine_share=1 / self.oversubscription,
        )
        fitted = accelerator.family.applied(machine)
        return fitted if self.rates is None else self.rates.applied(fitted)
