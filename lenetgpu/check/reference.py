"""Float64 reference output of every stage and of the whole network."""

from dataclasses import dataclass
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.files.weights import Weights
from lenetgpu.layouts import narrowed
from lenetgpu.network import FEATURE_STAGES, FEATURES, STAGES, weight_shapes
from lenetgpu.stages import reference as stage_outputs
from lenetgpu.stages.registry import WEIGHTED

_CHUNK = CHECK_IMAGES = 500  # images


def reference(kind: str, x: Any, w: Any, problem: Any) -> Any:
    """Return the float64 output for x in NHWC, (N, K) or (N,); `w` of a span is a tuple."""
    if kind == FEATURES:
        filters = iter(w)
        for stage in STAGES:
            if stage.name in FEATURE_STAGES:
                stage_w = next(filters) if stage.weight else None
                x = reference(stage.kind, x, stage_w, stage.problem)
        return x.reshape(len(x), -1)
    compute = getattr(stage_outputs, f"{kind}_reference")
    return compute(x, w, problem) if kind in WEIGHTED else compute(x, problem)


def tensors(w: Any) -> tuple[Any, ...]:
    """Return the argument `w` of `reference` as a tuple of zero or more arrays."""
    if w is None:
        return ()
    return w if isinstance(w, tuple) else (w,)


def random_input(kind: str, problem: Any, n: int, rng: Any) -> tuple[Any, Any]:
    """Return fresh input, in NHWC or (N, K), and weights as `reference` accepts them."""
    shape = (n, *problem.in_shape)
    if kind == "scale":
        return rng.integers(0, 256, shape, dtype=np.uint8), None
    if kind == FEATURES:
        drawn = [rng.standard_normal(size).astype(np.float32) for size in weight_shapes().values()]
        return rng.random(shape).astype(np.float32), tuple(drawn)
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "argmax":
        x = np.round(x, 1)
    if not hasattr(problem, "weight_shape"):
        return x, None
    w = rng.standard_normal(problem.weight_shape).astype(np.float32)
    if kind != "conv":
        return x, w
    x, w = narrowed(x, problem.dtype), narrowed(w, problem.dtype)
    if not problem.bias:
        return x, w
    # as large as the sums that it is added to
    bias = (rng.standard_normal(problem.M) * problem.gemm_k**0.5).astype(np.float32)
    return x, (w, narrowed(bias, problem.dtype))


def reference_stages(images: Any, weights: Weights) -> dict[str, Any]:
    """Return the float64 output of every stage, by name, for `images` (N, 28, 28, 1)."""
    x = np.asarray(images, np.float64) / (255.0 if images.dtype == np.uint8 else 1.0)
    outputs = {}
    for stage in STAGES:
        w = None if stage.weight is None else weights[stage.weight]
        x = x.reshape(len(x), *stage.problem.in_shape)
        x = reference(stage.kind, x, w, stage.problem)
        outputs[stage.name] = x
    return outputs


def reference_scores(images: Any, weights: Weights) -> tuple[Any, Any]:
    """Return the network's float64 scores (N, 10) and labels (N,), computed in chunks."""
    chunks = (images[lo : lo + _CHUNK] for lo in range(0, len(images), _CHUNK))
    parts = [reference_stages(chunk, weights) for chunk in chunks]
    scores, labels = (np.concatenate([part[name] for part in parts]) for name in ("fc2", "argmax"))
    return scores, labels


@dataclass(frozen=True)
class Reference:
    """Real digits with the float64 output of every stage, shared by all candidates."""

    images: Any
    weights: Weights
    stages: dict[str, Any]

    @property
    def labels(self) -> Any:
        """Labels of the float64 reference."""
        return self.stages["argmax"]


def network_reference(images: Any, weights: Weights) -> Reference:
    """Return the float64 reference for the first CHECK_IMAGES of `images`."""
    few = images[:CHECK_IMAGES]
    return Reference(few, weights, reference_stages(few, weights))
