"""A GPU's clock, power, temperature and energy by NVML, the driver's management library.

It is read through `nvidia-ml-py`. Where that, the library or a figure is missing, what is asked for
is None: no measurement depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.gpu.device import Gpu

# nvml.h, nvmlClocksEventReasons by bit; the lowest, GPU_IDLE, stands between two samples
_REASONS = ["idle", "application clocks", "power cap", "hardware slowdown", "sync boost"]
_REASONS += ["software thermal", "hardware thermal", "power brake", "display clocks"]
_REASONS += ["board limit", "reliability"]
_PROC_VERSION = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Reading:
    """One look: MHz, watts, degrees Celsius and why the clock is held down; None: not told."""

    sm_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    throttle: tuple[str, ...] | None


@dataclass(frozen=True)
class Spread:
    """The median of some readings, the least and the most of them."""

    median: float
    least: float
    most: float


@dataclass(frozen=True)
class MachineState:
    """The state of a GPU over `watched_s` seconds of the same work back to back.

    Clock in MHz, power in watts, temperature in degrees Celsius; `throttle` names every reason
    that a reading gave for a lower clock, () where none did. Energy is in microjoules an image,
    of the whole board, what passes between two samples included; `energy_from` is "counter" (the
    driver's own) or "power" (the readings over time). None: the driver does not tell.
    """

    sm_mhz: Spread | None
    power_w: Spread | None
    temperature_c: Spread | None
    throttle: tuple[str, ...] | None
    energy_uj_per_image: float | None
    energy_from: str | None
    watched_s: float
    readings: int

    def as_json(self) -> dict[str, Any]:
        """The `machine` object of the schema: medians, the temperature's highest, and ranges."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found["throttle"] = None if self.throttle is None else list(self.throttle)
        for name in ("sm_mhz", "power_w", "temperature_c"):
            spread: Spread | None = found[name]
            middle = "most" if name == "temperature_c" else "median"
            found[name] = spread and getattr(spread, middle)
            found[f"{name}_range"] = spread and [spread.least, spread.most]
        return found


def spread(values: list[float | None]) -> Spread | None:
    """The spread of the values that are not None; None if all are."""
    from statistics import median

    told = [value for value in values if value is not None]
    return Spread(median(told), min(told), max(told)) if told else None


def reasons(bits: int) -> tuple[str, ...]:
    """A mask of reasons for a lower clock as words; the idle bit is left out."""
    said = dict(enumerate(_REASONS))
    places = [place for place in range(1, bits.bit_length()) if bits >> place & 1]
    return tuple(said.get(place, f"reason {1 << place:#x}") for place in places)


@cache
def library() -> Any:
    """The module pynvml with NVML started, or None where either is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _told(name: str, *arguments: Any) -> Any:
    """The answer of NVML's function `name`; None where it is missing or refuses."""
    nvml = library()
    try:
        said = getattr(nvml, name)(*arguments) if hasattr(nvml, name) else None
        return said.decode() if isinstance(said, bytes) else said
    except nvml.NVMLError:
        return None


def nvml_version() -> str | None:
    """NVML's version, None where it is missing."""
    said: str | None = _told("nvmlSystemGetNVMLVersion")
    return said


def driver_version() -> str | None:
    """The driver's version, "580.159.04", by NVML or else the kernel module; None without one."""
    return _told("nvmlSystemGetDriverVersion") or loaded_driver()


def loaded_driver() -> str | None:
    """The version of the driver's kernel module, which costs no library; None where none says."""
    if not _PROC_VERSION.is_file():
        return None
    words = _PROC_VERSION.read_text().partition("\n")[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), None)


def cuda_driver_version() -> str | None:
    """The highest CUDA version that the driver knows, "13.0"; None where NVML is missing."""
    said = _told("nvmlSystemGetCudaDriverVersion_v2")
    return None if said is None else f"{said // 1000}.{said % 1000 // 10}"


def others() -> int:
    """Processes beside this one that compute on the current GPU; 0 where nobody tells."""
    import cupy

    if library() is None:
        return 0
    handle = _told("nvmlDeviceGetHandleByPciBusId", cupy.cuda.Device().pci_bus_id)
    found = None if handle is None else _told("nvmlDeviceGetComputeRunningProcesses", handle)
    return max(0, len(found or ()) - 1)


def pci_bus_id(gpu: Gpu) -> str:
    """The PCI bus id of `gpu`, "0000:1B:00.0": CUDA and NVML may number GPUs differently."""
    import cupy

    said: str = cupy.cuda.Device(gpu.index).pci_bus_id
    return said


class Monitor:
    """One GPU as NVML sees it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._nvml = library()

    def _ask(self, name: str, *arguments: Any) -> Any:
        return _told(name, self._handle, *arguments)

    def _number(self, per: float, name: str, *arguments: Any) -> float | None:
        told = self._ask(name, *arguments)
        return None if told is None else float(told) / per

    def _power_w(self) -> float | None:
        """At this moment where the driver tells it; since Ampere the usual figure is a second's."""
        field = getattr(self._nvml, "NVML_FI_DEV_POWER_INSTANT", None)
        told = None if field is None else self._ask("nvmlDeviceGetFieldValues", [field])
        if told is not None and told[0].nvmlReturn == self._nvml.NVML_SUCCESS:
            return float(told[0].value.uiVal) / 1e3
        return self._number(1e3, "nvmlDeviceGetPowerUsage")

    def _throttle(self) -> tuple[str, ...] | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the name before CUDA 12.2
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else reasons(int(bits))

    def read(self) -> Reading:
        """The GPU as it is now."""
        nvml = self._nvml
        mhz = self._number(1, "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
        celsius = self._number(1, "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        return Reading(mhz, self._power_w(), celsius, self._throttle())

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded, in steps of some ten milliseconds."""
        return self._number(1e3, "nvmlDeviceGetTotalEnergyConsumption")


def monitor(gpu: Gpu, bus_id: Callable[[Gpu], str] = pci_bus_id) -> Monitor | None:
    """`gpu` for NVML, found by its PCI bus id; None where NVML is missing or does not know it."""
    handle = None if library() is None else _told("nvmlDeviceGetHandleByPciBusId", bus_id(gpu))
    return None if handle is None else Monitor(handle)
