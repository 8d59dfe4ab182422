"""One GPU through NVIDIA's management library (NVML): the only place that calls `pynvml`.

NVML talks to the driver and needs no CUDA context. Every error that it returns becomes a `Refusal`.
"""

import ctypes
import importlib
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self, cast

LIBRARY = "libnvidia-ml.so.1"
NVLINK_ERRORS = tuple(
    f"NVML_FI_DEV_NVLINK_{what}_ERROR_COUNT_TOTAL" for what in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
)
DRIVER = Path("/proc/driver/nvidia/version")


class Refusal(RuntimeError):
    """NVML returned an error."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class RemappedRows(NamedTuple):
    """Rows of the GPU's memory that spare rows have replaced (Ampere and newer)."""

    corrected: int
    """Replaced because of corrected errors."""
    uncorrected: int
    pending: bool
    """True if some rows are replaced only after a reset of the GPU."""
    failure: bool
    """True if a row could not be replaced."""


def has_driver() -> bool:
    """Return whether NVML is installed. Raises FileNotFoundError if a driver is present without it."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        if DRIVER.exists():
            raise FileNotFoundError(
                f"{LIBRARY} is missing although an NVIDIA driver is installed; in a container set"
                " NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            ) from None
        return False
    return True


def load() -> ModuleType:
    """Import `pynvml`. Raises ImportError."""
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise ImportError("nvidia-ml-py is not installed: pip install 'traincope[gpu]'") from error


class Gpu:
    """A GPU between `open` and `close`. NVML counts both, so other users in the process are not disturbed."""

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml
        self._handle: object = None
        self._events: object = None
        self.uuid = ""
        self.is_shared = False
        """True if the GPU is in MIG mode: then NVML reports on the whole GPU, of which this process has a part."""

    @classmethod
    def open(cls, nvml: ModuleType, uuid: str) -> Self:
        """Open the GPU, or that of the MIG instance, with this UUID (CUDA's, without a prefix). Raises Refusal."""
        gpu = cls(nvml)
        gpu._ask("nvmlInit")
        try:
            gpu._find(uuid)
        except Refusal:
            gpu.close()
            raise
        return gpu

    def close(self) -> None:
        """Release the GPU. Resources that a lost GPU does not release are left to the driver."""
        if self._events is not None:
            with suppress(Refusal):
                self._ask("nvmlEventSetFree", self._events)
        with suppress(Refusal):
            self._ask("nvmlShutdown")

    def clock_reasons(self) -> int:
        """Return the reasons for the current clocks, as bits of NVML's `nvmlClocksEventReason*`."""
        try:
            reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", self._handle)
        except Refusal as refusal:
            if refusal.code != self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            # Drivers before 535 have only this name.
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle)
        return cast(int, reasons)

    def ecc_errors(self) -> tuple[int, int]:
        """Return corrected and uncorrected errors since the driver was loaded."""
        kinds = (self._nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        corrected, uncorrected = (
            cast(int, self._ask("nvmlDeviceGetTotalEccErrors", self._handle, kind, self._nvml.NVML_VOLATILE_ECC))
            for kind in kinds
        )
        return corrected, uncorrected

    def remapped_rows(self) -> RemappedRows:
        rows = cast("tuple[int, int, int, int]", self._ask("nvmlDeviceGetRemappedRows", self._handle))
        return RemappedRows(rows[0], rows[1], bool(rows[2]), bool(rows[3]))

    def power_milliwatts(self) -> int:
        return cast(int, self._ask("nvmlDeviceGetPowerUsage", self._handle))

    def energy_millijoules(self) -> int:
        """Return the energy of the whole GPU since the driver was loaded (Volta and newer)."""
        return cast(int, self._ask("nvmlDeviceGetTotalEnergyConsumption", self._handle))

    def sm_clock_mhz(self) -> int:
        return cast(int, self._ask("nvmlDeviceGetClockInfo", self._handle, self._nvml.NVML_CLOCK_SM))

    def temperature_celsius(self) -> int:
        return cast(int, self._ask("nvmlDeviceGetTemperature", self._handle, self._nvml.NVML_TEMPERATURE_GPU))

    def utilization_percent(self) -> int:
        """Return the share of time in which a kernel ran, since the driver's last sample (up to a second)."""
        return cast(Any, self._ask("nvmlDeviceGetUtilizationRates", self._handle)).gpu  # type: ignore[no-any-return]

    def nvlink_errors(self) -> int:
        """Return the errors of all its links since the driver was loaded. Raises Refusal also without links."""
        fields = [getattr(self._nvml, name) for name in NVLINK_ERRORS]
        values = cast("list[Any]", self._ask("nvmlDeviceGetFieldValues", self._handle, fields))
        known = [field for field in values if field.nvmlReturn == self._nvml.NVML_SUCCESS]
        if not known:
            raise Refusal(values[0].nvmlReturn, "NVML counts no errors of NVLinks")
        return sum(_number(self._nvml, field) for field in known)

    def listen(self) -> None:
        """Make the driver queue XIDs for `next_xid`."""
        self._events = self._ask("nvmlEventSetCreate")
        self._ask("nvmlDeviceRegisterEvents", self._handle, self._nvml.nvmlEventTypeXidCriticalError, self._events)

    def next_xid(self, timeout_ms: int) -> int | None:
        """Return the next XID; None if none arrives in time. The wait releases the GIL."""
        try:
            event = self._ask("nvmlEventSetWait_v2", self._events, timeout_ms)
        except Refusal as refusal:
            if refusal.code == self._nvml.NVML_ERROR_TIMEOUT:
                return None
            raise
        return int(event.eventData)  # type: ignore[attr-defined]

    def is_gone(self, refusal: Refusal) -> bool:
        """Return whether the error means that the GPU itself is lost."""
        return refusal.code in (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED)

    def _find(self, uuid: str) -> None:
        try:
            self._handle = self._ask("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}")
        except Refusal as no_such_gpu:
            try:
                instance = self._ask("nvmlDeviceGetHandleByUUID", f"MIG-{uuid}")
            except Refusal:
                raise no_such_gpu from None
            self._handle = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", instance)
        self.uuid = cast(str, self._ask("nvmlDeviceGetUUID", self._handle))
        self.is_shared = self._in_mig_mode()

    def _in_mig_mode(self) -> bool:
        """Return whether MIG mode is on. A GPU without MIG refuses the query."""
        try:
            current, _pending = cast("tuple[int, int]", self._ask("nvmlDeviceGetMigMode", self._handle))
        except Refusal:
            return False
        return bool(current)

    def _ask(self, name: str, *arguments: object) -> object:
        function = getattr(self._nvml, name, None)
        if function is None:
            raise Refusal(self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND, f"this pynvml has no {name}")
        try:
            return cast(object, function(*arguments))
        except self._nvml.NVMLError as error:
            raise Refusal(error.value, str(error)) from error


def _number(nvml: ModuleType, field: Any) -> int:
    """Return a field's value, which is the union member of its type."""
    members = {
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    }
    return int(getattr(field.value, members.get(field.valueType, "ullVal")))
