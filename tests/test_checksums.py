"""Whose checksums are compared: ours under either name, and nobody else's; what has none."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from test_flips import converted, rewritten, weight_file  # noqa: F401

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.files import assets, checksums
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import load_weights

NAME, BEFORE = checksums.ATTRIBUTE, "sha256"
OLD_ROOT = "7c22781f14eeb57e02e4a46c1c05bd10e29744b9b96c34ceed7d5db006769d31"
"""Of the weights that ship, as the version wrote it that called the attribute `sha256`."""


def verified(path):
    result = CliRunner().invoke(main, ["data", "verify", str(path)])
    assert result.exit_code == 0, result.output
    return result.output.removeprefix(f"{path}: ").rstrip("\n")


def _texts():
    digits = "0123456789abcdef" * 4
    return {"text": "yes", "digits": digits, "fixed": np.bytes_(digits), "list": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("place", "value"),
    [("root", "text"), ("data sets", "digits"), ("both but /z", "fixed"), ("root", "list")],
)
def test_a_strangers_sha256_is_none_of_ours(place, value, tmp_path):
    value = _texts()[value]
    path = tmp_path / "theirs.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = np.zeros((3, 28, 28), "u1"), np.arange(3)
        file["z"] = "a text"
        holders = {"root": [file], "data sets": [file["x"], file["y"]]}
        for holder in holders.get(place, [file, file["x"], file["y"]]):
            holder.attrs[BEFORE] = value
    assert load_dataset(path).labels.tolist() == [0, 1, 2]
    assert verified(path) == checksums.NONE


def test_a_text_that_is_no_sum_is_none_wherever_it_stands(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.zeros((3, 28, 28), "u1")
        for holder in (file, file["x"]):
            holder.attrs[BEFORE] = np.bytes_("see sums.txt")
    assert len(load_dataset(tmp_path / "x.h5")) == 3
    assert verified(tmp_path / "x.h5") == checksums.NONE


def test_a_long_name_beside_images_does_no_harm(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["n" * 500], file[b"\xff"] = np.zeros((3, 28, 28), "u1"), 1, 2
    assert len(load_dataset(tmp_path / "x.h5")) == 3
    assert verified(tmp_path / "x.h5") == checksums.NONE


def _as_before(file):
    """Every sum under the name that it had at first."""
    for holder in (*file.values(), file):
        digits = holder.attrs.pop(NAME)
        holder.attrs[BEFORE] = np.bytes_(OLD_ROOT) if holder is file else digits


@pytest.fixture
def old(tmp_path):
    return rewritten(assets.default_weights(), tmp_path / "old.h5", _as_before)


def test_sums_under_the_name_of_before_are_compared(old, tmp_path):
    assert verified(old) == "checksums right (4 data sets)"

    def change(file):
        file["fc2"][0, 0] *= -1

    with pytest.raises(LenetError, match="expected dataset /fc2 to have the SHA-256 2e19e9e056b0"):
        load_weights(rewritten(old, tmp_path / "x.h5", change))

    def say(file):
        file["fc2"].attrs["scale"] = 2.0

    with pytest.raises(LenetError, match="expected names and attributes to have the SHA-256"):
        load_weights(rewritten(old, tmp_path / "x.h5", say))


def test_what_is_added_to_a_file_of_before_is_said_to_have_none(old, tmp_path):
    def add(file):
        file["more"] = np.zeros(3)

    path = rewritten(old, tmp_path / "x.h5", add)
    assert verified(path) == "checksums right (4 data sets); /more has none: cannot tell damage"


@pytest.fixture
def images(converted, weight_file):  # noqa: F811
    return converted


def _add(file):
    file["more"], file["other"] = np.zeros(3), h5py.SoftLink("/x")


def _labels(file):
    file["z"] = np.zeros(5)
    file["a\x1b[31m\nb"] = 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_add, "; /more, /other have none: cannot tell damage"),
        (_labels, "; /a\\x1b[31m\\nb, /z have none: cannot tell damage"),
        (lambda file: file.attrs.pop(NAME), "; names and attributes have none"),
    ],
)
def test_what_has_no_sum_is_said_and_the_rest_is_compared(images, tmp_path, change, said):
    path = rewritten(images, tmp_path / "x.h5", change)
    assert (load_dataset(path).images == load_dataset(images).images).all()
    assert verified(path) == "checksums right (2 data sets)" + said

    def flip(file):
        file["x"][5, 5, 5] ^= 1

    with pytest.raises(LenetError, match="expected dataset /x, rows 0 to 999, to have the SHA-256"):
        load_dataset(rewritten(path, tmp_path / "flipped.h5", flip))


def test_a_sum_that_is_taken_away_is_missed(images, tmp_path):
    """Of one data set, of all of them, and with others added in its place."""

    def all_but_root(file):
        for item in file.values():
            item.attrs.pop(NAME)

    def replace(file):
        del file["y"]
        file["y"] = np.zeros(2_345, "u1")

    for change in (lambda file: file["y"].attrs.pop(NAME), all_but_root, replace):
        path = rewritten(images, tmp_path / "x.h5", change)
        for read in (load_dataset, checksums.verify):
            with pytest.raises(LenetError, match="expected names and attributes to have the SHA"):
                read(path)


def test_data_sets_copied_into_another_file_keep_their_sums(images, tmp_path):
    """Images without their blocks' sums are read whole when they are opened."""
    path = tmp_path / "copied.h5"
    with h5py.File(path, "w") as file, h5py.File(images) as source:
        source.copy("x", file)
        file["y"] = source["y"][...]
    said = "checksums right (1 data set); /y has none: cannot tell damage"
    assert verified(path) == f"{said}; names and attributes have none"
    assert (load_dataset(path).images == load_dataset(images).images).all()
    with h5py.File(path, "a") as file:
        file["x"][2_000, 3, 3] ^= 1
    for read in (load_dataset, checksums.verify):
        with pytest.raises(LenetError, match="expected dataset /x to have the SHA-256"):
            read(path)


def test_more_data_sets_than_a_file_with_sums_has(images, tmp_path):
    def many(file):
        for number in range(64):
            file[f"n{number}"] = 0

    path = rewritten(images, tmp_path / "x.h5", many)
    with pytest.raises(LenetError, match="expected at most 64 data sets beside checksums"):
        checksums.verify(path)
    shutil.copy(rewritten(path, tmp_path / "y.h5", bare), path)
    assert verified(path) == checksums.NONE


def bare(file):
    for holder in (file["x"], file["y"], file["x_sha256"], file):
        holder.attrs.pop(NAME)
