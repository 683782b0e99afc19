"""GPU state while watched, from a fake NVML, and the parts of a run that are watched."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import chain, repeat
from threading import Semaphore
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from pretended_gpu import PretendedGpu
from terminal import run

from lenetgpu.check.reference import network_reference
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.gpu import nvml, software
from lenetgpu.gpu.device import Gpu, driver_gpus
from lenetgpu.gpu.launch import record
from lenetgpu.gpu.nvml import MachineState, Spread
from lenetgpu.lab.tables import LAUNCH, Table
from lenetgpu.measure import bench as bench_module
from lenetgpu.measure import power, timing
from lenetgpu.measure.bench import PlanBench, StageBench, input_of, stage_of
from lenetgpu.measure.document import candidate_json, stage_rows
from lenetgpu.measure.rounds import Candidate, Comparison
from lenetgpu.measure.timing import CallTimer, StepTiming
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve
from lenetgpu.stages import find

GPU = Gpu(0, "NVIDIA Test", 90)
BUS = "0000:C1:00.0"
MACHINE = LAUNCH[-5:]
STATE = MachineState(
    Spread(1755.0, 1740.0, 1770.0), Spread(312.5, 300.0, 320.0), Spread(40.0, 39.0, 41.0),
    ("power cap",), 12.25, "counter", 2.003, 98,
)  # fmt: skip


class FakeNvml(ModuleType):
    """One GPU at BUS, NVML's second; functions named in `lacks` answer "not supported"."""

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
        self.nvmlInit = self._says("init", [], None)
        self.nvmlDeviceGetHandleByPciBusId = self._says("bus", [BUS], "second")
        self.nvmlDeviceGetTemperature = self._says("temperature", ["second", 0], 41)
        self.nvmlDeviceGetPowerUsage = self._says("power", ["second"], 298_000)
        events = self._says("events", ["second"], lambda: next(self.bits))
        self.nvmlDeviceGetCurrentClocksEventReasons = events
        self.nvmlDeviceGetCurrentClocksThrottleReasons = self._says("throttle", ["second"], 0x40)
        energy = self._says("energy", ["second"], lambda: next(self.millijoules))
        self.nvmlDeviceGetTotalEnergyConsumption = energy
        self.nvmlSystemGetDriverVersion = self._says("driver", [], b"580.159.04")
        self.nvmlSystemGetCudaDriverVersion_v2 = self._says("cuda", [], 12_080)

    def _says(self, name, asked, value):
        def answer(*arguments):
            assert [*arguments] == asked
            if name in self.lacks:
                raise self.NVMLError("Not Supported")
            return value() if callable(value) else value

        return answer

    def nvmlDeviceGetClockInfo(self, handle, kind):
        self.looks.release()
        return self._says("clock", ["second", 1], 1755)(handle, kind)

    def nvmlDeviceGetFieldValues(self, handle, fields):
        assert (handle, fields) == ("second", [186])
        status = 3 if "instant" in self.lacks else 0
        value = 0 if status else next(self.milliwatts)
        return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=value))]


@pytest.fixture
def fake(monkeypatch):
    """Replace NVML with a fake one, with CUDA's device 0 at BUS."""

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
    """Return the state after a warm-up and two samples of one second, with one reading in each."""
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


def test_gpu_state_units_and_energy_per_image(fake, monkeypatch):
    state = watched(monkeypatch, fake())
    spreads = state.sm_mhz, state.power_w, state.temperature_c
    assert spreads == tuple(Spread(*[value] * 3) for value in (1755.0, 312.5, 41.0))
    assert (state.throttle, state.watched_s) == ((), 2.0) and state.readings >= 2
    assert (state.energy_uj_per_image, state.energy_from) == (4e6 / 200, "counter")
    none = watched(monkeypatch, fake(), images=0)
    assert (none.energy_uj_per_image, none.energy_from) == (None, None)


def test_energy_without_counter_is_integrated_power(fake, monkeypatch):
    made = fake("energy")
    made.milliwatts = chain([100_000, 300_000], repeat(900_000))
    state = watched(monkeypatch, made, chain([1000.0, 3000.0], repeat(0.0)))
    assert state.energy_from == "power"
    assert state.energy_uj_per_image == pytest.approx(250 * 2 * 1e6 / 200)
    made = fake()
    made.millijoules = repeat(7_000)
    assert watched(monkeypatch, made).energy_from == "power"


