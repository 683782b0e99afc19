"""Ceilings: what they count, when they are valid, and the response to a stage above them."""

import datetime
import json
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from terminal import run

from lenetgpu.cpu.threads import core_count, cpu_name
from lenetgpu.errors import LenetError
from lenetgpu.measure import roofline
from lenetgpu.measure.roofline import Ceilings, ceilings, confirmed, known
from lenetgpu.store import entries

TODAY = datetime.date.today().isoformat()
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def measured(monkeypatch):
    """Rates for fake measurements, consumed in order."""
    rates = []

    def measure(name):
        return Ceilings(name, *rates.pop(0), 0.0)

    monkeypatch.setattr(roofline, "_measure_cpu", measure)
    monkeypatch.setattr(roofline, "machine_load", lambda: 0.0)
    return rates


def cached(folder):
    (path,) = folder.glob("ceilings/cpu-*.entry")
    return path


def test_copy_and_fma_rates_are_counted_correctly(monkeypatch):
    """Each pass takes a millisecond, except for the warm-up pass."""
    from lenetgpu.cpu import tile

    copied, done, passes = [], [], 25

    def run(lines, pointers, geometry, lo, hi):
        times, k, pixels, channels = hi - lo, geometry[3], geometry[5], geometry[6]
        assert geometry[0] == times and geometry[1:3] == (0, 0) and geometry[4] == k
        assert lines.weights.size == k * channels
        done.append(2 * times * pixels * channels * k)

    def timer(work, times=1):
        work()
        return 9.0 if len(done) <= core_count() else 1.0

    monkeypatch.setattr(roofline, "_CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(roofline, "cpu_ms", timer)
    monkeypatch.setattr(
        roofline.np, "copyto", lambda to, source: copied.append(source.nbytes + to.nbytes)
    )
    monkeypatch.setattr(tile.Lines, "run", run)
    found = ceilings("cpu", "test")
    assert sum(copied) == (1 + passes) * 2 << 20
    assert found.copy_gbs == pytest.approx(sum(copied) / (1 + passes) / 9e-3 / 1e9)
    assert len(done) == (1 + passes) * core_count()
    assert found.fma_tflops == pytest.approx(sum(done) / (1 + passes) / 1e-3 / 1e12)


def test_rates_of_a_gpu_count_the_same_by_its_own_clock(own_cache, monkeypatch):
    runtime = SimpleNamespace(memGetInfo=lambda: (400, 800), driverGetVersion=lambda: 13000)
    cuda = SimpleNamespace(runtime=runtime)
    made = SimpleNamespace(cuda=cuda, uint8=1, float32=4)
    made.ones = made.empty = lambda size, dtype: size
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setattr(roofline, "hold_events", lambda: None)
    monkeypatch.setattr(roofline, "multiprocessors", lambda: 2)
    monkeypatch.setattr(roofline, "load_on", lambda device: 0.0)
    monkeypatch.setattr(roofline, "gpu_ms", lambda work: 2000.0)
    found, per_warp = ceilings("cuda", "test"), 16 * 8 * 8 * 8 * 4096 / 2 / 1e12
    assert found.copy_gbs == 2 * 100 / 2 / 1e9
    assert found.fma_tflops == pytest.approx(16 * 256 * 2 * 8 * 4096 / 2 / 1e12)
    assert found.tensor_tflops == pytest.approx(16 * 256 // 32 * 2 * per_warp)


def test_ceilings_are_cached_with_their_conditions(own_cache, measured):
    measured += [(50.0, 0.5)]
    found = ceilings("cpu", "test")
    assert (found.date, found.cores, found.confirmed) == (TODAY, core_count(), False)
    assert entries.load("ceilings", cached(own_cache).stem, Ceilings) == found
    assert ceilings("cpu", "test") == known("cpu", "test") == found


@pytest.mark.parametrize(
    "change",
    [
        {"copy_gbs": 0.0}, {"fma_tflops": float("nan")}, {"copy_gbs": float("inf")},
        {"tensor_tflops": -1.0}, {"copy_gbs": "fast"}, {"more": 1},
        {"cores": 1 + core_count()}, {"device": "another"}, None,
    ],
    ids=str,
)  # fmt: skip
def test_invalid_cached_ceilings_are_measured_again(own_cache, measured, change):
    measured += [(50.0, 0.5), (60.0, 0.6)]
    found = ceilings("cpu", "test")
    if change is None:
        cached(own_cache).write_text("{")
    else:
        entries.save("ceilings", cached(own_cache).stem, asdict(found) | change)
    assert known("cpu", "test") is None
    assert ceilings("cpu", "test").copy_gbs == 60.0
    assert known("cpu", "test").copy_gbs == 60.0


@pytest.mark.parametrize("rates", [(0.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)])
def test_zero_rates_are_refused(own_cache, measured, rates):
    measured += [rates]
    with pytest.raises(LenetError, match="ceilings of test: expected rates above 0"):
        ceilings("cpu", "test")
    assert list(own_cache.iterdir()) == []


def test_ceilings_are_confirmed_daily_and_never_lowered(measured):
    measured += [(50.0, 0.5), (40.0, 0.6)]
    first = ceilings("cpu", "test")
    second = confirmed("cpu", first)
    assert (second.copy_gbs, second.fma_tflops, second.confirmed) == (50.0, 0.6, True)
    assert known("cpu", "test") == second
    assert confirmed("cpu", second) == second and measured == []
    measured += [(70.0, 0.1)]
    third = confirmed("cpu", replace(second, date="2020-02-29"))
    assert (third.copy_gbs, third.fma_tflops, third.date) == (70.0, 0.6, TODAY)


def test_ceilings_measured_under_load_are_replaced(measured, monkeypatch):
    loads = iter([2.0, 1.5, 1.0, 0.4, 0.1])  # measured, kept, measured anew (twice asked), kept
    monkeypatch.setattr(roofline, "machine_load", lambda: next(loads))
    measured += [(50.0, 0.5), (60.0, 0.6)]
    assert ceilings("cpu", "test").load == 2.0
    assert ceilings("cpu", "test").copy_gbs == 50.0
    found = ceilings("cpu", "test")
    assert (found.copy_gbs, found.load) == (60.0, 0.4)
    assert ceilings("cpu", "test") == found and next(loads, None) is None


def test_share_above_one_on_gpu_clears_auto_choices(monkeypatch):
    for device in ("this one", "another"):
        entries.save("auto", device, {"device": device})
    limits = Ceilings("this one", 50.0, 0.5, 1.0, TODAY, driver=1)
    monkeypatch.setattr(roofline, "_measured", lambda device, name: limits)
    confirmed("cpu", limits)
    assert entries.facts_of("auto", "this one") is not None
    again = confirmed("cuda", limits)
    assert entries.facts_of("auto", "this one") is None
    assert entries.facts_of("auto", "another") is not None
    entries.save("auto", "this one", {"device": "this one"})
    confirmed("cuda", again)
    assert entries.facts_of("auto", "this one") is not None


@pytest.mark.parametrize(
    ("second", "noted"), [((1e9, 1e9), False), ((2e-6, 2e-6), True), (None, False)]
)
def test_share_above_one_remeasures_ceilings(measured, second, noted, tmp_path):
    """Ceilings start far below the stages' rates; the second ones are correct or as low."""
    measured += [(1e9, 1e9)] if second is None else [(1e-6, 1e-6), second]
    report = tmp_path / "p.json"
    words = ["profile", "--limit", "70", "--device", "cpu", "--json", str(report)]
    result = run(*words, code=0)
    assert measured == []
    said = f"above a ceiling measured {TODAY}: another clock or load, or fewer operations than "
    assert (said in " ".join(result.output.split())) is noted
    assert f"(measured {TODAY})" in result.output
    limits = known("cpu", cpu_name())
    assert limits.confirmed is (second is not None)
    assert limits.copy_gbs == (second or (1e9,))[0]
    shares = [row["roofline"] for row in json.loads(report.read_text())["stages"]]
    assert (max(shares) > 1) is noted


@pytest.mark.gpu
def test_gpu_ceilings_are_tied_to_the_driver(own_cache, cupy):
    from lenetgpu.gpu.device import activate, require_gpu

    gpu = require_gpu(0)
    activate(gpu)
    found = ceilings("cuda", gpu.name)
    assert found.driver == cupy.cuda.runtime.driverGetVersion()
    assert (found.date, found.cores) == (TODAY, 0)
    assert known("cuda", gpu.name) == found
    (path,) = own_cache.glob("ceilings/cuda-*.entry")
    entries.save("ceilings", path.stem, replace(found, driver=1))
    assert known("cuda", gpu.name) is None
