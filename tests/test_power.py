"""What a GPU was doing, by an NVML of our own: units, energy, words, gaps, which GPU is asked."""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import chain, repeat
from threading import Semaphore
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from lenetgpu.check.truth import truth
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu import nvml, software
from lenetgpu.gpu.device import Gpu, driver_gpus
from lenetgpu.gpu.launch import record
from lenetgpu.gpu.nvml import MachineState, Spread
from lenetgpu.measure import power
from lenetgpu.measure.bench import StageBench, stage_of
from lenetgpu.stages import variants

GPU = Gpu(0, "NVIDIA Test", 90)
BUS = "0000:C1:00.0"
HEADINGS = ["SM MHz", "W", "C", "throttled", "uJ/image"]
STATE = MachineState(
    Spread(1755.0, 1740.0, 1770.0), Spread(312.5, 300.0, 320.0), Spread(40.0, 39.0, 41.0),
    ("power cap",), 12.25, "counter", 2.003, 98,
)  # fmt: skip


class FakeNvml(ModuleType):
    """One GPU at BUS, second by NVML's index; what `lacks` names answers "not supported"."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_SUCCESS = 1, 0, 0
    NVML_FI_DEV_POWER_INSTANT = 186

    class NVMLError(Exception):
        pass

    def __init__(self, lacks=()):
        super().__init__("pynvml")
        self.lacks, self.looks = set(lacks), Semaphore(0)
        self.milliwatts = repeat(312_500)
        self.millijoules = iter([5_000, 9_000])
        self.bits = repeat(0x1)

    def _say(self, name, value):
        if name in self.lacks:
            raise self.NVMLError("Not Supported")
        return value

    def nvmlInit(self):
        return self._say("init", None)

    def nvmlDeviceGetHandleByPciBusId(self, bus):
        assert bus == BUS
        return self._say("bus", "second")

    def nvmlDeviceGetHandleByIndex(self, index):
        pytest.fail("NVML's order is not CUDA's")

    def nvmlDeviceGetClockInfo(self, handle, kind):
        assert (handle, kind) == ("second", 1)
        self.looks.release()
        return self._say("clock", 1755)

    def nvmlDeviceGetTemperature(self, handle, sensor):
        assert (handle, sensor) == ("second", 0)
        return self._say("temperature", 41)

    def nvmlDeviceGetFieldValues(self, handle, fields):
        assert (handle, fields) == ("second", [186])
        status = 3 if "instant" in self.lacks else 0
        value = 0 if status else next(self.milliwatts)
        return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=value))]

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._say("power", 298_000)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self._say("events", next(self.bits))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self._say("throttle", 0x40)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return self._say("energy", next(self.millijoules))

    def nvmlSystemGetDriverVersion(self):
        return self._say("driver", b"580.159.04")

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return self._say("cuda", 12_080)


@pytest.fixture
def fake(monkeypatch):
    """Put an NVML in the place of the real one, and CUDA's device 0 at BUS."""

    def install(*lacks):
        made = FakeNvml(lacks)
        monkeypatch.setitem(sys.modules, "pynvml", made)
        nvml.library.cache_clear()
        return made

    cuda = SimpleNamespace(Device=lambda index: SimpleNamespace(pci_bus_id={0: BUS}[index]))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    yield install
    nvml.library.cache_clear()


def watched(monkeypatch, made, weights=repeat(1000.0), images=100):  # noqa: B008
    """The state after a warm-up and two samples of a second each, with a reading in each."""
    durations, samples = iter(weights), []

    def sample():
        samples.append(made.looks.acquire(timeout=60) if samples else "warm-up")
        return 0.0

    def by_the_clock(work, times=1):
        work()
        return 1000.0 if work is sample else next(durations)

    monkeypatch.setattr(power, "cpu_ms", by_the_clock)
    state = power.watch(sample, images, GPU)
    assert samples == ["warm-up", True, True]
    return state


def test_units(fake, monkeypatch):
    state = watched(monkeypatch, fake())
    assert state.sm_mhz == Spread(1755.0, 1755.0, 1755.0)
    assert state.power_w == Spread(312.5, 312.5, 312.5)
    assert state.temperature_c == Spread(41.0, 41.0, 41.0)
    assert state.throttle == ()
    assert state.watched_s == 2.0
    assert state.readings >= 2


