"""GPUs as torch and as the driver (NVML) see them."""

import ctypes
import importlib.util
from contextlib import suppress

from traincope.doctor.finding import Finding, bad, note, ok
from traincope.record.gpu.nvml import DRIVER, LIBRARY, has_driver
from traincope.units import count

NVML_SUCCESS = 0
VERSION_BYTES = 96
"""NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE is 80."""


def examine_gpu() -> tuple[Finding, ...]:
    return _torch(), _nvml()


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return note("torch sees", "no GPU: torch is not installed")
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        shown = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        return ok("torch sees", f"{shown}; CUDA {torch.version.cuda or 'unknown'}")
    if torch.version.cuda is None and DRIVER.exists():
        return bad(
            "torch sees",
            "no GPU: this torch is built for the CPU, but the machine has an NVIDIA driver",
            do="install torch's CUDA build to train on the GPU",
        )
    built = build_of(torch.version.cuda)
    return note("torch sees", f"no GPU (it {built}); time is measured on the host's clock")


def build_of(cuda: str | None) -> str:
    """Describe the build of a torch without a GPU, given its version of CUDA."""
    return "is built for the CPU" if cuda is None else f"is built for CUDA {cuda}"


def driver_version() -> str | None:
    """Version of the driver; None if NVML does not give it."""
    with suppress(FileNotFoundError):
        if has_driver() and (nvml := ctypes.CDLL(LIBRARY)).nvmlInit_v2() == NVML_SUCCESS:
            try:
                return _driver(nvml)
            finally:
                nvml.nvmlShutdown()
    return None


def _nvml() -> Finding:
    try:
        if not has_driver():
            return note("NVML", "absent: this machine has no NVIDIA driver")
    except FileNotFoundError as error:
        missing, _, remedy = str(error).partition("; ")
        return note("NVML", missing, do=remedy)
    nvml = ctypes.CDLL(LIBRARY)
    answer = nvml.nvmlInit_v2()
    if answer != NVML_SUCCESS:
        return note("NVML", f"is installed but does not start (error {answer})", do="run nvidia-smi and read its error")
    try:
        return ok("NVML", _describe(nvml))
    finally:
        nvml.nvmlShutdown()


def _describe(nvml: ctypes.CDLL) -> str:
    devices = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(devices))
    return f"driver {_driver(nvml)}, {count(devices.value, 'device')}"


def _driver(nvml: ctypes.CDLL) -> str:
    driver = ctypes.create_string_buffer(VERSION_BYTES)
    nvml.nvmlSystemGetDriverVersion(driver, VERSION_BYTES)
    return driver.value.decode("ascii", "replace")
