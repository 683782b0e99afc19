"""What of a comparison and of a run is watched on a GPU, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from test_power import GPU, HEADINGS, STATE

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.lab.render import Table
from lenetgpu.lab.rows import Machine
from lenetgpu.measure import power
from lenetgpu.measure import timing as calls
from lenetgpu.measure.comparison import Candidate, Comparison
from lenetgpu.measure.document import candidate_json, stage_rows
from lenetgpu.measure.timing import CallTimer, Replays, StepTiming
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve


class Bench:
    problem = None
    images = scaled_from = 1000
    once = False
    launched = ()

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
    """`watch` that gives what the sample does, or raises it; what it was asked, in order."""
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


def test_right_and_timed_candidates_are_watched(watching):
    made = [
        candidate("a"), candidate("b", "wrong"), candidate("c", samples=()), candidate("d"),
    ]  # fmt: skip
    said = []
    power.watch_all(Comparison("conv1", "a", made), GPU, say=said.append)
    assert [c.machine for c in made] == [STATE, None, None, STATE]
    assert watching == [7000, 7000]
    assert said == ["watching a for 2 s", "watching d for 2 s"]


def test_nothing_is_watched_for_no_seconds(watching):
    power.watch_all(Comparison("conv1", "a", [candidate("a")]), GPU, 0.0)
    assert watching == []


def test_no_energy_with_a_cold_cache(watching):
    power.watch_all(Comparison("conv1", "a", [candidate("a")], cold_l2=True), GPU)
    assert watching == [0]


def test_nothing_is_watched_on_a_cpu(watching):
    power.watch_all(Comparison("conv1", "a", [candidate("a")]), None)
    assert watching == []


def test_ctrl_c_keeps_what_was_watched(watching):
    made = [candidate("a"), candidate("b", state=KeyboardInterrupt()), candidate("c")]
    comparison = Comparison("conv1", "a", made)
    power.watch_all(comparison, GPU)
    assert comparison.interrupted
    assert [c.machine for c in made] == [STATE, None, None]
    assert made[1].status == "right" and made[1].samples


def test_what_breaks_while_it_is_watched_fails_alone(watching):
    broken = candidate("a", state=LenetError("expected a launch, found none"))
    other = candidate("b")
    power.watch_all(Comparison("conv1", "b", [broken, other]), GPU)
    assert (broken.status, broken.samples, broken.machine) == ("failed", [], None)
    assert broken.note == "expected a launch, found none"
    assert other.machine == STATE


def test_json_and_columns():
    made = candidate("a")
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
    columns = [replace(one, key=f"machine.{one.key}") for one in Machine.columns()]
    assert [one.title for one in columns] == HEADINGS
    assert [one.cell(entry) for one in columns] == ["1,755", "312", "41", "power cap", "12.25"]
    assert columns[3].cell(calm) == "no"
    assert Table(columns, [{"machine": None}, {}]).columns == ()
    assert Table(columns, [entry, calm, {}]).csv().splitlines()[1:] == [
        "1755.0,312.5,41.0,power cap,12.25", "1755.0,312.5,41.0,no,12.25", ",,,,",
    ]  # fmt: skip
    for width, first_gone in ((39, 0), (35, 1), (30, 2)):
        shown = [one.title for one in Table(columns, [entry]).fitting(width)]
        assert shown == [h for h in HEADINGS if h not in ("C", "W")[:first_gone]]


def test_a_candidate_not_watched_has_no_machine():
    made = candidate("a")
    assert "machine" not in candidate_json(Comparison("plans", "a", [made]), made, None)


def test_passes_are_the_calls_of_a_sample():
    called = []
    timer = CallTimer(lambda: called.append(1), False, 1e9, pytest.fail)
    called.clear()
    timer.sample()
    assert timer.passes == len(called) > 1


def test_passes_of_a_graph_are_its_calls_times_its_replays(monkeypatch):
    launched = []

    class Stream:
        __enter__ = __exit__ = synchronize = lambda *_: None

    class Graph:
        stream = Stream()

        def launch(self):
            launched.append(1)

    def replayed(work, times=1):
        for _ in range(times):
            work()
        return 0.1 * times

    monkeypatch.setattr(calls, "gpu_ms", replayed)
    timer = CallTimer(lambda: None, True, 1e9, lambda call, count: Graph())
    launched.clear()
    timer.sample()
    assert (len(launched), timer.passes) == (5, 50)  # 0.5 ms of replays that take 0.1 ms
    assert Replays(Graph(), 3).passes == 3


@pytest.fixture
def pipeline(shipped_weights):
    made = Pipeline(resolve("tiled", "cpu"), shipped_weights, 70, chunk=33)
    for step in made.steps:
        step.mounted.on_gpu = True
    return made


def test_steps_are_watched_alone_on_their_own_input(pipeline, monkeypatch):
    images = load_dataset(assets.default_digits()).images[:70]
    asked, expected = [], pipeline.run(images)[:33].copy()

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
    assert asked == [(10 * 33, 5.0)] * len(rows)  # ten launches of 0.5 ms
    assert [row.machine.readings for row in rows] == list(range(1, len(rows) + 1))
    np.testing.assert_array_equal(pipeline.labels[:33], expected)
    assert [row["machine"]["sm_mhz"] for row in stage_rows(rows, 70, None)] == [1755.0] * len(rows)


def test_stages_on_the_cpu_are_not_watched(pipeline, monkeypatch):
    for step in pipeline.steps:
        step.mounted.on_gpu = False
    monkeypatch.setattr(power, "monitor", lambda gpu: object())
    monkeypatch.setattr(power, "watch", lambda *_: pytest.fail("watched"))
    rows = [StepTiming(step, samples=[1.0]) for step in pipeline.steps]
    power.watch_steps(rows, pipeline, np.zeros((40, 28, 28, 1), np.uint8), GPU)
    assert {row["machine"] for row in stage_rows(rows, 40, None)} == {None}


@pytest.mark.gpu
def test_the_stages_of_a_run_are_watched():
    arguments = ["infer", "--device", "cuda", "--plan", "tiled", "--timing", "--json", "-"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["correct"] == 9_822
    assert len(document["stages"]) >= 7
    for row in document["stages"]:
        assert row["machine"]["watched_s"] >= 2
        assert row["machine"]["sm_mhz"] > 0
        assert row["machine"]["energy_uj_per_image"] > 0
    assert all(document[name] for name in ("driver", "cuda_driver", "nvrtc", "cupy"))
