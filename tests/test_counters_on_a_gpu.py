"""Counters by Nsight Compute on a GPU: values derived from addresses equal the measured ones."""

import json

import pytest
from terminal import run

from lenetgpu.files import assets
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.measure.counters import document, ncu
from lenetgpu.measure.counters.child import Images, Work
from lenetgpu.measure.counters.ncu import NoCounters, merged
from lenetgpu.papers.course_counters import NVVP, PASSES, PASSES_OF, specs

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
POINTS = 0.03
COUNTED = [
    ("pool1", PASSES_OF),
    ("pool2", "layout.quad_looped"),
    ("conv2", "direct.two_maps"),
    ("conv2", "unrolled.image_layout"),
]


@pytest.fixture(scope="module")
def version():
    """Version of the installed Nsight Compute."""
    try:
        return ncu.version(ncu.find())
    except NoCounters as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def found(version):
    """Counters of COUNTED, each alone, by (stage, variant)."""
    own = specs(COUNTED)
    images = Images(assets.default_digits(), assets.default_weights(), 1000)
    try:
        work = Work("few", tuple(own.values()))
        _, (sections,) = document.read([work], images, driver_gpus()[0])
    except NoCounters as why:
        if any(word in str(why) for word in ("ERR_NVGPUCTRPERM", "LibraryNotLoaded")):
            pytest.skip(str(why))
        raise
    return dict(zip(own, sections, strict=True))


@pytest.mark.parametrize("key", COUNTED, ids="-".join)
def test_counted_values_equal_measured_ones(found, key):
    section = found[key]
    assert section.error is None
    later = key[1] in ("layout.quad_looped", "unrolled.image_layout")
    (figure,) = [line for line in NVVP if (line.stage, line.variant) == key and line.later == later]
    loads, stores = figure.counted()
    kernels = {kernel.kernel: kernel for kernel in section.kernels}
    (own,) = [kernels[name] for name in kernels if key[1] != PASSES_OF or name == PASSES["mean"]]
    assert own.global_load_efficiency == pytest.approx(loads.efficiency, abs=POINTS)
    assert own.global_store_efficiency == pytest.approx(stores.efficiency, abs=POINTS)


def test_pool_uses_dram_and_no_shared_memory(found):
    whole = merged("", found["pool1", PASSES_OF].kernels)
    assert whole.dram_read_gbs > 0 and whole.dram_write_gbs > 0 and whole.l2_gbs > 0
    assert whole.shared_efficiency is None and 0 < whole.occupancy <= 1
    assert sum(whole.stalls.values()) == pytest.approx(1)
    assert merged("", found["conv2", "direct.two_maps"].kernels).shared_efficiency > 0


def test_profile_has_a_row_per_step(found, version):
    words = ["profile", "--counters", "--plan", "course", "--limit", "500", "--json", "-"]
    document = json.loads(run(*words, code=0).stdout)
    counters = document["counters"]
    assert (counters["source"], counters["version"]) == ("ncu", version)
    assert [row["stage"] for row in counters["rows"]] == [row["name"] for row in document["stages"]]
    assert all(row["error"] is None and row["ms"] > 0 for row in counters["rows"])


def test_compare_has_counters_per_correct_candidate(found):
    words = ["compare", "pool2", "--counters", "--only", "fused.maps_looped,basic.in_place",
             "--batch", "500", "--seconds", "0.5", "--watch", "0", "--json", "-"]  # fmt: skip
    document = json.loads(run(*words, code=0).stdout)
    assert document["counters"]["source"] == "ncu"
    assert all(entry["counters"]["occupancy"] > 0 for entry in document["candidates"])
