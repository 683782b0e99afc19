"""What the peers' scripts share: options, a contestant and its row, ONNX, who is left out."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np

from lenetgpu.files.models.layouts import rows_by_channel
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.document import head
from lenetgpu.store import write_atomically

MOST_FLIPS = 20
"""Of 10,000 labels; of fewer, as large a share."""
LEAST_SAMPLES = 7
PEER_OF = {"fp32": "fp32", "fp16x3": "fp32", "fp16": "fp16", "int8": "fp16"}
OURS = "lenetgpu"
PLANS = ("fp32", "fp16x3", "fp16", "int8")
"""Plans of the precision that they are named after."""
INTERLEAVED = "interleaved"
"""What `scaling_is` says of a scaling table whose samples stand in the headlines' rounds."""
NOBODY_RAN = "nobody ran it here"
USUAL = {
    "cuda": ("TensorRT", "ONNX Runtime on the GPU", "cuDNN called by hand", "tinygrad"),
    "cpu": ("OpenVINO", "TensorFlow Lite", "JAX", "tinygrad"),
}
"""Peers that a user would think of, by kind of device; those a run had are not among the missing"""
Option = Callable[[Callable[..., Any]], Callable[..., Any]]
_FILE = click.Path(path_type=Path)
DATA = click.option("--data", type=_FILE, help="images; default: the shipped digits")
WEIGHTS = click.option("--weights", "weight_file", type=_FILE)


def options(rounds: int, quick: str, *own: Option) -> Option:
    """--rounds and its default, the script's `own`, --quick and what that spares, --json."""
    asked = [
        click.option("--rounds", default=rounds, show_default=True),
        *own,
        click.option("--quick", is_flag=True, help=quick),
        click.option("--json", "target", type=_FILE),
    ]

    def decorate(main: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(asked):
            main = option(main)
        return main

    return decorate


def write(target: Path | None, kind: str, gpu: Gpu | None, facts: dict[str, Any]) -> None:
    """A document of this kind to `target`, where there is one."""
    if target is not None:
        document = head(kind, gpu) | facts
        write_atomically(target, (json.dumps(document, indent=1) + "\n").encode())


@dataclass
class Contestant:
    """One way to label the images: `run` does a pass, on a GPU queued on the current stream."""

    name: str
    maker: str
    precision: str
    run: Callable[[], Any]
    labels: Callable[[], Any]
    scores: Callable[[], Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    passes: int = 1
    keep: tuple[Any, ...] = ()

    @property
    def right(self) -> bool:
        """Whether its labels are the reference's but for a few that lie near."""
        judged = self.facts.get("judged", 10_000)
        return bool(10_000 * self.facts["flips"] <= MOST_FLIPS * judged)


def summary(contestants: list[Contestant]) -> list[dict[str, Any]]:
    """A row per contestant with its median, spread and the ratio to the peer's best."""
    rows = []
    medians = {one.name: float(np.median(one.samples)) for one in contestants}
    best: dict[str, tuple[float, str]] = {}
    for one in contestants:
        if one.maker != OURS and one.right:
            now = (medians[one.name], one.name)
            best[one.precision] = min(best.get(one.precision, now), now)
    for one in contestants:
        p05, p95 = np.percentile(one.samples, [5, 95])
        row = {
            "name": one.name, "maker": one.maker, "precision": one.precision,
            "median_ms": medians[one.name], "p05_ms": float(p05), "p95_ms": float(p95),
            "samples_ms": one.samples, **one.facts,
        }  # fmt: skip
        peer = best.get(PEER_OF.get(one.precision, ""))
        if one.maker == OURS and peer is not None:
            row |= {"peer": peer[1], "peer_ms": peer[0], "times_faster": peer[0] / row["median_ms"]}
        rows.append(row)
    return sorted(rows, key=lambda row: row["median_ms"])


def scaling(rows: list[dict[str, Any]], larger: list[Contestant], n: int) -> list[dict[str, Any]]:
    """Time per image by plan and batch: of `n` images the headline's own median."""
    headlines = {row["name"]: row["median_ms"] for row in rows}
    medians = {
        (plan, n): headlines[f"{OURS} {plan} graph"]
        for plan in PLANS
        if f"{OURS} {plan} graph" in headlines
    }
    medians |= {(one.name, one.facts["images"]): float(np.median(one.samples)) for one in larger}
    return [
        {"plan": plan, "images": images, "median_ms": ms, "ns_per_image": 1e6 * ms / images}
        for (plan, images), ms in sorted(medians.items(), key=lambda item: PLANS.index(item[0][0]))
    ]


def missing(kind: str, found: Iterable[str] = (), why: dict[str, str] | None = None) -> list[Any]:
    """The peers not measured, each with why: those of USUAL not `found`, then those of `why`."""
    why = why or {}
    names = [name for name in USUAL[kind] if name not in {*found, *why}]
    return [{"name": name, "why": why.get(name, NOBODY_RAN)} for name in [*names, *why]]


def without(*modules: str) -> str | None:
    """A sentence naming those of `modules` that are not installed, None where all are."""
    lacking = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"{' and '.join(lacking)} not installed" if lacking else None


def torch_version() -> str | None:
    """PyTorch's version where it is installed, without importing it."""
    return None if without("torch") else version("torch")


def planar(weights: Weights) -> dict[str, Any]:
    """The weights for NCHW: filters (M, C, R, S), fc1's rows in C, H, W order."""
    found = {name: weights[name].transpose(3, 2, 0, 1) for name in ("conv1", "conv2")}
    found["fc1"] = rows_by_channel(weights["fc1"])
    return {k: np.ascontiguousarray(v) for k, v in (found | {"fc2": weights["fc2"]}).items()}


def onnx_model(weights: Weights, dtype: str = "float32") -> bytes:
    """The network as an ONNX model: `x` (n, 1, 28, 28) of `dtype` to `labels` (n,) int64."""
    from onnx import TensorProto, helper, numpy_helper

    kind = TensorProto.FLOAT16 if dtype == "float16" else TensorProto.FLOAT
    tensors = [numpy_helper.from_array(v.astype(dtype), k) for k, v in planar(weights).items()]
    halves = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = []
    at = "x"
    for layer in ("1", "2"):
        names = [f"{what}{layer}" for what in ("maps", "positive", "pooled")]
        nodes += [
            helper.make_node("Conv", [at, f"conv{layer}"], [names[0]]),
            helper.make_node("Relu", [names[0]], [names[1]]),
            helper.make_node("AveragePool", [names[1]], [names[2]], **halves),
        ]
        at = names[2]
    nodes += [
        helper.make_node("Flatten", [at], ["features"]),
        helper.make_node("MatMul", ["features", "fc1"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["kept"]),
        helper.make_node("MatMul", ["kept", "fc2"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["labels"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "lenet",
        [helper.make_tensor_value_info("x", kind, ["n", 1, 28, 28])],
        [helper.make_tensor_value_info("labels", TensorProto.INT64, ["n"])],
        tensors,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
