import pytest

from traincope.plan.hardware import SPECS, find_hardware


@pytest.mark.parametrize(
    ("device", "dtype", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("NVIDIA A100 80GB PCIe", "tf32", 156),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA H100 NVL", "bfloat16", 835.5),
        ("NVIDIA H200", "float8_e4m3fn", 1978.9),
        ("NVIDIA L40S", "bfloat16", 362.05),
        ("NVIDIA GeForce RTX 4090", "float16", 165.2),
        ("AMD Instinct MI300X", "bfloat16", 1307.4),
    ],
)
def test_the_peak_is_the_data_sheets_dense_one(device: str, dtype: str, tflops: float) -> None:
    spec = find_hardware(device)
    assert spec is not None
    assert spec.peak(dtype) == tflops * 1e12


@pytest.mark.parametrize(
    "device",
    ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", ""],
)
def test_a_device_with_a_similar_name_is_unknown(device: str) -> None:
    assert find_hardware(device) is None


def test_a_dtype_that_a_device_lacks_has_no_peak() -> None:
    spec = find_hardware("Tesla V100-SXM2-32GB")
    assert spec is not None
    assert (spec.peak("float16"), spec.peak("bfloat16")) == (125e12, None)


def test_wider_numbers_are_never_faster() -> None:
    for _, spec in SPECS:
        order = [spec.peak(dtype) for dtype in ("float8_e5m2", "float16", "tf32", "float32")]
        known = [peak for peak in order if peak is not None]
        assert known == sorted(known, reverse=True)


UNITS = {
    "V100 SXM": (80, 1.53, {"float16": 1024}),
    "V100 PCIe": (80, 1.38, {"float16": 1024, "float32": 128}),
    "V100S PCIe": (80, 1.597, {"float16": 1024, "float32": 128}),
    "T4": (40, 1.59, {"float16": 1024, "float32": 128}),
    "A100 40GB": (108, 1.41, {"bfloat16": 2048, "tf32": 1024, "float32": 128}),
    "A100 80GB PCIe": (108, 1.41, {"bfloat16": 2048, "tf32": 1024, "float32": 128}),
    "A100 80GB": (108, 1.41, {"bfloat16": 2048, "tf32": 1024, "float32": 128}),
    "A100 80GB SXM": (108, 1.41, {"bfloat16": 2048, "tf32": 1024, "float32": 128}),
    "A30": (56, 1.44, {"bfloat16": 2048, "tf32": 1024, "float32": 128}),
    "A10": (72, 1.695, {"bfloat16": 1024, "tf32": 512, "float32": 256}),
    "A10G": (80, 1.71, {"bfloat16": 512, "tf32": 256, "float32": 256}),
    "A40": (84, 1.74, {"bfloat16": 1024, "tf32": 512, "float32": 256}),
    "RTX A6000": (84, 1.8, {"bfloat16": 1024, "tf32": 512, "float32": 256}),
    "L4": (58, 2.04, {"bfloat16": 1024, "tf32": 512, "float32": 256, "float8": 2048}),
    "L40": (142, 2.49, {"bfloat16": 512, "tf32": 256, "float32": 256, "float8": 1024}),
    "L40S": (142, 2.52, {"bfloat16": 1024, "tf32": 512, "float32": 256, "float8": 2048}),
    "H100 SXM": (132, 1.83, {"bfloat16": 4096, "tf32": 2048, "float8": 8192}),
    "H100 PCIe": (114, 1.62, {"bfloat16": 4096, "tf32": 2048, "float8": 8192}),
    "H100 NVL": (132, 1.545, {"bfloat16": 4096, "tf32": 2048, "float8": 8192}),
    "H200 SXM": (132, 1.83, {"bfloat16": 4096, "tf32": 2048, "float8": 8192}),
    "H200 NVL": (132, 1.545, {"bfloat16": 4096, "tf32": 2048, "float8": 8192}),
    "GH200": (132, 1.83, {"bfloat16": 4096, "tf32": 2048, "float8": 8192}),
    "RTX 3090": (82, 1.695, {"bfloat16": 512, "tf32": 256, "float32": 256}),
    "RTX 4090": (128, 2.52, {"bfloat16": 512, "tf32": 256, "float32": 256, "float8": 1024}),
    "RTX 5090": (170, 2.407, {"bfloat16": 512, "tf32": 256, "float32": 256, "float8": 1024}),
    "MI250X (one die)": (110, 1.7, {"bfloat16": 1024, "float32": 256}),
    "MI300X": (304, 2.1, {"bfloat16": 2048, "tf32": 1024, "float32": 256, "float8": 4096}),
    "MI325X": (304, 2.1, {"bfloat16": 2048, "tf32": 1024, "float32": 256, "float8": 4096}),
    "MI355X": (256, 2.4, {"bfloat16": 4096, "float32": 256, "float8": 8192}),
}
"""Multiprocessors or compute units, boost clock in GHz, FLOPs per unit and clock."""