def test_energy_is_the_counters_over_the_images_of_the_samples(fake, monkeypatch):
    state = watched(monkeypatch, fake())
    assert (state.energy_uj_per_image, state.energy_from) == (4e6 / 200, "counter")


def test_energy_is_power_over_time_where_there_is_no_counter(fake, monkeypatch):
    made = fake("energy")
    made.milliwatts = chain([100_000, 300_000], repeat(900_000))
    state = watched(monkeypatch, made, chain([1000.0, 3000.0], repeat(0.0)))
    assert state.energy_from == "power"
    assert state.energy_uj_per_image == pytest.approx(250 * 2 * 1e6 / 200)


def test_a_counter_that_stands_still_is_none(fake, monkeypatch):
    made = fake()
    made.millijoules = repeat(7_000)
    assert watched(monkeypatch, made).energy_from == "power"


def test_no_images_no_energy(fake, monkeypatch):
    state = watched(monkeypatch, fake(), images=0)
    assert (state.energy_uj_per_image, state.energy_from) == (None, None)
    assert state.power_w.median == 312.5


def test_power_of_this_moment_or_of_the_last_second(fake, monkeypatch):
    assert watched(monkeypatch, fake("instant")).power_w.median == 298.0
    old = fake()
    monkeypatch.delattr(FakeNvml, "NVML_FI_DEV_POWER_INSTANT")
    assert nvml.monitor(GPU).read().power_w == 298.0
    assert old.NVML_SUCCESS == 0


def test_what_is_not_supported_is_none(fake, monkeypatch):
    lacks = ("clock", "instant", "power", "temperature", "events", "throttle", "energy")
    state = watched(monkeypatch, fake(*lacks))
    assert state == MachineState(None, None, None, None, None, None, 2.0, state.readings)
    found = state.as_json()
    assert found.pop("watched_s") == 2.0 and found.pop("readings") >= 2
    assert set(found.values()) == {None}


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x4, ("power cap",)),
        (0x65, ("power cap", "software thermal", "hardware thermal")),
        (0x8 | 0x80, ("hardware slowdown", "power brake")),
        (0x2 | 0x10 | 0x100, ("application clocks", "sync boost", "display clocks")),
        (0x1000, ("reason 0x1000",)),
    ],
)
def test_reasons_are_words(bits, expected):
    assert nvml.reasons(bits) == expected


def test_the_fake_and_the_words_are_the_real_modules():
    real = pytest.importorskip("pynvml", reason="the extra `dev` brings nvidia-ml-py")
    for name in (name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML_"))):
        assert hasattr(real, name), name
    assert real.NVML_CLOCK_SM == FakeNvml.NVML_CLOCK_SM
    assert real.NVML_TEMPERATURE_GPU == FakeNvml.NVML_TEMPERATURE_GPU
    assert real.NVML_FI_DEV_POWER_INSTANT == FakeNvml.NVML_FI_DEV_POWER_INSTANT
    for name, word in {
        "ApplicationsClocksSetting": "application clocks", "SwPowerCap": "power cap",
        "HwSlowdown": "hardware slowdown", "SyncBoost": "sync boost",
        "SwThermalSlowdown": "software thermal", "HwThermalSlowdown": "hardware thermal",
        "HwPowerBrakeSlowdown": "power brake", "DisplayClockSetting": "display clocks",
    }.items():  # fmt: skip
        assert nvml.reasons(getattr(real, f"nvmlClocksEventReason{name}")) == (word,)
    assert nvml.reasons(real.nvmlClocksEventReasonGpuIdle) == ()
    assert {"uiVal"} <= {field for field, _ in real.c_nvmlValue_t._fields_}
    assert {"nvmlReturn", "value"} <= {field for field, *_ in real.c_nvmlFieldValue_t._fields_}


def test_reasons_of_all_readings_count_and_the_old_name_is_known(fake, monkeypatch):
    made = fake()
    made.bits = chain([0x4, 0x24], repeat(0x1))
    assert watched(monkeypatch, made).throttle == ("power cap", "software thermal")
    assert watched(monkeypatch, fake("events")).throttle == ("hardware thermal",)


def test_a_spread_skips_what_was_not_told():
    assert nvml.spread([3.0, None, 1.0, 2.5]) == Spread(2.5, 1.0, 3.0)
    assert nvml.spread([None, None]) is None


def test_the_gpu_is_found_by_its_bus_and_not_by_its_index(fake):
    fake()
    assert nvml.monitor(GPU) is not None  # FakeNvml asserts the rest


@pytest.mark.parametrize("lack", ["init", "bus"])
def test_no_nvml_no_state(fake, monkeypatch, lack):
    fake(lack)
    assert power.watch(lambda: pytest.fail("ran for nothing"), 1, GPU) is None


def test_no_module_no_state(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvml.library.cache_clear()
    assert power.watch(lambda: pytest.fail("ran for nothing"), 1, GPU) is None
    assert nvml.nvml_version() is None
    nvml.library.cache_clear()


def test_what_breaks_ends_the_watching(fake):
    fake()

    def breaks():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        power.watch(breaks, 1, GPU)


def test_versions_of_a_gpus_software(fake, monkeypatch):
    fake()
    monkeypatch.setattr(software, "commit", lambda: "0123456789ab")
    monkeypatch.setattr(software.nvrtc, "version", lambda: (13, 1))
    found = software.software(GPU)
    assert (found["driver"], found["cuda_driver"], found["nvrtc"]) == ("580.159.04", "12.8", "13.1")
    assert found["commit"] == "0123456789ab"
    assert found["numpy"] == np.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))


