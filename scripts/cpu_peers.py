"""lenetgpu beside ONNX Runtime and PyTorch on one CPU: same images, weights, cores, run.

Ours take uint8 pixels, as `infer` does; the peers get their floats ready-made. All are checked
against float64, then timed in interleaved rounds, a pass a sample.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
from beside import (
    DATA,
    LEAST_SAMPLES,
    OURS,
    WEIGHTS,
    Contestant,
    missing,
    onnx_model,
    options,
    summary,
    without,
    write,
)

from lenetgpu.check.truth import reference_scores
from lenetgpu.cpu.threads import core_count
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.measure.document import plan_json
from lenetgpu.measure.rounds import interleave
from lenetgpu.measure.timing import cpu_ms
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import NAMED, resolve

SERIAL, FEW = "serial", 100
IN_PARTS = 100
QUIET_S = 0.02
MODES = {"eager": None, "compile": "default", "max-autotune": "max-autotune"}
CUT = ("eager", "compile")
"""Modes that are tried in batches that a cache holds too."""
Say = Callable[[str], None]


def ours(weights: Weights, images: Any) -> list[Contestant]:
    """Every plan of a CPU once; those that run the same variants share a row."""
    same: dict[str, list[str]] = {}
    for name, devices in NAMED.items():
        if "cpu" in devices:
            same.setdefault(json.dumps(plan_json(resolve(name, "cpu"))), []).append(name)
    found = []
    for names in same.values():
        name = max(names, key=lambda name: name == "fp32")
        part = images[:FEW] if name == SERIAL else images
        pipeline = Pipeline(resolve(name, "cpu"), weights, len(part), str(images.dtype))

        def labels(p: Pipeline = pipeline, x: Any = part) -> Any:
            p.poison()
            return p.run(x).copy()

        def scores(p: Pipeline = pipeline, x: Any = part) -> Any:
            p.run(x)
            return p.scores(len(x))

        def run(p: Pipeline = pipeline, x: Any = part) -> Any:
            return p.run(x)

        one = Contestant(f"{OURS} {name}", OURS, "fp32", run, labels, scores)
        one.facts |= {"images": len(part), "plans": names}
        found.append(one)
    return found


def _parts(n: int, each: int) -> list[slice]:
    return [slice(lo, lo + each) for lo in range(0, n, each)]


def _batches(n: int) -> dict[str, list[slice]]:
    """How a peer may cut the images: all at once, or in batches that a cache holds."""
    return {"": _parts(n, n), f" in batches of {IN_PARTS}": _parts(n, IN_PARTS)}


def onnx_contestants(weights: Weights, images: Any, say: Say) -> tuple[list[Contestant], str]:
    """ONNX Runtime on as many threads as we take; or why not."""
    if lacking := without("onnx", "onnxruntime"):
        return [], lacking
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = core_count()
    options.inter_op_num_threads = 1
    # its threads must not spin into the next contestant's sample
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(
        onnx_model(weights), options, providers=["CPUExecutionProvider"]
    )
    x = (images.transpose(0, 3, 1, 2) / np.float32(255)).astype(np.float32)
    x = np.ascontiguousarray(x)
    found = []
    for words, parts in _batches(len(x)).items():

        def run(parts: list[slice] = parts) -> Any:
            return np.concatenate([session.run(None, {"x": x[part]})[0] for part in parts])

        found.append(Contestant(f"onnxruntime{words}", "onnxruntime", "fp32", run, run))
    say(f"onnxruntime {onnxruntime.__version__}: ready")
    return found, ""


def torch_contestants(
    weights: Weights, images: Any, deep: bool, say: Say
) -> tuple[list[Contestant], str]:
    """PyTorch, eager and compiled, in both memory formats; or why not."""
    if lacking := without("torch"):
        return [], lacking
    try:
        import torch
    except (ImportError, OSError) as error:
        return [], f"its import fails: {str(error).partition(chr(10))[0]}"
    from torch_net import Net, own_code

    torch.set_num_threads(core_count())
    x = torch.tensor(images).permute(0, 3, 1, 2).float() / 255
    found = []
    for mode, compiled in MODES.items():
        for last in (False, True):
            if compiled is not None and not deep:
                continue
            net = Net(weights).eval()
            order = torch.channels_last if last else torch.contiguous_format
            net = net.channels_last() if last else net
            ready = x.to(memory_format=order) if last else x.contiguous()
            batches = _batches(len(x)) if mode in CUT else {"": _parts(len(x), len(x))}
            for words, parts in batches.items():
                forward = net.forward
                if compiled is not None:
                    forward = torch.compile(own_code(net), mode=compiled)

                def run(f: Any = forward, x: Any = ready, parts: list[slice] = parts) -> Any:
                    with torch.inference_mode():
                        return torch.cat([f(x[part]) for part in parts]).numpy()

                name = f"torch {mode} {'channels_last' if last else 'contiguous'}{words}"
                try:
                    run()
                except Exception as error:  # a peer that cannot run is named, not hidden
                    say(f"{name}: cannot run: {str(error)[:120]}")
                    continue
                found.append(Contestant(name, "torch", "fp32", run, run))
                say(f"{name}: ready")
    return found, "" if found else "none of its modes ran"


def check(contestants: list[Contestant], weights: Weights, images: Any, labels: Any) -> None:
    """Fill each contestant's facts: right labels, flips and logit error against float64."""
    truth, expected = reference_scores(images, weights)
    for one in contestants:
        found = one.labels()
        n = len(found)
        one.facts["flips"] = int((found != expected[:n]).sum())
        one.facts["judged"] = len(found)
        one.facts["correct"] = None if labels is None else int((found == labels[:n]).sum())
        if one.scores is not None:
            error = float(np.abs(one.scores().astype(np.float64) - truth[:n]).max())
            one.facts["max_logit_error"] = error
            one.facts["relative_error"] = error / float(np.abs(truth[:n]).max())