@pytest.mark.parametrize("name", UNITS)
def test_a_peak_is_units_times_rate_times_boost_clock(name: str) -> None:
    """Within 1.5 %, because data sheets round."""
    spec = next(spec for _, spec in SPECS if spec.name == name)
    units, clock, flops = UNITS[name]
    assert {dtype: spec.tflops[dtype] for dtype in flops} == pytest.approx(
        {dtype: units * clock * each / 1000 for dtype, each in flops.items()}, rel=0.015
    )


@pytest.mark.parametrize("name", ["H20", "B200", "GB200", "H100 SXM", "MI300X"])
def test_tensor_units_do_twice_as_much_with_half_the_bits(name: str) -> None:
    """The only check of H20, B200 and GB200: no data sheet prints their clock."""
    tflops = next(spec for _, spec in SPECS if spec.name == name).tflops
    assert [tflops["float8"], tflops["tf32"]] == pytest.approx(
        [2 * tflops["bfloat16"], tflops["bfloat16"] / 2], rel=1e-3
    )


def test_each_peak_is_checked_or_listed_without_a_clock() -> None:
    assert {spec.name for _, spec in SPECS} == UNITS.keys() | {"H20", "B200", "GB200"}


MEMORY = {
    "V100 SXM": (4096, 1.755),
    "V100 PCIe": (4096, 1.755),
    "V100S PCIe": (4096, 2.215),
    "T4": (256, 10),
    "A100 40GB": (5120, 2.43),
    "A100 80GB PCIe": (5120, 3.024),
    "A100 80GB SXM": (5120, 3.186),
    "A30": (3072, 2.43),
    "A10": (384, 12.5),
    "A10G": (384, 12.5),
    "A40": (384, 14.5),
    "RTX A6000": (384, 16),
    "L4": (192, 12.5),
    "L40": (384, 18),
    "L40S": (384, 18),
    "H100 SXM": (5120, 5.238),
    "H100 PCIe": (5120, 3.186),
    "H100 NVL": (6016, 5.238),
    "H200 SXM": (6144, 6.25),
    "H200 NVL": (6144, 6.25),
    "GH200": (6144, 5.238),
    "H20": (6144, 5.238),
    "B200": (8192, 8),
    "GB200": (8192, 8),
    "RTX 3090": (384, 19.5),
    "RTX 4090": (384, 21),
    "RTX 5090": (512, 28),
    "MI250X (one die)": (4096, 3.2),
    "MI300X": (8192, 5.2),
    "MI325X": (8192, 6),
    "MI355X": (8192, 8),
}
"""Bits of the memory's bus, and Gbit/s of a pin."""


def test_a_bandwidth_is_the_width_of_the_bus_times_the_rate_of_a_pin() -> None:
    """Within 2.5 %, because data sheets round, most of all those of HBM3e."""
    known = {spec.name: spec.memory_gb for _, spec in SPECS if spec.memory_gb is not None}
    assert known == pytest.approx({name: bits * rate / 8 for name, (bits, rate) in MEMORY.items()}, rel=0.025)


def test_memory_is_the_scarcer_resource_of_operators_without_products() -> None:
    """In float32, each device does at least 9 FLOPs in the time that it moves one byte."""
    assert all(9 * spec.bytes_per_second < 1e12 * spec.tflops["float32"] for _, spec in SPECS if spec.bytes_per_second)


@pytest.mark.parametrize(
    ("device", "gb"),
    [
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("A100-PCIE-40GB", 1555),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA A800-SXM4-80GB", 2039),
        ("A100-80GB", None),
        ("NVIDIA H100 80GB HBM3", 3352),
    ],
)
def test_a_bandwidth_is_that_of_the_sku(device: str, gb: float | None) -> None:
    spec = find_hardware(device)
    assert spec is not None
    assert spec.memory_gb == gb