def test_the_driver_is_named_without_nvml_too(fake, monkeypatch, tmp_path):
    fake("init")
    version = tmp_path / "version"
    monkeypatch.setattr(nvml, "_PROC_VERSION", version)
    assert nvml.driver_version() is None
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module  570.86.15  Release\nGCC\n")
    assert nvml.driver_version() == "570.86.15"


def test_no_gpu_no_driver(fake):
    fake()
    found = software.software(None)
    assert {found[name] for name in ("cupy", "driver", "cuda_driver", "nvrtc")} == {None}


@pytest.mark.skipif(shutil.which("git") is None, reason="no git to make a commit with")
def test_the_commit_says_whether_the_sources_are_its_own(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-C", tmp_path, "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit():
        software.commit.cache_clear()
        return software.commit(tmp_path)

    source, result = tmp_path / "lenetgpu" / "a.py", tmp_path / "docs" / "a.json"
    for path in (source, result):
        path.parent.mkdir()
        path.write_text("1")
    assert commit() is None
    monkeypatch.setenv("LENETGPU_COMMIT", "fedcba987654")
    assert commit() == "fedcba987654"
    git("init", "-q")
    assert commit() is None  # nothing committed
    git("add", ".")
    git("commit", "-qm", "x")
    clean = git("rev-parse", "HEAD")[:12]
    assert commit() == clean
    result.write_text("2")
    assert commit() == clean
    source.write_text("2")
    assert commit() == clean + "+changes"
    git("checkout", "-q", "--", "lenetgpu")
    assert commit() == clean
    source.with_name("new.cu").write_text("")
    assert commit() == clean + "+changes"
    software.commit.cache_clear()


@pytest.mark.gpu
@pytest.mark.alone
def test_a_real_gpu_is_watched():
    import pynvml

    gpu = driver_gpus()[0]
    seen = nvml.monitor(gpu)
    assert seen is not None, "expected NVML, found none"
    name = pynvml.nvmlDeviceGetName(seen._handle)
    assert (name.decode() if isinstance(name, bytes) else name) == gpu.name
    digits = load_dataset(assets.default_digits()).images
    weights = load_weights(assets.default_weights())
    (variant,) = [v for v in variants("conv", "cuda") if v.full_name == "direct.basic"]
    bench = StageBench(variant, stage_of("conv2"), 10_000, truth(digits[:100], weights))
    bench.sample()
    work, passes = bench.burst(20)
    with record() as launches:
        work()
    assert len(launches) == passes * len(bench.launched)
    state = power.watch(work, passes * bench.images, gpu)
    assert state.watched_s >= 2
    assert state.readings >= 20
    assert 0 < state.power_w.least <= state.power_w.median <= state.power_w.most
    assert state.sm_mhz.median > 0 and state.temperature_c.most > 0
    joules = state.energy_uj_per_image * bench.images / 1e6
    assert joules > 0
    if state.energy_from == "counter":
        taken = state.watched_s / (bench.sample() / 1e3)
        assert joules * taken == pytest.approx(state.power_w.median * state.watched_s, rel=0.3)
