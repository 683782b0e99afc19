"""Images as people have them: dark on light, transposed, and in other files than the course's."""

import gzip
import io
import json
import re
import struct
import warnings
import zipfile

import h5py
import numpy as np
import pytest
import terminal
from PIL import Image
from stored import hdf5, idx_file, npy

from lenetgpu import LeNet, LenetError
from lenetgpu.files.assets import default_digits
from lenetgpu.files.orientation import unlike
from lenetgpu.files.source import load_dataset, open_source

CPU = ("--device", "cpu", "--plan", "fp32", "--no-progress")
N = 300
WAYS = {
    "dark": (np.invert, ["--polarity", "black-on-white"], {"polarity": "black-on-white"}),
    "transposed": (lambda x: x.swapaxes(1, 2), ["--transpose"], {"transpose": True}),
}


@pytest.fixture(scope="module")
def digits():
    data = load_dataset(default_digits())
    return np.ascontiguousarray(data.images[:N, :, :, 0]), data.labels[:N].astype(np.uint8)


def infer(*words):
    done = terminal.run("infer", *words, *CPU, "--json", "-", code=0)
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", WAYS)
def test_unlike_images_are_reported_and_changed_only_when_asked(tmp_path, digits, way):
    (images, labels), (change, words, arguments) = digits, WAYS[way]
    odd = np.ascontiguousarray(change(images))
    with LeNet.load(device="cpu", plan="fp32") as net:
        expected = net(images)
        with pytest.warns(UserWarning, match=way[:4]) as caught:
            found = [net(odd), net(odd)]
        assert len(caught) == 1 and caught[0].filename == __file__
        assert (found[0] == found[1]).all() and (found[0] == labels).mean() < 0.3
    stored = npy(tmp_path / "x.npy", odd)
    said = terminal.run("infer", stored, *CPU, "--output", tmp_path / "l.npy", code=0).stdout
    assert f"note     {stored}: " in said and way[:4] in said
    np.testing.assert_array_equal(np.load(tmp_path / "l.npy"), found[0])
    with warnings.catch_warnings(), LeNet.load(device="cpu", plan="fp32", **arguments) as net:
        warnings.simplefilter("error")
        for given in (odd, odd[:, None], odd[..., None], odd[:3].tolist()):
            np.testing.assert_array_equal(net(given), expected[: len(given)])
        np.testing.assert_array_equal(net(odd / np.float32(255)), expected)
        assert net(odd[0]) == expected[0]
    for path in (
        stored,
        hdf5(tmp_path / "x.h5", x=odd, y=labels),
        idx_file(tmp_path / "images.gz", odd, labels),
    ):
        found = infer(path, *words, "--output", tmp_path / "l.npy")
        assert not found["notes"]
        np.testing.assert_array_equal(np.load(tmp_path / "l.npy"), expected)
        out = tmp_path / f"of-{path.name}"
        done = terminal.run("classify", path, "--out", out, *words, *CPU, code=0)
        assert way[:4] not in done.stderr
        np.testing.assert_array_equal(np.load(out / "part-000000.npy"), expected)
    done = terminal.run("classify", stored, "--out", tmp_path / "unasked", *CPU, code=0)
    assert way[:4] in done.stderr
    wrong = ("transposed", "inverted")[way == "dark"]
    terminal.refused(terminal.run("classify", path, "--out", out, *CPU), wrong)


def test_usual_images_and_blank_ones_and_noise_are_not_unlike(digits, rng):
    images = digits[0]
    noise = rng.integers(0, 256, images.shape, np.uint8)
    for usual in (images, images[:1], noise, np.zeros_like(images), np.full_like(images, 255)):
        assert unlike(usual) == []
    assert unlike(np.invert(images).swapaxes(1, 2)) == ["dark", "transposed"]
    with pytest.raises(LenetError, match="polarity: expected auto, white-on-black"):
        LeNet.load(device="cpu", polarity="light")


def csv_text(rows, header=""):
    return header + "".join(",".join(map(str, row)) + "\n" for row in rows)


