"""Fixtures, external data, and the receipt that a GPU run writes."""

import datetime
import fcntl
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import parts
import pytest
import receipt
from failing import FAILING
from stored import hdf5

from lenetgpu.errors import LenetError
from lenetgpu.files.assets import default_digits
from lenetgpu.files.reading import Dataset
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import faults
from lenetgpu.gpu.device import cupy_installed, driver_gpus
from lenetgpu.gpu.software import software
from lenetgpu.lab import infer
from lenetgpu.network import weight_shapes
from lenetgpu.plan import Plan, resolve
from lenetgpu.stages.registry import import_offered

ROOT = Path(__file__).resolve().parent.parent
import_offered()


def outside(variable: str, what: str) -> Path:
    """Return the folder named by an environment variable; skip with instructions if it is unset."""
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"set {variable} to the folder that holds {what}")
    folder = Path(value)
    if not folder.is_dir():
        pytest.fail(f"{variable}: expected a folder, found {folder}")
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rest",
        action="store_true",
        help="of GPU tests (-m gpu) those that have not passed on these sources and this GPU yet",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set a new cache folder for the session: kernels are compiled once, and none is stale."""
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist inherits the variables
        if names := os.environ.get("LENETGPU_TEST_GPUS"):
            gpus = names.split(",")
            worker = int(config.workerinput["workerid"][2:])
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus[worker % len(gpus)]
        return
    folder = tempfile.mkdtemp(prefix="lenetgpu-tests-")
    os.environ["LENETGPU_CACHE"] = folder
    config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
    processes = config.getoption("numprocesses", None)
    if processes:  # the workers share the cores
        each = max(1, (os.cpu_count() or 1) // int(processes))
        os.environ.setdefault("OPENBLAS_NUM_THREADS", str(each))
    if config.option.markexpr == "gpu" and driver_gpus() and cupy_installed():
        every = ",".join(map(str, range(len(driver_gpus()))))
        os.environ["LENETGPU_TEST_GPUS"] = os.environ.get("CUDA_VISIBLE_DEVICES") or every
        key = parts.key(_used())
        before = parts.kept(key) if config.option.rest else {}
        parts.tell(before)
        run = datetime.datetime.now(datetime.timezone.utc).isoformat()
        config.pluginmanager.register(parts.Keeper(key, before, run), "gpu-parts")


@pytest.fixture(autouse=True)
def found_again() -> Iterator[None]:
    """Forget a lost GPU, real or simulated, after each test."""
    yield
    faults._lost_message.clear()


@pytest.fixture(autouse=True)
def soon_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the repeated passes of `infer` on a CPU to 0.1 s instead of 2 s."""
    monkeypatch.setattr(infer, "_CPU_BUDGET_S", 0.1)


@pytest.fixture(scope="session")
def mnist() -> Path:
    return outside("LENETGPU_MNIST", "MNIST's four IDX files")


@pytest.fixture(scope="session")
def course() -> Path:
    return outside("LENETGPU_COURSE", "the course's model.hdf5 and test10.hdf5")


@pytest.fixture(scope="session")
def cupy() -> Any:
    """Return CuPy, which only tests on a GPU import."""
    return importlib.import_module("cupy")


@pytest.fixture(scope="session")
def torch() -> Any:
    """Return PyTorch, which only tests marked `peers` import."""
    return importlib.import_module("torch")


@pytest.fixture(scope="session")
def shipped_weights() -> Weights:
    return load_weights(ROOT / "weights" / "lenet-mnist.h5")


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """Return the 10,000 digits that ship, with their labels."""
    return load_dataset(default_digits())


def plan_here(name: str) -> Plan:
    """Return a plan on this machine's GPU; skip the test if the GPU cannot run it."""
    try:
        return resolve(name, "cuda", gpu=driver_gpus()[0])
    except LenetError as error:
        pytest.skip(str(error))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `tmp_path` the cache folder of this test."""
    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def tensors(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random weights, by name in our layouts."""
    return {n: rng.standard_normal(s, np.float32) for n, s in weight_shapes().items()}


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return a generator with a new seed per run; failure reports include the seed."""
    seed = int.from_bytes(os.urandom(4), "little")
    request.node.user_properties.append(("seed", seed))
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def weight_file(tmp_path: Path, rng: np.random.Generator) -> Path:
    shapes = weight_shapes().items()
    drawn = {name: (0.1 * rng.standard_normal(shape)).astype("f4") for name, shape in shapes}
    return hdf5(tmp_path / "weights.h5", **drawn)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip GPU tests if there is no GPU, or if several processes would share it.

    Tests against PyTorch are skipped without PyTorch, because the package index has it only
    with the CUDA libraries.
    """
    for item in items:
        if item.nodeid in FAILING:
            item.add_marker(pytest.mark.xfail(reason=FAILING[item.nodeid], strict=True))
    if config.option.markexpr == "gpu":
        before = parts.reported()
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in before])
        items[:] = in_turns([item for item in items if item.nodeid not in before])
    if importlib.util.find_spec("torch") is None:
        for item in items:
            if "peers" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no PyTorch: run `make test-peers`"))
    why = "no NVIDIA GPU with CuPy: run `make test-gpu` on one"
    if driver_gpus() and cupy_installed():
        if not hasattr(config, "workerinput") or config.option.markexpr == "gpu":
            return
        why = "one GPU, many processes: run `make test-gpu`"
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason=why))