def _sample(one: Contestant, n: int) -> float:
    """Milliseconds of a pass, scaled to `n` images, once other libraries' threads are at rest."""
    time.sleep(QUIET_S)
    return cpu_ms(one.run) * n / one.facts.get("images", n)


def measure(contestants: list[Contestant], n: int, rounds: int, say: Say) -> None:
    """A warm-up of each, the time that it lets expect, then interleaved rounds."""
    each = sum(_sample(one, one.facts.get("images", n)) for one in contestants) / 1e3
    say(f"{rounds} rounds of about {each:.0f} s: {rounds * each:.0f} s")
    entries = [(partial(_sample, one, n), one.samples) for one in contestants]

    def stop(done: int) -> bool:
        say(f"round {done} of {rounds}")
        return done >= rounds

    interleave(entries, rounds, stop)


def versions() -> dict[str, str]:
    """The peers' versions, of those installed."""
    return {name: version(name) for name in ("onnxruntime", "torch") if without(name) is None}


@click.command()
@DATA
@WEIGHTS
@options(
    15,
    "no torch.compile, and as few rounds as are asked for",
    click.option("--images", "most", type=int, help="the first so many; default: all"),
)
def main(
    data: Path | None,
    weight_file: Path | None,
    rounds: int,
    most: int | None,
    quick: bool,
    target: Path | None,
) -> None:
    """Time lenetgpu beside ONNX Runtime and PyTorch on this CPU."""
    if rounds < LEAST_SAMPLES and not quick:
        click.echo(f"--rounds: expected at least {LEAST_SAMPLES}, found {rounds}", err=True)
        sys.exit(2)
    weights = load_weights(weight_file or assets.default_weights())
    dataset = load_dataset(data or assets.default_digits())
    images = np.ascontiguousarray(dataset.images[:most])
    labels = None if dataset.labels is None else dataset.labels[:most]
    contestants = ours(weights, images)
    onnx, no_onnx = onnx_contestants(weights, images, click.echo)
    torches, no_torch = torch_contestants(weights, images, not quick, click.echo)
    contestants += onnx + torches
    check(contestants, weights, images, labels)
    for one in contestants:
        if not one.right:
            click.echo(f"{one.name}: WRONG, {one.facts['flips']} labels differ; not timed")
    contestants = [one for one in contestants if one.right]
    measure(contestants, len(images), rounds, click.echo)
    rows = summary(contestants)
    for row in rows:
        ratio = f"{row['times_faster']:.2f}x {row['peer']}" if "times_faster" in row else ""
        click.echo(f"{row['name']:50} {row['median_ms']:9.1f} ms  flips {row['flips']}  {ratio}")
    why = {"ONNX Runtime": no_onnx, "PyTorch": no_torch}
    absent = missing("cpu", [], {name: reason for name, reason in why.items() if reason})
    for entry in absent:
        click.echo(f"not measured: {entry['name']}, {entry['why']}")
    facts = {
        "peers": versions(),
        "images": len(images),
        "data": Path(dataset.source).name,
        "weights": Path(weights.source).name,
        "quick": quick,
        "rows": rows,
        "not_measured": absent,
    }
    write(target, "peers", None, facts)


if __name__ == "__main__":
    main()
