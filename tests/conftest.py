"""Fixtures, outside data, and the receipt that a GPU run leaves behind."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from lenetgpu.commands import infer
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu.device import cupy_installed, driver_gpus
from lenetgpu.gpu.nvrtc import source_hash
from lenetgpu.network import weight_shapes

ROOT = Path(__file__).resolve().parent.parent
RECEIPT = ROOT / "tests" / "gpu-receipt.json"


def kernel_hashes() -> dict[str, str]:
    """Every kernel source of the package to the hash of it and its headers."""
    sources = sorted((ROOT / "lenetgpu").rglob("*.cu"))
    return {str(path.relative_to(ROOT)): source_hash(path) for path in sources}


def outside(variable: str, what: str) -> Path:
    """The folder an environment variable names, or skip saying how to set it."""
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"set {variable} to the folder that holds {what}")
    folder = Path(value)
    if not folder.is_dir():
        pytest.fail(f"{variable}: expected a folder, found {folder}")
    return folder


def pytest_configure(config: pytest.Config) -> None:
    """One new cache folder for the session: each kernel is compiled once, and none is stale."""
    if hasattr(config, "workerinput"):
        return  # a worker of pytest-xdist inherits both variables
    folder = tempfile.mkdtemp(prefix="lenetgpu-tests-")
    os.environ["LENETGPU_CACHE"] = folder
    config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
    if config.getoption("numprocesses", None):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the workers fill the cores


@pytest.fixture(autouse=True)
def soon_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """`infer` on a CPU repeats its passes for 0.1 s, not for two."""
    monkeypatch.setattr(infer, "_CPU_BUDGET_S", 0.1)


@pytest.fixture(scope="session")
def mnist() -> Path:
    return outside("LENETGPU_MNIST", "MNIST's four IDX files")


@pytest.fixture(scope="session")
def course() -> Path:
    return outside("LENETGPU_COURSE", "the course's model.hdf5 and test10.hdf5")


@pytest.fixture(scope="session")
def shipped_weights() -> Weights:
    return load_weights(ROOT / "weights" / "lenet-mnist.h5")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Fresh numbers in every run; the seed is in the failure report."""
    seed = int.from_bytes(os.urandom(4), "little")
    request.node.user_properties.append(("seed", seed))
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def weight_file(tmp_path: Path, rng: np.random.Generator) -> Path:
    path = tmp_path / "weights.h5"
    with h5py.File(path, "w") as file:
        for name, shape in weight_shapes().items():
            file[name] = (0.1 * rng.standard_normal(shape)).astype(np.float32)
    return path


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """GPU tests are skipped without a GPU, and where several processes would share it."""
    why = "no NVIDIA GPU with CuPy: run `make test-gpu` on one"
    if driver_gpus() and cupy_installed():
        if not hasattr(config, "workerinput"):
            return
        why = "one GPU, one process: run `make test-gpu`"
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput") or session.config.getoption("numprocesses", None):
        return
    chosen = session.config.option.markexpr
    if chosen != "gpu" or exitstatus != 0 or session.config.option.keyword:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    passed = len(reporter.stats.get("passed", []))
    if not passed or not driver_gpus() or len(session.config.args) > 1:
        return
    import cupy

    version = cupy.cuda.runtime.driverGetVersion()
    receipt = {
        "device": driver_gpus()[0].name,
        "driver": _driver_name(),
        "cuda_driver": f"{version // 1000}.{version % 1000 // 10}",
        "date": datetime.date.today().isoformat(),
        "tests_passed": passed,
        "kernels": kernel_hashes(),
    }
    RECEIPT.write_text(json.dumps(receipt, indent=1) + "\n")


def _driver_name() -> str:
    path = Path("/proc/driver/nvidia/version")
    if not path.is_file():
        return "unknown"
    words = path.read_text().splitlines()[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def pytest_terminal_summary(terminalreporter) -> None:  # type: ignore[no-untyped-def]
    if not RECEIPT.is_file():
        terminalreporter.section("GPU RECEIPT MISSING", sep="!", red=True)
        terminalreporter.line("No GPU has run these kernels: run `make test-gpu` on one.")
        return
    receipt = json.loads(RECEIPT.read_text())
    now = kernel_hashes()
    changed = sorted(set(now.items()) ^ set(receipt["kernels"].items()))
    where = f"{receipt['device']}, driver {receipt['driver']}, {receipt['date']}"
    if changed:
        terminalreporter.section("GPU RECEIPT IS STALE", sep="!", red=True)
        names = ", ".join(sorted({name for name, _ in changed}))
        terminalreporter.line(f"Changed since the run on {where}: {names}")
        terminalreporter.line("Run `make test-gpu` on a GPU and commit tests/gpu-receipt.json.")
    else:
        terminalreporter.line(f"GPU receipt holds: {receipt['tests_passed']} tests on {where}")