def in_turns(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return GPU tests in the order that suits several processes taking one at a time.

    Long tests come first, each followed by another, since a process starts with two. Tests that
    need the GPU to themselves come last: a process that waits for the GPU is idle.
    """
    kinds = ("long", "alone")
    long, alone = ([item for item in items if kind in item.keywords] for kind in kinds)
    others = iter([item for item in items if not {*kinds} & {*item.keywords}])
    pairs = [one for item in long for one in (item, next(others, None)) if one is not None]
    return [*pairs, *others, *alone]


@pytest.fixture(autouse=True)
def gpu_turn(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Lock the GPU when several processes share it: exclusively for tests marked `alone`."""
    if "gpu" not in request.keywords or not hasattr(request.config, "workerinput"):
        yield None
        return
    kind = fcntl.LOCK_EX if "alone" in request.keywords else fcntl.LOCK_SH
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
    with open(Path(os.environ["LENETGPU_CACHE"]) / f"gpu{gpu}.lock", "a") as lock:
        fcntl.flock(lock, kind)
        yield lock
        give_memory_back()


def give_memory_back() -> None:
    """Release GPU memory that this process holds but does not use."""
    # frames of a failed test hold its arrays
    for name in ("last_exc", "last_value", "last_traceback"):
        sys.__dict__.pop(name, None)
    if cupy := sys.modules.get("cupy"):
        cupy.get_default_memory_pool().free_all_blocks()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    """Run a test again with the GPU to itself if other processes left it too little memory."""
    lock = pyfuncitem.funcargs.get("gpu_turn")
    try:
        return (yield)
    except Exception as error:
        if lock is None or not faults.lacks_memory(error):
            raise
    give_memory_back()
    fcntl.flock(lock, fcntl.LOCK_EX)
    names = pyfuncitem._fixtureinfo.argnames
    return pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}) or True


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):
        return
    done = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if exitstatus not in done or not _is_whole(session.config):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    keeper = session.config.pluginmanager.get_plugin("gpu-parts")
    if keeper is None or not keeper.passed:
        return
    ran = {
        "date": datetime.date.today().isoformat(),  # of runs in parts, the last one's
        "tests_passed": keeper.passed,
        "tests_skipped": len(reporter.stats.get("skipped", [])),
        "runs": keeper.runs,
        "known_failures": FAILING,
    }
    receipt.write(receipt.fresh(_used() | ran))


def _is_whole(config: pytest.Config) -> bool:
    """Return True if all GPU tests were selected: no file, keyword or last-failed option given."""
    chosen = config.option
    narrowed = ("keyword", "deselect", "ignore", "ignore_glob", "lf")
    return (
        chosen.markexpr == "gpu"
        and config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and not any(getattr(chosen, name, None) for name in narrowed)
    )


def _used() -> dict[str, Any]:
    """Return the device and software versions that GPU tests run on."""
    gpu = driver_gpus()[0]
    used = software(gpu)
    known = {name: used[name] or "unknown" for name in ("driver", "cuda_driver")}
    return {"device": gpu.name, **known, "nvrtc": used["nvrtc"], "cupy": used["cupy"]}


def pytest_terminal_summary(terminalreporter) -> None:  # type: ignore[no-untyped-def]
    holds, lines = receipt.sentences(receipt.read())
    if not holds:
        terminalreporter.section("GPU RECEIPT DOES NOT HOLD", sep="!", red=True)
    for line in lines:
        terminalreporter.line(line)


def module_of(name: str) -> Any:
    """Return a new import of scripts/NAME.py."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(monkeypatch):
    """Return an importer for modules in scripts/, which are unloaded afterwards."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    yield importlib.import_module
    for path in (ROOT / "scripts").glob("*.py"):
        sys.modules.pop(path.stem, None)
