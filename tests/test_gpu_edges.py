"""Edge cases on a GPU: short passes, long sums, measured peaks, graphs."""

import numpy as np
import pytest
from conftest import plan_here
from test_gpu_variants import FUSED

from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.pipeline import Pipeline

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("plan", FUSED)
def test_short_pass_leaves_other_images_unchanged(plan, shipped_weights, cupy):
    chosen = plan_here(plan)
    images = cupy.asarray(load_dataset(assets.default_digits()).images[:400])
    pipeline = Pipeline(chosen, shipped_weights, 400)
    for n in (1, 7, 79, 80, 81, 133, 399):
        pipeline.poison()
        pipeline.run(images[:n])
        assert (pipeline.labels[:n].get() >= 0).all(), n
        assert (pipeline.labels[n:].get() == -1).all(), n
        scores = pipeline.scores(400)
        assert np.isfinite(scores[:n]).all(), n
        assert np.isnan(scores[n:]).all(), n


@pytest.mark.alone
def test_measured_peaks_agree_with_the_data_sheet(cupy):
    """Peaks are below the data sheet's and above half of it; tensor cores well above the rest."""
    from lenetgpu.gpu.machines import current
    from lenetgpu.measure import roofline

    cupy.zeros(1)
    machine, found = current(), roofline._measure_gpu("x")
    peak = 2 * machine.multiprocessors * machine.cores * machine.clock_mhz / 1e6
    assert 0.5 * peak < found.fma_tflops < 1.02 * peak
    assert 0.5 * machine.bandwidth_gbs < found.copy_gbs < 1.02 * machine.bandwidth_gbs
    assert 2 * found.fma_tflops < found.tensor_tflops < 40 * found.fma_tflops


@pytest.mark.parametrize("calls", [1, 3, 10])
def test_graph_repeats_the_call_as_often_as_requested(calls, cupy):
    from lenetgpu.gpu.graph import Graph

    count = cupy.zeros(5, cupy.int32)
    cupy.add(count, 1, out=count)
    count.fill(0)
    cupy.cuda.get_current_stream().synchronize()
    graph = Graph(lambda: cupy.add(count, 1, out=count), calls)
    for launched in (1, 2):
        with graph.stream:
            graph.launch()
        graph.stream.synchronize()
        assert count.get().tolist() == [launched * calls] * 5
