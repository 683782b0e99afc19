"""A GPU's clock, power, temperature and energy from NVML (`nvidia-ml-py`); None if missing."""

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.gpu.device import Gpu

# nvml.h, nvmlClocksEventReasons by bit; the lowest, GPU_IDLE, is set between two samples
_REASONS = ["idle", "application clocks", "power cap", "hardware slowdown", "sync boost"]
_REASONS += ["software thermal", "hardware thermal", "power brake", "display clocks"]
_REASONS += ["board limit", "reliability"]
_PROC_VERSION = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Reading:
    """A sample: MHz, watts, degrees Celsius, reasons for a lower clock; None if unavailable."""

    sm_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    throttle: tuple[str, ...] | None


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of some readings."""

    median: float
    least: float
    most: float


@dataclass(frozen=True)
class MachineState:
    """The state of a GPU over continuous identical work; None: the driver does not report it."""

    sm_mhz: Spread | None
    power_w: Spread | None
    temperature_c: Spread | None
    throttle: tuple[str, ...] | None  # every reason for a lower clock in any reading
    energy_uj_per_image: float | None  # of the whole board, including the time between samples
    energy_from: str | None  # "counter" (the driver's) or "power" (readings integrated over time)
    watched_s: float
    readings: int

    def as_json(self) -> dict[str, Any]:
        """Return the schema's `machine` object: medians, the maximum temperature, and ranges."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        state["throttle"] = None if self.throttle is None else list(self.throttle)
        for name in ("sm_mhz", "power_w", "temperature_c"):
            spread: Spread | None = state[name]
            figure = "most" if name == "temperature_c" else "median"
            state[name] = spread and getattr(spread, figure)
            state[f"{name}_range"] = spread and [spread.least, spread.most]
        return state


def spread(values: list[float | None]) -> Spread | None:
    """Return the spread of the values that are not None; None if all are None."""
    from statistics import median

    known = [value for value in values if value is not None]
    return Spread(median(known), min(known), max(known)) if known else None


def reasons(bits: int) -> tuple[str, ...]:
    """Return the words for a bit mask of reasons for a lower clock, without the idle bit."""
    names = dict(enumerate(_REASONS))
    numbers = [bit for bit in range(1, bits.bit_length()) if bits >> bit & 1]
    return tuple(names.get(bit, f"reason {1 << bit:#x}") for bit in numbers)


@cache
def library() -> Any:
    """Return the module pynvml with NVML initialised, or None if either is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None
    except pynvml.NVMLError:
        return None
    return pynvml


def _query(name: str, *arguments: Any) -> Any:
    """Return the result of NVML's function `name`; None if it is missing or fails."""
    nvml = library()
    try:
        value = getattr(nvml, name)(*arguments) if hasattr(nvml, name) else None
        return value.decode() if isinstance(value, bytes) else value
    except nvml.NVMLError:
        return None


def nvml_version() -> str | None:
    """Return NVML's version, None if it is missing."""
    version: str | None = _query("nvmlSystemGetNVMLVersion")
    return version


def driver_version() -> str | None:
    """Return the driver's version, "580.159.04", from NVML or the kernel module, or None."""
    return _query("nvmlSystemGetDriverVersion") or loaded_driver()


def loaded_driver() -> str | None:
    """Return the driver's kernel module version, read without a library; None if unknown."""
    if not _PROC_VERSION.is_file():
        return None
    words = _PROC_VERSION.read_text().partition("\n")[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), None)


def cuda_driver_version() -> str | None:
    """Return the highest CUDA version that the driver supports, "13.0"; None without NVML."""
    version = _query("nvmlSystemGetCudaDriverVersion_v2")
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"


def others() -> int:
    """Return the number of other processes that compute on the current GPU; 0 if unknown."""
    if library() is None:
        return 0
    handle = _query("nvmlDeviceGetHandleByPciBusId", cupy.cuda.Device().pci_bus_id)
    processes = handle and _query("nvmlDeviceGetComputeRunningProcesses", handle)
    return max(0, len(processes or ()) - 1)


class Monitor:
    """A GPU in NVML."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def _number(self, unit: float, name: str, *arguments: Any) -> float | None:
        value = _query(name, self._handle, *arguments)
        return None if value is None else float(value) / unit

    def read(self) -> Reading:
        """Return a reading of the GPU now."""
        nvml = library()
        mhz = self._number(1, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
        celsius = self._number(1, "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        field = getattr(nvml, "NVML_FI_DEV_POWER_INSTANT", None)
        values = field and _query("nvmlDeviceGetFieldValues", self._handle, [field])
        if values and values[0].nvmlReturn == nvml.NVML_SUCCESS:
            watts: float | None = float(values[0].value.uiVal) / 1e3
        else:  # an average (of 1 s since Ampere)
            watts = self._number(1e3, "nvmlDeviceGetPowerUsage")
        bits = _query("nvmlDeviceGetCurrentClocksEventReasons", self._handle)
        if bits is None:  # the name before CUDA 12.2
            bits = _query("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle)
        return Reading(mhz, watts, celsius, None if bits is None else reasons(int(bits)))

    def energy_j(self) -> float | None:
        """Return the joules since the driver was loaded, in steps of tens of milliseconds."""
        return self._number(1e3, "nvmlDeviceGetTotalEnergyConsumption")


def monitor(gpu: Gpu) -> Monitor | None:
    """Return the monitor of `gpu`; None without NVML or if it is unknown."""
    # by PCI bus id: CUDA and NVML may number GPUs differently
    handle = _query("nvmlDeviceGetHandleByPciBusId", cupy.cuda.Device(gpu.index).pci_bus_id)
    return None if handle is None else Monitor(handle)