def test_unsupported_nvml_queries_give_none_or_older_names(fake, monkeypatch):
    assert watched(monkeypatch, fake("instant")).power_w.median == 298.0
    made = fake()
    made.bits = chain([0x4, 0x24], repeat(0x1))
    assert watched(monkeypatch, made).throttle == ("power cap", "software thermal")
    assert watched(monkeypatch, fake("events")).throttle == ("hardware thermal",)
    lacks = ("clock", "instant", "power", "temperature", "events", "throttle", "energy")
    state = watched(monkeypatch, fake(*lacks))
    assert state == MachineState(None, None, None, None, None, None, 2.0, state.readings)
    found = state.as_json()
    assert found.pop("watched_s") == 2.0 and found.pop("readings") >= 2
    assert set(found.values()) == {None}


@pytest.mark.parametrize("lack", ["init", "bus", "module"])
def test_gpu_state_needs_nvml(fake, monkeypatch, lack):
    fake(lack)
    if lack == "module":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    assert power.watch(lambda: pytest.fail("ran for nothing"), 1, GPU) is None
    assert nvml.nvml_version() is None


def test_software_versions_with_a_gpu(fake, monkeypatch):
    fake()
    monkeypatch.setattr(software, "commit", lambda: "0123456789ab")
    monkeypatch.setattr(software.nvrtc, "version", lambda: (13, 1))
    found = software.software(GPU)
    assert (found["driver"], found["cuda_driver"], found["nvrtc"]) == ("580.159.04", "12.8", "13.1")
    assert (found["commit"], found["numpy"]) == ("0123456789ab", np.__version__)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    found = software.software(None)
    assert {found[name] for name in ("cupy", "driver", "cuda_driver", "nvrtc")} == {None}


