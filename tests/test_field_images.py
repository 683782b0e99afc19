"""Images as people have them: dark on light, transposed, and in other files than the course's."""

import json
import warnings

import numpy as np
import pytest
import terminal
from stored import hdf5, idx_file, npy

from lenetgpu import LeNet, LenetError
from lenetgpu.files.assets import default_digits
from lenetgpu.files.orientation import unlike
from lenetgpu.files.source import load_dataset

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
