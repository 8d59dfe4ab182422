import pytest

from traincope.plan.hardware import SPECS, find


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
    spec = find(device)
    assert spec is not None
    assert spec.peak(dtype) == tflops * 1e12


@pytest.mark.parametrize(
    "device",
    ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", ""],
)
def test_what_only_resembles_a_known_device_is_unknown(device: str) -> None:
    assert find(device) is None


def test_a_dtype_that_a_device_lacks_has_no_peak() -> None:
    spec = find("Tesla V100-SXM2-32GB")
    assert spec is not None
    assert (spec.peak("float16"), spec.peak("bfloat16")) == (125e12, None)


def test_wider_numbers_are_never_quicker() -> None:
    for _, spec in SPECS:
        order = [spec.peak(dtype) for dtype in ("float8_e5m2", "float16", "tf32", "float32")]
        known = [peak for peak in order if peak is not None]
        assert known == sorted(known, reverse=True)
