"""`lenetgpu classify`: every row exactly once, whatever ends the job, and whoever does it."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.files.assets import default_digits
from lenetgpu.files.dataset import load_dataset
from lenetgpu.jobs import crew, manifest, worker
from lenetgpu.jobs.job import Job
from lenetgpu.jobs.manifest import Failed, Follower, append, begin, read
from lenetgpu.measure.outcome import Request

CPU = ("--device", "cpu", "--plan", "fp32", "--no-progress")


@pytest.fixture(scope="module")
def digits():
    return load_dataset(default_digits())


@pytest.fixture
def folder(tmp_path, digits):
    """Three files of 300, 200 and 100 images, one of them with an odd name."""
    read = tmp_path / "read"
    (read / "more").mkdir(parents=True)
    np.save(read / "a.npy", digits.images[:300])
    np.save(read / "b 2\n.npy", digits.images[300:500])
    np.save(read / "more" / "c.npy", digits.images[500:600])
    return read


def run(*words, code=0):
    done = CliRunner().invoke(main, ["classify", *map(str, words), *CPU])
    assert done.exit_code == code, done.output
    return done


def labels(out):
    return np.concatenate([np.load(path) for path in sorted(out.glob("part-*.npy"))])


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """What `infer` says of the first 600 digits."""
    out = tmp_path_factory.mktemp("truth") / "labels.npy"
    words = ["infer", "--limit", "600", "--output", str(out), *CPU]
    assert CliRunner().invoke(main, words).exit_code == 0
    return np.load(out)


def test_a_folder_in_shards_has_infers_labels(tmp_path, folder, truth):
    out = tmp_path / "out"
    said = run(folder, "--out", out, "--shard", 128).stdout
    assert (labels(out) == truth).all()
    parts = sorted(path.name for path in out.glob("part-*"))
    assert parts == [f"part-00000{k}.npy" for k in range(6)]
    assert "600 images in 3 files, 6 shards of at most 128" in said
    found = json.loads((out / "summary.json").read_text())
    assert found["counts"] == np.bincount(truth, minlength=10).tolist()
    assert found["accuracy"] is None and found["images_done"] == 600


def test_accuracy_where_there_are_labels(tmp_path, digits):
    out = tmp_path / "out"
    said = run(default_digits(), "--out", out, "--shard", 4_000).stdout
    right = int((labels(out) == digits.labels).sum())
    assert f"accuracy {right:,}/10,000" in said


def test_forms_with_scores_and_rows_of_the_file(tmp_path, folder):
    for form in ("csv", "json", "h5"):
        run(folder / "a.npy", "--out", tmp_path / form, "--shard", 200, "--form", form, "--scores")
    lines = (tmp_path / "csv" / "part-000001.csv").read_text().splitlines()
    assert lines[0].startswith("index,file,label,score0") and lines[1].startswith("200,")
    assert len(lines) == 101 and "a.npy" in lines[1]
    assert len(json.loads((tmp_path / "json" / "part-000000.json").read_text())["scores"]) == 200


def test_parquet_files_are_one_data_set(tmp_path, folder, truth):
    dataset = pytest.importorskip("pyarrow.dataset", reason="no pyarrow")
    out = tmp_path / "out"
    run(folder, "--out", out, "--shard", 128, "--form", "parquet", "--scores")
    parts = [str(path) for path in sorted(out.glob("part-*.parquet"))]
    table = dataset.dataset(parts).to_table()
    assert table.column_names[:3] == ["file", "index", "label"] and table.num_columns == 13
    assert (np.asarray(table["label"]) == truth).all()
    scores = np.stack([np.asarray(table[f"score{k}"]) for k in range(10)], axis=1)
    assert (scores.argmax(axis=1) == truth).all()
    files = table["file"].to_pylist()
    assert [file.rpartition("/")[2] for file in dict.fromkeys(files)] == [
        "a.npy",
        "b 2\\n.npy",
        "c.npy",
    ]
    assert np.asarray(table["index"]).tolist() == [*range(300), *range(200), *range(100)]


def test_a_restart_does_what_is_missing_and_nothing_else(tmp_path, folder, truth):
    out = tmp_path / "out"
    run(folder, "--out", out, "--shard", 128)
    lines = (out / "manifest.json").read_text().splitlines(keepends=True)
    torn = lines[4][: len(lines[4]) // 2]
    (out / "manifest.json").write_text("".join(lines[:4]) + torn)
    (out / "part-000000.npy").unlink()
    kept = (out / "part-000002.npy").stat()
    run(folder, "--out", out, "--shard", 128)
    assert (labels(out) == truth).all()
    assert (out / "part-000002.npy").stat().st_mtime_ns == kept.st_mtime_ns
    found = read(out)
    assert sorted(found.done) == list(range(6)) and found.redone == 1
    assert json.loads((out / "summary.json").read_text())["this_run"]["shards"] == 4
    before = (out / "manifest.json").read_bytes()
    run(folder, "--out", out, "--shard", 128)
    assert (out / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("--shard", 100), "with shards of 128, found shards of 100"),
        (("--shard", 128, "--form", "csv"), "with files of .npy, found files of .csv"),
        (("--shard", 128, "--plan", "serial"), "with plan fp32, found plan serial"),
        (("--shard", 128, "--scores"), "with scores False, found scores True"),
    ],
)
def test_another_job_in_the_folder_is_refused(tmp_path, folder, words, sentence):
    out = tmp_path / "out"
    run(folder, "--out", out, "--shard", 128)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    done = CliRunner().invoke(
        main, ["classify", str(folder), "--out", str(out), *CPU, *map(str, words)]
    )
    assert done.exit_code == 2 and sentence in done.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_other_weights_are_refused(tmp_path, folder):
    import h5py

    out, weights = tmp_path / "out", tmp_path / "w.h5"
    run(folder, "--out", out)
    rng = np.random.default_rng(0)
    shapes = {"conv1": (5, 5, 1, 32), "conv2": (5, 5, 32, 64), "fc1": (1024, 128), "fc2": (128, 10)}
    with h5py.File(weights, "w") as file:
        for name, shape in shapes.items():
            file[name] = rng.normal(0, 0.05, shape).astype(np.float32)
    said = run(folder, "--out", out, "--weights", weights, code=2).stderr
    assert "w.h5, which differ" in said


def test_other_inputs_are_refused(tmp_path, folder, digits):
    out = tmp_path / "out"
    run(folder, "--out", out)
    assert "is not among them now" in run(folder / "a.npy", "--out", out, code=2).stderr
    np.save(folder / "d.npy", digits.images[:5])
    assert "found another one" in run(folder, "--out", out, code=2).stderr
    (folder / "d.npy").unlink()
    np.save(folder / "a.npy", digits.images[1:301])
    assert "a.npy: expected the file that the job in" in run(folder, "--out", out, code=2).stderr


def test_a_file_that_was_damaged_is_done_when_it_is_whole(tmp_path, folder, truth):
    """One cut in its data is known when it is looked at; the rest is done meanwhile."""
    out, path = tmp_path / "out", folder / "more" / "c.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    done = run(folder, "--out", out, code=1)
    assert "c.npy: expected" in done.stderr and done.stdout.count("500 images") >= 1
    assert (labels(out) == truth[:500]).all()
    path.write_bytes(whole)
    run(folder, "--out", out)
    assert (labels(out) == truth).all()


def test_a_shard_that_cannot_be_read_is_set_aside_after_its_tries(tmp_path, folder, digits):
    """A float that is no pixel shows only where it is read."""
    floats = digits.images[:300].astype(np.float32) / 255
    floats[150] = np.nan
    path, out = folder / "f.npy", tmp_path / "out"
    np.save(path, floats)
    done = run(path, "--out", out, "--shard", 100, "--tries", 2, code=1)
    assert "set aside after 2 tries" in done.stderr and "image 150" in done.stderr
    assert sorted(read(out).done) == [0, 2] and read(out).failed[1].tries == 2
    assert json.loads((out / "summary.json").read_text())["set_aside"][0]["shard"] == 1
    again = run(path, "--out", out, "--shard", 100, "--tries", 1, code=1)
    assert "set aside after 1 tries" in again.stderr
    assert json.loads((out / "summary.json").read_text())["this_run"]["shards"] == 0


def test_a_second_job_is_refused_while_the_first_runs(tmp_path, folder):
    out = tmp_path / "out"
    with manifest.alone(out):
        assert "no other job is writing to" in run(folder, "--out", out, code=2).stderr
    run(folder, "--out", out)


def test_bad_sources_are_a_sentence_each(tmp_path, folder, digits):
    out, floats = tmp_path / "out", tmp_path / "floats.npy"
    np.save(floats, digits.images[:3].astype(np.float32) / 255)
    for words, sentence in (
        ((folder, floats), "expected images of uint8"),
        ((folder, folder / "a.npy"), "expected each file once"),
        ((tmp_path / "none.npy",), "found: No such file"),
        ((tmp_path / "*.h5",), "expected files that this pattern matches, found none"),
        ((tmp_path / "empty",), "expected files in this folder, found none"),
        ((ROOT / "pyproject.toml",), "found"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        said = run(*words, "--out", out, code=2).stderr
        assert sentence in said and said.count("\n") == 1
        assert not out.exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path, folder):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years")
    assert "found 1 other files, as thesis.txt" in run(folder, "--out", out, code=2).stderr
    inside = run(folder, "--out", folder / "more", code=2)
    assert "outside" in inside.stderr
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_labels_beside_idx_images_are_no_input(tmp_path, digits):
    read = tmp_path / "read"
    read.mkdir()
    head = (0x803).to_bytes(4, "big") + b"".join(n.to_bytes(4, "big") for n in (50, 28, 28))
    (read / "t10k-images-idx3-ubyte").write_bytes(head + digits.images[:50].tobytes())
    head = (0x801).to_bytes(4, "big") + (50).to_bytes(4, "big")
    beside = digits.labels[:50].astype(np.uint8).tobytes()
    (read / "t10k-labels-idx1-ubyte").write_bytes(head + beside)
    said = run(read, "--out", tmp_path / "out").stdout
    assert "50 images in 1 file" in said and "accuracy" in said


@pytest.mark.parametrize("line", ["{}", "[1]", '{"done": 3}', "not json", '{"done": {"shard": 9}}'])
def test_a_damaged_manifest_is_a_sentence(tmp_path, folder, line):
    out = tmp_path / "out"
    run(folder, "--out", out)
    with open(out / "manifest.json", "a") as file:
        file.write(line + "\n")
    said = run(folder, "--out", out, code=2).stderr
    assert "line 3 damaged" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"hash": "0" * 16},
        {"lo": 1},
        {"images": 7},
        {"counts": [100]},
        {"counts": [0] * 10},
        {"counts": "0123456789"},
        {"right": "all"},
        {"right": 601},
        {"bad": 1},
        {"said": 5},
        {"files": 2},
        {"files": 0},
        {"files": 9},
        {"size": "1"},
    ],
    ids=str,
)
def test_a_line_of_another_input_is_damaged(tmp_path, folder, change):
    out = tmp_path / "out"
    run(folder, "--out", out)
    line = json.loads((out / "manifest.json").read_text().splitlines()[-1])
    line["done"] |= change
    with open(out / "manifest.json", "a") as file:
        file.write(json.dumps(line) + "\n")
    assert "line 3 damaged" in run(folder, "--out", out, code=2).stderr


def start(folder, out, *words, **more):
    command = [sys.executable, "-m", "lenetgpu", "classify", folder, "--out", out, *words, *CPU]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(list(map(str, command)), env=env, stdout=pipe, stderr=pipe, **more)


def test_a_full_disk_stops_the_job_and_the_next_start_ends_it(tmp_path, folder, truth):
    def full():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_200, 1_200))

    out = tmp_path / "out"
    begin_at = start(folder, out, "--shard", "300")
    assert begin_at.wait(60) == 0
    (out / "part-000000.npy").unlink()
    process = start(folder, out, "--shard", "300", preexec_fn=full)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and said.count(b"\n") == 2 and b"File too large" in said
    assert b"part-000000.npy: expected the labels that were listed" in said
    run(folder, "--out", out, "--shard", 300)
    assert (labels(out) == truth).all()


def test_ctrl_c_keeps_what_is_done(tmp_path, folder, truth):
    def heard():  # where pytest runs in the background a shell has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    out = tmp_path / "out"
    process = start(folder, out, "--shard", 2, preexec_fn=heard)
    end = time.monotonic() + 60
    while len(list(out.glob("part-*")) if out.is_dir() else ()) < 5 and time.monotonic() < end:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and b"shards left; the same command goes on" in said
    kept = len(read(out).done)
    assert 4 <= kept < 300  # the fifth has its file, and not yet its line
    assert json.loads((out / "summary.json").read_text())["shards_done"] == kept
    run(folder, "--out", out, "--shard", 2)
    assert (labels(out) == truth).all()
    assert read(out).redone == 0


def test_two_dask_workers_write_the_files_of_none(tmp_path, folder):
    pytest.importorskip("distributed", reason="no Dask")
    one, two = tmp_path / "one", tmp_path / "two"
    run(folder, "--out", one, "--shard", 64)
    process = start(folder, two, "--shard", 64, "--workers", 2)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    names = sorted(path.name for path in one.glob("part-*"))
    assert names == sorted(path.name for path in two.glob("part-*"))
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)
    assert len({row.worker for row in read(two).done.values()}) == 2


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_workers_of_a_cpu_share_its_cores(device, monkeypatch):
    pytest.importorskip("distributed", reason="no Dask")
    monkeypatch.setattr(crew, "core_count", lambda: 8)
    monkeypatch.setattr(crew, "choose_device", lambda wanted, plan: (None, "none here"))
    assert crew.share(Request(device=device), "4").threads == 2
    assert crew.share(Request(device=device), "16").threads == 1
    assert crew.share(Request(device=device, threads=3), "4").threads == 3
    assert crew.share(Request(device=device), None).threads is None
    monkeypatch.setattr(crew, "choose_device", lambda wanted, plan: (object(), "a GPU"))
    assert crew.share(Request(), "4").threads is None


def test_workers_and_schedulers_that_are_not_there(tmp_path, folder):
    out = tmp_path / "out"
    assert "--workers: expected cuda or 1 to 1024" in run(folder, "--out", out, "--workers", "many",
                                                          code=2).stderr  # fmt: skip
    both = run(folder, "--out", out, "--workers", 2, "--scheduler", "tcp://x:1", code=2)
    assert "one of --workers and --scheduler" in both.stderr


@pytest.fixture
def scheduler(tmp_path):
    """The address of a Dask scheduler with one worker, and its process."""
    pytest.importorskip("distributed", reason="no Dask")
    folder = Path(sys.executable).parent
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    where, quiet = tmp_path / "scheduler.json", subprocess.DEVNULL
    words = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    told = ["--scheduler-file", str(where)]
    more = {"stderr": quiet, "cwd": tmp_path, "start_new_session": True}
    processes = [subprocess.Popen([folder / "dask", *words, *told], **more)]
    words = ["worker", "--nthreads", "1", "--no-dashboard", "--local-directory", str(tmp_path)]
    command = [folder / "dask", *words, *told]
    processes.append(subprocess.Popen(command, env=env, **more))
    end, text = time.monotonic() + 60, ""
    try:
        while not text.rstrip().endswith("}") and time.monotonic() < end:
            time.sleep(0.05)
            text = where.read_text() if where.exists() else ""
        yield json.loads(text)["address"], processes[0]
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_scheduler_that_dies_is_a_sentence_and_the_next_start_ends_the_job(
    tmp_path, folder, truth, scheduler
):
    address, process = scheduler
    out = tmp_path / "out"
    job = start(folder, out, "--shard", 2, "--scheduler", address)
    end = time.monotonic() + 60
    while len(list(out.glob("part-*")) if out.is_dir() else ()) < 5 and time.monotonic() < end:
        time.sleep(0.005)
    process.kill()
    _, said = job.communicate(timeout=60)
    *_, last = said.decode().splitlines()
    assert job.returncode == 2 and "Traceback" not in said.decode(), said
    assert last.startswith("lenetgpu: error: scheduler: expected it to stay"), last
    run(folder, "--out", out, "--shard", 2)
    assert (labels(out) == truth).all()


def test_a_line_names_a_file_that_is_there(tmp_path, folder):
    """A worker that died before it could say so has done its shard."""
    out = tmp_path / "out"
    run(folder, "--out", out, "--shard", 128)
    found, follower = read(out), None
    follower = Follower(out)
    shard = found.job.shard(2)
    assert follower.row(shard) == found.done[2]
    (out / shard.name).unlink()
    assert follower.row(shard) is None and follower.row(found.job.shard(1)) == found.done[1]


def test_lines_of_several_processes_do_not_mix(tmp_path, folder):
    out = tmp_path / "out"
    run(folder, "--out", out, "--shard", 128)
    code = (
        "import sys; from pathlib import Path; from lenetgpu.jobs.manifest import *\n"
        "[append(Path(sys.argv[1]), Failed(n % 6, 1, 'x' * 2000, 1)) for n in range(100)]"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    jobs = [subprocess.Popen([sys.executable, "-c", code, out], env=env) for _ in range(3)]
    assert [job.wait(60) for job in jobs] == [0, 0, 0]
    lines = (out / "manifest.json").read_text().splitlines()
    assert len(lines) == 7 + 300 and all(json.loads(line) for line in lines)


def test_the_rest_of_a_line_is_cut_off(tmp_path, folder):
    out = tmp_path / "out"
    run(folder, "--out", out)
    whole = (out / "manifest.json").read_bytes()
    with open(out / "manifest.json", "ab") as file:
        file.write(b'{"done": {"shard": 1, ' + b"x" * 100_000)
    append(out, Failed(0, 1, "why", 1))
    text = (out / "manifest.json").read_bytes()
    assert text.startswith(whole) and text.count(b"\n") == whole.count(b"\n") + 1
    assert list(json.loads(text.splitlines()[-1])) == ["failed"]


def test_a_line_waits_for_the_lock(tmp_path, folder):
    out = tmp_path / "out"
    run(folder, "--out", out)
    before = (out / "manifest.json").read_bytes()
    waits = threading.Thread(target=append, args=(out, Failed(0, 1, "why", 1)))
    with open(out / "manifest.json", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waits.start()
        waits.join(0.5)
        assert waits.is_alive() and (out / "manifest.json").read_bytes() == before
    waits.join(60)
    assert len((out / "manifest.json").read_bytes()) > len(before)


def test_a_shard_without_its_file_has_no_line(tmp_path, folder, monkeypatch):
    def full(self):
        raise worker.StopError("the disk takes no more")

    monkeypatch.setattr(worker._Written, "close", full)
    out = tmp_path / "out"
    run(folder, "--out", out, code=2)
    assert read(out).done == {}


def test_the_lock_goes_with_its_process(tmp_path):
    with manifest.alone(tmp_path / "out"):
        pass
    handle = os.open(tmp_path / "out" / ".lenetgpu.lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)


def test_kills_of_jobs_and_workers(script, tmp_path):
    """A short form of `scripts/job_kills.py`."""
    pytest.importorskip("distributed", reason="no Dask")
    kills = script("job_kills")
    jobs = kills.Jobs(tmp_path, 400, 5)
    tally = kills.Tally()
    kills.kill_jobs(jobs, 1, tally)
    kills.kill_workers(jobs, 1, tally)
    assert tally.wrong == [] and tally.kills >= 1


def test_kills_see_what_is_wrong(script, tmp_path):
    kills = script("job_kills")
    jobs, tally = kills.Jobs(tmp_path, 2_000, 5), kills.Tally()
    out = jobs.end(jobs.start(tmp_path / "other"))
    part = out / "part-000001.npy"
    shutil.copy(out / "part-000000.npy", part)
    kills.judge(jobs, out, tally)
    assert len(tally.wrong) == 1 and "other labels" in tally.wrong[0]
    lines = (out / "manifest.json").read_text().splitlines(keepends=True)
    (out / "manifest.json").write_text("".join(lines[:-2]))
    assert kills.unlisted(out) == 2


def test_an_empty_job_line(tmp_path):
    begin(tmp_path, Job((), "w", "d", "fp32", "fp32", "cpu"))
    assert read(tmp_path).job.images == 0