@pytest.mark.skipif(shutil.which("git") is None, reason="no git to make a commit with")
def test_commit_is_marked_if_sources_differ(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-C", tmp_path, "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit():
        software.commit.cache_clear()
        return software.commit(tmp_path)

    source, result = tmp_path / "lenetgpu" / "a.py", tmp_path / "docs" / "a.json"
    for path in (source, result):
        path.parent.mkdir()
        path.write_text("1")
    monkeypatch.setenv("LENETGPU_COMMIT", "fedcba987654")
    assert commit() == "fedcba987654"
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    result.write_text("2")
    clean = git("rev-parse", "HEAD")[:12]
    assert commit() == clean
    source.with_name("new.cu").write_text("")
    assert commit() == clean + "+changes"
    software.commit.cache_clear()


class Bench:
    problem, once, launched, method, note = None, False, (), "", ""
    images = scaled_from = 1000

    def __init__(self, state=STATE):
        self.state = state

    def sample(self):
        return self.state

    def burst(self, milliseconds):
        assert milliseconds >= 10
        return self.sample, 7


def candidate(name, status="right", samples=(1.0, 1.1), state=STATE):
    return Candidate(name, Bench, status=status, bench=Bench(state), samples=list(samples))


@pytest.fixture
def watching(monkeypatch):
    """Images of each call of a fake `watch`, which returns or raises the sample's result."""
    asked = []

    def watch(sample, images, gpu, seconds):
        assert seconds == 2.0
        asked.append(images)
        if isinstance(sample(), BaseException):
            raise sample()
        return sample()

    monkeypatch.setattr(power, "monitor", lambda gpu: object())
    monkeypatch.setattr(power, "watch", watch)
    return asked


def test_correct_timed_candidates_are_watched_on_gpu(watching):
    made = [candidate("a"), candidate("b", "wrong"), candidate("c", samples=()), candidate("d")]
    comparison, said = Comparison("conv1", "a", made), []
    power.watch_all(comparison, None)
    power.watch_all(comparison, GPU, 0.0)
    assert watching == []
    power.watch_all(comparison, GPU, say=said.append)
    assert [c.machine for c in made] == [STATE, None, None, STATE]
    assert watching == [7000, 7000]
    assert said == ["watching a for 2 s", "watching d for 2 s"]
    comparison.cold_l2 = True
    power.watch_all(comparison, GPU)
    assert watching[2:] == [0, 0], "no energy: most would be the flushing's"


def test_watching_survives_ctrl_c_and_single_failures(watching):
    broken = candidate("a", state=LenetError("expected a launch, found none"))
    made = [broken, candidate("b"), candidate("c", state=KeyboardInterrupt()), candidate("d")]
    comparison = Comparison("conv1", "b", made)
    power.watch_all(comparison, GPU)
    assert comparison.interrupted
    assert [c.machine for c in made] == [None, STATE, None, None]
    assert made[2].status == "right" and made[2].samples
    assert (broken.status, broken.samples) == ("failed", [])
    assert broken.note == "expected a launch, found none"


def test_gpu_state_in_json_and_columns():
    made = candidate("a")
    assert "machine" not in candidate_json(Comparison("plans", "a", [made]), made, None)
    made.machine = STATE
    entry = candidate_json(Comparison("plans", "a", [made]), made, None)
    assert entry["machine"] == {
        "sm_mhz": 1755.0, "sm_mhz_range": [1740.0, 1770.0],
        "power_w": 312.5, "power_w_range": [300.0, 320.0],
        "temperature_c": 41.0, "temperature_c_range": [39.0, 41.0],
        "throttle": ["power cap"], "energy_uj_per_image": 12.25, "energy_from": "counter",
        "watched_s": 2.003, "readings": 98,
    }  # fmt: skip
    calm = {"machine": entry["machine"] | {"throttle": []}}
    assert [one.title for one in MACHINE] == ["SM MHz", "W", "C", "throttled", "uJ/image"]
    assert [one.cell(entry) for one in MACHINE] == ["1,755", "312", "41", "power cap", "12.25"]
    assert MACHINE[3].cell(calm) == "no"
    assert Table(MACHINE, [{"machine": None}, {}]).columns == ()


def test_gpu_calls_are_timed_alone_or_as_a_graph_by_what_the_time_allows(monkeypatch):
    """A call takes 0.01 ms, a graph of ten 0.05 ms: ten graphs are a sample."""
    graph = SimpleNamespace(launch=lambda: 0.05, stream=PretendedGpu().stream())
    monkeypatch.setattr(timing, "gpu_ms", lambda work, times=1: sum(work() for _ in range(times)))
    for budget_ms, cold, method, passes, ms in (
        (9.0, False, "graph of 10 calls", 100, 0.005), (0.009, False, "one call", 1, 0.01),
        (9.0, True, "single calls, cold L2", 1, 0.01), (0.09, False, "single calls", 1, 0.01),
    ):  # fmt: skip
        timer = CallTimer(lambda: 0.01, True, budget_ms, lambda call, calls: graph, cold)
        assert (timer.method, timer.calls.passes, timer.once) == (method, passes, budget_ms < 0.01)
        assert timer.calls.sample() == pytest.approx(ms)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_gpu_steps_are_watched_separately_on_their_input(on_gpu, shipped_weights, monkeypatch):
    pipeline = Pipeline(resolve("tiled", "cpu"), shipped_weights, 70, chunk=33)
    for step in pipeline.steps:
        step.prepared.on_gpu = on_gpu
    images = load_dataset(assets.default_digits()).images[:70]
    asked, expected = [], pipeline.run(images)[:33].copy()
    bench = PlanBench(pipeline, images, network_reference(images, shipped_weights))
    verdict, _, *counts = vars(bench.check()).values()
    assert verdict.passed and counts == [0, 70, None] and not pipeline.with_scores
    np.testing.assert_allclose(input_of("conv1", images, {}, None) * 255, images, rtol=1e-6)

    def by_events(work, times=1):
        for _ in range(times):
            work()
        return 0.5 * times

    def watch(sample, count, gpu, seconds):
        asked.append((count, sample()))
        return replace(STATE, readings=len(asked))

    monkeypatch.setattr(power, "monitor", lambda gpu: object())
    monkeypatch.setattr(power, "gpu_ms", by_events)
    monkeypatch.setattr(power, "cpu_ms", lambda work: work())
    monkeypatch.setattr(power, "watch", watch)
    rows = [StepTiming(step, samples=[1.0]) for step in pipeline.steps]
    pipeline.poison()
    power.watch_steps(rows, pipeline, images, GPU)
    converts = SimpleNamespace(problem=None, variant=None, writes=("NCHW", (12, 12, 32)))
    converts.stages, converts.name, converts.label = ("pool1",), "NCHW", "converted"
    *found, last = stage_rows([*rows, StepTiming(converts, samples=[0.0])], 70, None)
    assert (last["gflop"], last["mbytes"]) == (0, 4 * 70 * 12 * 12 * 32 / 1e6)
    machines = [row["machine"] for row in found]
    if not on_gpu:
        assert asked == [] and set(machines) == {None}
        return
    assert asked == [(10 * 33, 5.0)] * len(rows)  # ten launches of 0.5 ms
    assert [machine["readings"] for machine in machines] == list(range(1, len(rows) + 1))
    np.testing.assert_array_equal(pipeline.labels[:33], expected)


@pytest.mark.parametrize("kind", [StageBench, PlanBench])
def test_a_burst_is_at_least_one_call_on_a_gpu_and_a_sample_on_a_cpu(kind):
    bench = SimpleNamespace(_launch_ms=8.0, sample=lambda: 8.0, input=None, _replays=None)
    bench._launch = bench._pass = print
    for bench._gpu, expected in ((True, [1, 3]), (False, [1, 1])):
        assert [kind.burst(bench, milliseconds)[1] for milliseconds in (1, 24)] == expected


def test_samples_hold_what_fits_into_their_time(monkeypatch):
    """10,000 images on a CPU in at most 1 s, a plan's in 3 s, else 1 s of them; 0.5 ms on a GPU."""
    cpu = SimpleNamespace(_gpu=False, images=10_000, _chunks=int, _time=float, _replays=None)
    gpu = SimpleNamespace(_gpu=True, _flush=None, _launch=int)
    n = cpu.images
    for of_64, *images in ((6.4, n, n), (6.5, 9_792, n), (19.2, 3_328, n), (19.3, 3_264, 3_264)):
        monkeypatch.setattr(bench_module, "cpu_ms", lambda work, ms=of_64: ms)
        for measure, expected in zip((StageBench._probe, PlanBench.sample), images, strict=True):
            cpu._probed = False
            assert (measure(cpu), cpu.scaled_from)[1] == expected
    for launch_ms, passes in ((0.0, 64), (0.005, 64), (0.1, 5), (1.0, 1)):
        monkeypatch.setattr(bench_module, "gpu_ms", lambda work, ms=launch_ms: ms)
        StageBench._probe(gpu)
        assert gpu.passes == passes


@pytest.mark.gpu
@pytest.mark.alone
def test_real_gpu_is_watched(shipped_weights):
    import pynvml

    gpu = driver_gpus()[0]
    seen = nvml.monitor(gpu)
    assert seen is not None, "expected NVML, found none"
    name = pynvml.nvmlDeviceGetName(seen._handle)
    assert (name.decode() if isinstance(name, bytes) else name) == gpu.name
    facts = network_reference(load_dataset(assets.default_digits()).images[:100], shipped_weights)
    bench = StageBench(find("conv", "direct.basic", "cuda"), stage_of("conv2"), 10_000, facts)
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
        done = state.watched_s / (bench.sample() / 1e3)
        assert joules * done == pytest.approx(state.power_w.median * state.watched_s, rel=0.3)


@pytest.mark.gpu
def test_stages_of_a_run_are_watched():
    arguments = ["infer", "--device", "cuda", "--plan", "tiled", "--timing", "--json", "-"]
    document = json.loads(run(*arguments, code=0).stdout)
    assert document["correct"] == 9_822
    assert len(document["stages"]) >= 7
    for row in document["stages"]:
        assert row["machine"]["watched_s"] >= 2
        assert row["machine"]["sm_mhz"] > 0
        assert row["machine"]["energy_uj_per_image"] > 0
    assert all(document[name] for name in ("driver", "cuda_driver", "nvrtc", "cupy"))
