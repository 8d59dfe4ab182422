"""Dense peak FLOP/s and memory bandwidth of accelerators, exact to the SKU: an H100 PCIe differs from an H100 SXM.

The rates hold for matrix products as training runs them: no sparsity, and fp32 accumulation where that has a rate of
its own (GeForce). Numbers are the vendors' data sheets', in TFLOP/s; a sheet's sparse figures are halved. Each equals
units x products per clock x boost clock, and each bandwidth width of the bus x rate of a pin, which
tests/plan/test_hardware.py multiplies.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec:
    """Rates of one device as torch sees it. A card with two dies is two devices."""

    name: str
    tflops: dict[str, float]
    """dtype of the factors -> dense TFLOP/s."""
    memory_gb: float | None
    """Bandwidth of the device's memory in GB/s; None if the device's name leaves it open."""
    source: str
    """Document that prints the rates."""

    @property
    def bytes_per_second(self) -> float | None:
        return None if self.memory_gb is None else self.memory_gb * 1e9

    def peak(self, dtype: str) -> float | None:
        """FLOP/s of matrix products in a torch dtype, given by name. None if the rate is unknown.

        `tf32` is fp32 on TF32 units.
        """
        tflops = self.tflops.get("float8" if dtype.startswith("float8") else dtype)
        return None if tflops is None else tflops * 1e12


V100 = "Tesla V100 and V100S data sheets"
T4 = "T4 data sheet"
AMPERE = "A100, A30, A10 and A40 data sheets; A800: only its links are slower"
A10G = "A10G product brief"
RTX_A6000 = "RTX A6000 data sheet"
ADA = "L4, L40 and L40S data sheets"
HOPPER = "H100 architecture white paper, table 2; H800: only its links and fp64 are slower"
NVL = "H100 and H200 data sheets, columns NVL"
H200 = "H200 and GH200 data sheets"
H20 = "H20 data sheet"
BLACKWELL = (
    "HGX B200 and GB200 NVL72 data sheets; B200's TF32 is printed as 2.2 PFLOP/s sparse, a quarter of fp8's is 2.25"
)
GEFORCE = "GA102, Ada and RTX Blackwell architecture white papers, appendix A: fp32 accumulation"
CDNA = "AMD Instinct MI250X, MI300X, MI325X and MI355X data sheets, matrix rates"


def _spec(
    name: str,
    source: str,
    half: float,
    *,
    fp32: float,
    tf32: float | None = None,
    fp8: float | None = None,
    memory_gb: float | None,
) -> HardwareSpec:
    """Rates of a device whose bfloat16 and float16 are equally fast (`half`)."""
    tflops = {"bfloat16": half, "float16": half, "tf32": tf32, "float32": fp32, "float8": fp8}
    known = {dtype: value for dtype, value in tflops.items() if value is not None}
    return HardwareSpec(name=name, tflops=known, memory_gb=memory_gb, source=source)


def _before_ampere(name: str, source: str, half: float, *, fp32: float, memory_gb: float) -> HardwareSpec:
    """Rates of a device without bfloat16 and TF32."""
    return HardwareSpec(name=name, tflops={"float16": half, "float32": fp32}, memory_gb=memory_gb, source=source)


SPECS: tuple[tuple[str, HardwareSpec], ...] = (
    (r"Tesla V100-SXM.*", _before_ampere("V100 SXM", V100, 125, fp32=15.7, memory_gb=900)),
    (r"Tesla V100-PCIE.*", _before_ampere("V100 PCIe", V100, 112, fp32=14, memory_gb=900)),
    (r"Tesla V100S-PCIE.*", _before_ampere("V100S PCIe", V100, 130, fp32=16.4, memory_gb=1134)),
    (r"(Tesla|NVIDIA) T4", _before_ampere("T4", T4, 65, fp32=8.1, memory_gb=320)),
    (
        r"(NVIDIA )?A[18]00(-SXM4|-PCIE| SXM4| PCIe)?[- ]40GB( PCIe)?",
        _spec("A100 40GB", AMPERE, 312, tf32=156, fp32=19.5, memory_gb=1555),
    ),
    (
        r"(NVIDIA )?A[18]00((-PCIE| PCIe)[- ]80GB|[- ]80GB PCIe)",
        _spec("A100 80GB PCIe", AMPERE, 312, tf32=156, fp32=19.5, memory_gb=1935),
    ),
    (
        r"(NVIDIA )?A[18]00(-SXM4| SXM4)[- ]80GB",
        _spec("A100 80GB SXM", AMPERE, 312, tf32=156, fp32=19.5, memory_gb=2039),
    ),
    (r"(NVIDIA )?A[18]00[- ]80GB", _spec("A100 80GB", AMPERE, 312, tf32=156, fp32=19.5, memory_gb=None)),
    (r"(NVIDIA )?A30", _spec("A30", AMPERE, 165, tf32=82, fp32=10.3, memory_gb=933)),
    (r"(NVIDIA )?A10", _spec("A10", AMPERE, 125, tf32=62.5, fp32=31.2, memory_gb=600)),
    (r"(NVIDIA )?A10G", _spec("A10G", A10G, 70, tf32=35, fp32=35, memory_gb=600)),
    (r"(NVIDIA )?A40", _spec("A40", AMPERE, 149.7, tf32=74.8, fp32=37.4, memory_gb=696)),
    (r"(NVIDIA )?RTX A6000", _spec("RTX A6000", RTX_A6000, 154.8, tf32=77.4, fp32=38.7, memory_gb=768)),
    (r"NVIDIA L4", _spec("L4", ADA, 121, tf32=60, fp32=30.3, fp8=242.5, memory_gb=300)),
    (r"NVIDIA L40", _spec("L40", ADA, 181.05, tf32=90.5, fp32=90.5, fp8=362.1, memory_gb=864)),
    (r"NVIDIA L40S", _spec("L40S", ADA, 362.05, tf32=183, fp32=91.6, fp8=733, memory_gb=864)),
    (
        r"NVIDIA H[18]00( 80GB HBM3)?",
        _spec("H100 SXM", HOPPER, 989.4, tf32=494.7, fp32=66.9, fp8=1978.9, memory_gb=3352),
    ),
    (r"NVIDIA H100 PCIe", _spec("H100 PCIe", HOPPER, 756, tf32=378, fp32=51.2, fp8=1513, memory_gb=2039)),
    (r"NVIDIA H100 NVL", _spec("H100 NVL", NVL, 835.5, tf32=417.5, fp32=60, fp8=1670.5, memory_gb=3938)),
    (r"NVIDIA H200", _spec("H200 SXM", H200, 989.4, tf32=494.7, fp32=66.9, fp8=1978.9, memory_gb=4800)),
    (r"NVIDIA H200 NVL", _spec("H200 NVL", NVL, 835.5, tf32=417.5, fp32=60, fp8=1670.5, memory_gb=4800)),
    (r"NVIDIA GH200.*GB", _spec("GH200", H200, 989.4, tf32=494.7, fp32=66.9, fp8=1978.9, memory_gb=4000)),
    (r"NVIDIA H20", _spec("H20", H20, 148, tf32=74, fp32=44, fp8=296, memory_gb=4000)),
    (r"NVIDIA B200", _spec("B200", BLACKWELL, 2250, tf32=1125, fp32=75, fp8=4500, memory_gb=8000)),
    (r"NVIDIA GB200", _spec("GB200", BLACKWELL, 2500, tf32=1250, fp32=80, fp8=5000, memory_gb=8000)),
    (r"NVIDIA GeForce RTX 3090", _spec("RTX 3090", GEFORCE, 71, tf32=35.6, fp32=35.6, memory_gb=936)),
    (r"NVIDIA GeForce RTX 4090", _spec("RTX 4090", GEFORCE, 165.2, tf32=82.6, fp32=82.6, fp8=330.3, memory_gb=1008)),
    (r"NVIDIA GeForce RTX 5090", _spec("RTX 5090", GEFORCE, 209.5, tf32=104.8, fp32=104.8, fp8=419, memory_gb=1792)),
    # A MI250X is two devices.
    (r"AMD Instinct MI250X.*", _spec("MI250X (one die)", CDNA, 191.5, fp32=47.9, memory_gb=1638.4)),
    (r"AMD Instinct MI300X.*", _spec("MI300X", CDNA, 1307.4, tf32=653.7, fp32=163.4, fp8=2614.9, memory_gb=5325)),
    (r"AMD Instinct MI325X.*", _spec("MI325X", CDNA, 1307.4, tf32=653.7, fp32=163.4, fp8=2614.9, memory_gb=6000)),
    (r"AMD Instinct MI355X.*", _spec("MI355X", CDNA, 2516.6, fp32=157.3, fp8=5033.2, memory_gb=8000)),
)
"""Pattern of the whole device name in torch -> its rates. Adding a device is one line.
A part of a GPU (MIG) or a laptop GPU has a longer name, so it is unknown and not taken for the whole GPU."""


def find_hardware(device: str) -> HardwareSpec | None:
    """Rates of the device with this name in torch, or with that of its data sheet; None if none is listed here."""
    return next((spec for pattern, spec in SPECS if device == spec.name or re.fullmatch(pattern, device)), None)