def stored_ways(folder, images, labels):
    """Yield (path, has labels) of the same digits in the forms in which people have them."""
    flat, names = images.reshape(N, 784), ",".join(f"pixel{k}" for k in range(784))
    rows, column = np.hstack([labels[:, None], flat]).tolist(), labels.tolist()
    texts = {
        "kaggle.csv": csv_text(rows, f"label,{names}\n"), "headless.csv": csv_text(rows),
        "test.csv": csv_text(flat.tolist(), f"{names}\r\n"),
        "openml.csv": csv_text([(*r[1:], r[0]) for r in rows], f"\ufeff{names},class\n"),
        "floats.csv": csv_text([(r[0], *(v / 255 for v in r[1:])) for r in rows]),
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
        yield name, name != "test.csv"
    np.savez(
        folder / "k.npz", x_test=images, y_test=column, x_train=images[:, None], y_train=column
    )
    hdf5(folder / "n.h5", images=flat, labels=labels)
    with h5py.File(folder / "n.h5", "a") as file:
        file["train/x"], file["train/y"] = images[:, None], labels
    yield from ((name, True) for name in ("k.npz", "k.npz:x_train", "n.h5:/images", "n.h5:train/x"))
    arrays = {"flat": flat, "one": images[:1], "fortran": np.asfortranarray(images / 255)}
    for name, array in arrays.items():
        np.save(folder / name, array[0] if name == "one" else array)
        yield f"{name}.npy", False
    for axes in (N, 784), (N, 1, 28, 28):
        path = folder / f"{len(axes)}.gz"
        head = struct.pack(f">{len(axes) + 1}I", 2048 + len(axes), *axes)
        path.write_bytes(gzip.compress(head + images.tobytes()))
        yield path.name, False
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    pictures = [{"bytes": png(image), "path": None} for image in images]
    table = pa.table({"image": pictures, "label": column})
    parquet.write_table(table, folder / "hf.parquet")
    yield "hf.parquet", True


def png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def test_the_same_digits_are_read_from_every_form(tmp_path, digits):
    images, labels = digits
    for name, labelled in stored_ways(tmp_path, images, labels):
        found = load_dataset(tmp_path / name)
        pixels = found.images[..., 0]
        if pixels.dtype == np.float32:
            pixels = np.rint(pixels * 255)
        np.testing.assert_array_equal(pixels, images[: len(pixels)], name)
        assert len(pixels) == (1 if name == "one.npy" else N)
        assert (found.labels is not None) == labelled, name
        if labelled:
            np.testing.assert_array_equal(found.labels, labels, name)
        if name != "one.npy":
            with open_source(tmp_path / name, 7, 5) as source:
                part = source.whole()
            np.testing.assert_array_equal(part.images, found.images[7:12], name)
            assert not labelled or part.labels.tolist() == labels[7:12].tolist(), name
    sources = [tmp_path / name for name in ("k.npz", "k.npz:x_train", "kaggle.csv", "n.h5:/images")]
    done = terminal.run("classify", *sources, "--out", tmp_path / "out", *CPU, code=0)
    assert f"{4 * N:,} images in 4 files" in done.stdout and "accuracy" in done.stdout
    target = ("--output", tmp_path / "n.h5", *CPU)
    terminal.refused(terminal.run("infer", sources[3], *target), "other than the inputs")


def test_refused_tables_say_what_they_hold(tmp_path, digits):
    images, labels = digits
    list(stored_ways(tmp_path, images[:1].repeat(N, 0), labels))
    (tmp_path / "short.csv").write_text("label,a\n1,2\n")
    (tmp_path / "words.csv").write_text(csv_text([["1"] * 785, ["1"] * 784 + ["x"]]))
    np.savez(tmp_path / "two.npz", a=images, b=labels)
    with zipfile.ZipFile(tmp_path / "z.npz", "w") as archive:
        archive.writestr("train.csv", "1,2")
    for name, words in {
        "n.h5": "named as n.h5:/NAME, found no such dataset (the file holds /images, /labels",
        "n.h5:/train": "found a group", "k.npz:x": "name one as k.npz:x_test",
        "two.npz": "found a, b; name one as two.npz:a", "z.npz": "a zip archive of train.csv",
        "short.csv": "one of labels and 784 of pixels, found 2", "flat.npy:x": "leave out :x",
        "words.csv": "could not convert string 'x'", "k.npz:y_test": "int64 of shape (300,)",
    }.items():  # fmt: skip
        with pytest.raises(LenetError, match=re.escape(words)):
            load_dataset(tmp_path / name)


def test_labels_come_from_another_file_or_from_folders(tmp_path, digits):
    images, labels = digits
    path = npy(tmp_path / "x.npy", images)
    list(stored_ways(tmp_path, images, labels))
    np.savetxt(tmp_path / "y.csv", labels, "%d", header="label", comments="")
    idx_file(tmp_path / "images", images, labels)
    correct = infer(tmp_path / "kaggle.csv")["correct"]
    for name in (
        npy(tmp_path / "y.npy", labels).name,
        "y.csv",
        "labels",
        "k.npz:y_test",
        "n.h5:labels",
    ):
        assert infer(path, "--labels", tmp_path / name)["correct"] == correct, name
    part = infer(path, "--labels", tmp_path / "y.csv", "--skip", 9, "--limit", 50)
    assert part["correct"] == infer(tmp_path / "kaggle.csv", "--skip", 9, "--limit", 50)["correct"]
    for words, refusal in ((["--skip", 1, path], "y.npy"), ([path, path], "one file of images")):
        short = npy(tmp_path / "y.npy", labels[:-1])
        terminal.refused(terminal.run("infer", *words, "--labels", short, *CPU), refusal)
    for number, label in enumerate(labels[:20]):
        folder = tmp_path / "scans" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(png(np.invert(images[number])))
    found = infer(tmp_path / "scans", "--errors", tmp_path / "e.csv", "--min-accuracy", 0.5)
    assert found["correct"] >= 18
    (tmp_path / "scans" / "x.png").write_bytes(png(images[0]))
    terminal.refused(
        terminal.run("infer", tmp_path / "scans", *CPU, "--min-accuracy", 0.5), "labels"
    )
