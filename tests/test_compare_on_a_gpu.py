"""compare and conv on a GPU: replayed plans, a cold cache, the state of the GPU."""

import json

import pytest
import terminal

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def run(*arguments):
    return json.loads(terminal.run(*arguments, "--device", "cuda", "--json", "-", code=0).stdout)


def test_plans_are_replayed_with_gpu_state_recorded():
    document = run("compare", "plans", "--only", "fp32,tiled", "--batch", 2_000, "--seconds", 1,
                   "--watch", 0.3)  # fmt: skip
    entries = {entry["name"]: entry for entry in document["candidates"]}
    assert set(entries) == {"fp32", "tiled"}
    for entry in entries.values():
        assert entry["method"] == "replayed passes"
        assert entry["machine"]["sm_mhz"] > 0
        assert entry["machine"]["energy_uj_per_image"] is None  # less than the counters need
    assert entries["tiled"]["ratio"]["low"] > 2
    assert document["baseline_again"]["verdict"] in ("same", "undecided")


def test_cold_l2_option_clears_the_cache():
    shape = ("conv", "64,56,56,64,3,1,1", "--only", "direct.tight", "--watch", 0, "--seconds", 0.5,
             "--baseline", "direct.tight")  # fmt: skip
    (warm,) = run(*shape)["cases"]
    cold_run = run(*shape, "--cold-l2")
    (cold,) = cold_run["cases"]
    assert cold_run["cold_l2"]
    found = {entry["name"]: entry for entry in cold["candidates"]}["direct.tight"]
    assert found["method"] == "single calls, cold L2"
    before = {entry["name"]: entry for entry in warm["candidates"]}["direct.tight"]
    assert before["method"].startswith("graph of")
    assert found["median_ms"] > before["median_ms"]
