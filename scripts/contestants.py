"""Who is measured on a GPU: lenetgpu's plans, PyTorch in every mode, JAX, ONNX Runtime."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
import torch
from beside import OURS, PLANS, Contestant, onnx_model, without
from torch_net import Net, own_code

from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.graph import Graph, TorchGraph
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import NAMED, resolve

TORCH_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16}
AUTOTUNED = "max-autotune-no-cudagraphs"
# how a pass is launched: (mode of torch.compile or None, whether it is replayed from a CUDA graph)
MODES: dict[str, tuple[str | None, bool]] = {
    "eager": (None, False),
    "graph": (None, True),
    "compile": ("default", False),
    "compile graph": ("default", True),
    "max-autotune": ("max-autotune", False),
    "max-autotune graph": (AUTOTUNED, True),
}


def allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def _torch_graph(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], Any], torch.Tensor]:
    held: list[torch.Tensor] = []

    def keep() -> None:
        held[:] = [run()]

    return TorchGraph(keep, 1).launch, held[0]


def _torch_one(weights: Weights, images: Any, precision: str, last: bool, mode: str) -> Contestant:
    dtype = TORCH_TYPES[precision]
    allow_tf32(precision == "tf32")
    x = (torch.tensor(images).cuda().permute(0, 3, 1, 2).float() / 255).to(dtype).contiguous()
    net = Net(weights).cuda().to(dtype).eval()
    if last:
        x = x.to(memory_format=torch.channels_last)
        net.channels_last()
    compiled, graphed = MODES[mode]
    forward = net.forward if compiled is None else torch.compile(own_code(net), mode=compiled)
    run: Callable[[], Any] = lambda: forward(x)  # noqa: E731
    run()
    out = None
    if graphed:
        run, out = _torch_graph(run)

    def labels() -> Any:
        if out is None:
            return run().cpu().numpy()
        out.fill_(-1)
        run()
        return out.cpu().numpy()

    order = "channels_last" if last else "contiguous"
    return Contestant(
        f"torch {mode} {precision} {order}", "torch", precision, run, labels,
        (lambda: net.scores(x).float().cpu().numpy()) if mode == "eager" else None,
        keep=(net, x),
    )  # fmt: skip


def torch_contestants(
    weights: Weights, images: Any, say: Callable[[str], None], deep: bool
) -> list[Contestant]:
    """Every mode at each precision and memory format; without `deep`, those that compile not."""
    torch.backends.cudnn.benchmark = True
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    found = []
    modes = [mode for mode, (compiled, _) in MODES.items() if deep or compiled is None]
    for precision in TORCH_TYPES:
        for mode in modes:
            for last in (False, True):
                start = time.time()
                try:
                    made = _torch_one(weights, images, precision, last, mode)
                    for _ in range(3):
                        made.run()
                    torch.cuda.synchronize()
                except Exception as error:  # a peer that cannot run is named, not hidden
                    say(f"torch {mode} {precision}: cannot run: {str(error)[:120]}")
                    continue
                found.append(made)
                say(f"{made.name}: ready in {time.time() - start:.0f} s")
    return found


def jax_contestants(weights: Weights, images: Any, say: Callable[[str], None]) -> list[Contestant]:
    """jit at fp32 and fp16 where JAX sees the GPU."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
        import jax.numpy as jnp

        if jax.devices()[0].platform != "gpu":
            return []
    except (ImportError, RuntimeError) as error:
        say(f"jax: {error}")
        return []
    found = []
    tensors = {k: jnp.asarray(v) for k, v in weights.tensors.items()}

    def net(x: Any, w: Any) -> Any:
        for name in ("conv1", "conv2"):
            x = jax.lax.conv_general_dilated(
                x, w[name], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            n, h, wide, c = x.shape
            x = jax.nn.relu(x).reshape(n, h // 2, 2, wide // 2, 2, c).mean((2, 4))
        return (jax.nn.relu(x.reshape(len(x), -1) @ w["fc1"]) @ w["fc2"]).argmax(1)

    for precision, dtype, exact in (("fp32", "float32", "highest"), ("fp16", "float16", "default")):
        with jax.default_matmul_precision(exact):
            x = (jnp.asarray(images, "float32") / 255).astype(dtype)
            w = {k: v.astype(dtype) for k, v in tensors.items()}
            compiled = jax.jit(net).lower(x, w).compile()
        run = lambda c=compiled, a=x, b=w: c(a, b)  # noqa: E731
        labels = lambda r=run: np.asarray(r())  # noqa: E731
        found.append(Contestant(f"jax jit {precision}", "jax", precision, run, labels))
    return found


ONNX_ON_GPU = "ONNX Runtime on the GPU"


def onnx_contestants(weights: Weights, images: Any) -> tuple[list[Contestant], str | None]:
    """ONNX Runtime's CUDA provider on tensors that lie on the GPU, plain and replayed; or why not.

    A pass ends when it is done, on a stream of ONNX Runtime's own: it is timed by the host's clock.
    """
    if lacking := without("onnx", "onnxruntime"):
        return [], lacking
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return [], f"onnxruntime {onnxruntime.__version__} there has no CUDAExecutionProvider"
    found = []
    for precision, dtype in (("fp32", "float32"), ("fp16", "float16")):
        for graphed in (False, True):
            found.append(_onnx_one(weights, images, precision, dtype, graphed))
    return found, None


def _onnx_one(
    weights: Weights, images: Any, precision: str, dtype: str, graphed: bool
) -> Contestant:
    import onnxruntime

    options = {
        "use_tf32": "0",
        "cudnn_conv_algo_search": "EXHAUSTIVE",
        "enable_cuda_graph": "1" if graphed else "0",
    }
    session = onnxruntime.InferenceSession(
        onnx_model(weights, dtype), providers=[("CUDAExecutionProvider", options)]
    )
    if session.get_providers()[0] != "CUDAExecutionProvider":
        raise RuntimeError("expected ONNX Runtime on the GPU, found it fell back to the CPU")
    x = (torch.tensor(images).cuda().permute(0, 3, 1, 2).float() / 255).to(TORCH_TYPES[precision])
    x = x.contiguous()
    out = torch.empty(len(images), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, np.dtype(dtype), tuple(x.shape), x.data_ptr())
    binding.bind_output("labels", "cuda", 0, np.int64, tuple(out.shape), out.data_ptr())

    def run() -> None:
        session.run_with_iobinding(binding)

    def labels() -> Any:
        out.fill_(-1)
        torch.cuda.synchronize()
        run()
        binding.synchronize_outputs()
        return out.cpu().numpy()

    name = f"onnxruntime {'graph ' if graphed else ''}{precision}"
    return Contestant(name, "onnxruntime", precision, run, labels, keep=(x, session, binding))


def our_graph(pipeline: Pipeline, x: Any) -> Graph:
    pipeline.run(x)
    return Graph(lambda: pipeline.run(x), 1)


def our_contestants(weights: Weights, images: Any, gpu: Gpu) -> list[Contestant]:
    """The fused plans, launched as they are and replayed from a CUDA graph."""
    found = []
    x = cupy.asarray(images)
    for name in PLANS:
        if "cuda" not in NAMED[name]:
            continue
        plan = resolve(name, "cuda", gpu=gpu)
        pipeline = Pipeline(plan, weights, len(images))
        pipeline.run(x)
        pipeline.with_scores = False
        graph = our_graph(pipeline, x)

        def plain(p: Pipeline = pipeline) -> None:
            p.run(x)

        def replay(g: Graph = graph) -> None:
            g.launch()

        def labels(run: Callable[[], None], p: Pipeline = pipeline) -> Any:
            p.poison()
            run()
            return p.labels.get()

        def scores(p: Pipeline = pipeline) -> Any:
            p.poison()
            p.with_scores = True
            p.run(x)
            p.with_scores = False
            return p.scores(len(x))

        for mode, run in (("", plain), (" graph", replay)):
            found.append(
                Contestant(f"lenetgpu {name}{mode}", OURS, name, run,
                           lambda r=run, check=labels: check(r), scores)
            )  # fmt: skip
    return found
