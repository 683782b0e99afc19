"""Files that a folder or a pattern stands for."""

import os

import pytest
from terminal import refused, run

from lenetgpu.files.folders import below, is_pattern, matching


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("b/z.png", "b/a/y.png", "a/x.png", "c.png", "B.png", ".h.png", ".d/w.png", "[1]"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "round").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_folder_expands_to_its_visible_files(folder):
    found = [os.path.relpath(path, folder) for path in below(str(folder))]
    assert found == ["B.png", "[1]", "c.png", "loop", "a/x.png", "b/z.png", "b/a/y.png"]
    assert list(below("empty")) == []
    with pytest.raises(OSError, match="No such file"):
        list(below("none"))


def test_pattern_expands_to_matching_files(folder):
    assert matching("*") == ["B.png", "[1]", "c.png", "loop"]
    assert matching("b/**") == ["b/a/y.png", "b/z.png"]
    assert matching("?/*.png") == ["a/x.png", "b/z.png"]
    assert is_pattern("[2]") and is_pattern("*") and not is_pattern("[1]")
    assert not is_pattern("none")


@pytest.mark.parametrize("words", [["infer", "."], ["classify", ".", "--out", "../out"]])
def test_input_file_in_a_folder_is_not_overwritten(folder, words):
    refused(run(*words, "--json", "b/a/y.png"), "an output file other than the inputs")
