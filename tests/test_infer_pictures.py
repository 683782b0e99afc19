"""`lenetgpu infer` with pictures: arguments, tables, results, exit codes, Ctrl-C."""

import csv
import io
import json
import os
import re
from functools import partial
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import terminal
from PIL import Image
from stored import hdf5

from lenetgpu.errors import LenetError
from lenetgpu.files.assets import default_digits
from lenetgpu.files.source import open_source
from lenetgpu.lab import pictures as show
from lenetgpu.lab.console import Console
from lenetgpu.lab.listing import verified
from lenetgpu.lab.pictures import Classified
from lenetgpu.pictures.given import Gathered, expand, single_data

CPU = ("--device", "cpu", "--plan", "cublas")


run = partial(terminal.run, "infer", *CPU)


@pytest.fixture(scope="module")
def digits():
    with open_source(default_digits(), limit=60) as source:
        return source.whole()


@pytest.fixture
def folder(tmp_path, digits, monkeypatch):
    """A working folder of twelve pictures, dark on light, with their digits in their names."""
    scans = tmp_path / "scans"
    scans.mkdir()
    for number in range(12):
        image = Image.fromarray(255 - digits.images[number, ..., 0]).resize((84, 84))
        image.save(scans / f"{number:02d}-{digits.labels[number]}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(*arguments, **how):
    result = run(*arguments, "--json", "-", **how, code=0)
    return json.loads(result.stdout)["rows"]


def test_folder_lists_pictures_by_name(folder, digits):
    found = rows("scans")
    assert [row["file"] for row in found] == [
        f"scans/{number:02d}-{label}.png" for number, label in enumerate(digits.labels[:12])
    ]
    right = [row["label"] == int(row["file"][-5]) for row in found]
    assert sum(right) >= 11
    for row in found:
        assert 0.09 < row["probability"] <= 1 and row["notes"] == ["dark on light, inverted"]
        second = row["runner_up"]
        assert second["label"] != row["label"]
        assert second["probability"] <= row["probability"]
        assert second["probability"] + row["probability"] <= 1 + 1e-9


def test_arguments_may_be_files_folders_or_patterns(folder):
    (folder / "scans" / "notes.txt").write_text("hello")
    (folder / "scans" / ".hidden.png").write_bytes(b"x")
    (folder / "scans" / "below").mkdir()
    os.mkfifo(folder / "scans" / "pipe.png")
    (folder / "scans" / "loop.png").symlink_to("loop.png")
    (folder / "scans" / "unnamed").write_bytes((folder / "scans" / f"{first(folder)}").read_bytes())
    (folder / "empty").mkdir()
    (folder / "odd[1].png").write_bytes(b"x")
    found = expand(["scans", "scans/0[0-2]*", "-", "odd[1].png", "empty", "n?ne", "gone.png"])
    names = sorted(os.listdir("scans"))
    pictures = [f"scans/{name}" for name in names if name[:2].isdigit() or name == "unnamed"]
    three = [path for path in pictures if path[6:8] in ("00", "01", "02")]
    assert found.paths == [*pictures, *three, "-", "odd[1].png", "gone.png"]
    assert found.bad == [
        "empty: expected a folder with pictures, found an empty one",
        "n?ne: expected files of this pattern, found no such file",
    ]
    assert found.notes == ["scans: 1 file skipped: not pictures"]
    with pytest.raises(LenetError, match="stdin once, found 2 times"):
        expand(["-", "-"])


def first(folder):
    return min(name for name in os.listdir(folder / "scans") if name[0] != ".")


def test_stdin_is_read_like_a_file(folder, digits):
    picture = (folder / "scans" / first(folder)).read_bytes()
    (row,) = rows("-", input=picture)
    assert (row["file"], row["label"]) == ("stdin", digits.labels[0])
    held = io.BytesIO()
    np.save(held, digits.images[:3])
    assert [row["file"] for row in rows("-", input=held.getvalue())] == [
        "stdin[0]", "stdin[1]", "stdin[2]"
    ]  # fmt: skip
    result = run("-", input=b"hello")
    assert result.exit_code == 2 and "stdin: expected a picture" in result.stderr
    assert "5 bytes in no known format" in result.stderr


def test_bad_picture_is_reported_and_others_continue(folder):
    (folder / "bad\n\x1b[31m.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    Image.new("L", (40, 40), 200).save("blank.png")
    result = run("scans", "bad\n\x1b[31m.png", "blank.png", "none.jpg", "--json", "o.json", code=1)
    lines = result.stderr.splitlines()
    assert [line.split(":")[:2] for line in lines] == [
        ["lenetgpu", r" bad\n\x1b[31m.png"], ["lenetgpu", " blank.png"], ["lenetgpu", " none.jpg"]
    ]  # fmt: skip
    assert lines[1].endswith("blank.png: expected a digit, found a blank picture")
    document = json.loads((folder / "o.json").read_text())
    assert document["images"] == len(document["rows"]) == 12 and len(document["bad"]) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing*.png"], ["nothing*.png: expected files of this pattern, found no such file"]),
        (["gone.png", "words.txt"], ["found 2 that cannot"]),
        (["scans", "--skip", "99"], ["--skip 99: expected more images"]),
        (["scans", "--min-accuracy", "0.5"], ["--min-accuracy: expected labels in scans/00"]),
        (["y.h5", "y.h5", "--as-is"], ["--as-is: expected pictures, found images in y.h5"]),
    ],
)
def test_nothing_to_classify_is_refused(folder, arguments, said):
    (folder / "empty").mkdir()
    (folder / "words.txt").write_text("hello")
    with open_source(default_digits(), limit=3) as source:
        hdf5("y.h5", x=source.whole().images, y=source.labels)
    result = run(*arguments, code=2)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("lenetgpu: error: ") and all(part in last for part in said)


def test_results_contain_file_names(folder):
    odd = 'a, "b"\n.png'
    os.rename(f"scans/{first(folder)}", f"scans/{odd}")
    names = [f"scans/{name}" for name in sorted(os.listdir("scans"))]
    for ending in (".json", ".csv"):
        assert run("scans", "--output", f"o{ending}", "--skip", 1).exit_code == 0
    assert run("scans", "--output", "o.h5", "--skip", 1, "--scores").exit_code == 0
    names = names[1:]
    table = list(csv.DictReader(io.StringIO((folder / "o.csv").read_text())))
    assert list(table[0]) == ["index", "file", "label"]
    assert [row["file"] for row in table] == [name.replace("\n", r"\n") for name in names]
    assert [row["index"] for row in table] == [str(k) for k in range(1, 12)]
    document = json.loads((folder / "o.json").read_text())
    assert document["files"] == names and "scores" not in document
    with h5py.File("o.h5") as file:
        kept = [bytes(row).rstrip(b"\0").decode() for row in file["files"][...]]
        assert kept == names and (file["labels"][...] == document["labels"]).all()
    assert "checksums match (3 datasets)" in verified(folder / "o.h5")


@pytest.mark.parametrize("width", [14, 80])
@pytest.mark.parametrize("braille", [True, False])
def test_drawings_fit_the_width_and_show_the_ink(digits, width, braille):
    lines = show.drawn(digits.images[:7], list(range(7)), width, braille)
    text = "".join(lines)
    assert max(map(len, lines)) <= width
    assert len(re.findall(r"\d: \d", text)) == 7
    if braille:
        dots = sum((ord(char) - 0x2800).bit_count() for char in text if char >= "\u2800")
        assert dots == (digits.images[:7] >= 127.5).sum()
    else:
        assert set(text) <= set(" .:*#0123456789") and text.count("#") > 60


@pytest.mark.parametrize("width", [80, 40])
def test_notes_are_shown_at_every_width(folder, width, monkeypatch):
    """Notes are below the answers; the report is left out where there is nothing to judge."""
    monkeypatch.setattr(Console, "width", width)
    os.rename("scans", "s")
    text = run("s").stdout
    assert "1: dark on light, inverted" in text and "plan  " not in text
    assert "plan  " in run("s", "--repeat", 1).stdout
    (one, *_), answer = rows("s"), run("s", "--limit", 1).stdout.splitlines()
    shown = f"{one['file']}: {one['label']} ({one['probability']:.1%})"
    assert answer[:2] == [shown, f"note     {one['notes'][0]}"]
    assert run("s", "--limit", 1, "--quiet").stdout.splitlines() == [shown]


def test_few_images_of_one_file_use_the_same_table(folder, digits):
    np.save("x.npy", digits.images[20:52])
    hdf5("y.h5", x=digits.images[20:52], y=digits.labels[20:52])
    assert single_data(["x.npy"]) and not single_data(["x.npy", "x.npy"])
    one = rows("x.npy", "--skip", 2)
    assert one == rows("x.npy", "x.npy", "--skip", 2, "--limit", 30)
    assert [row["file"] for row in one] == [f"x.npy[{number}]" for number in range(2, 32)]
    table = run("x.npy", "--limit", 5).stdout.partition("\ndevice")[0]
    assert re.findall(r"x\.npy\[\d\]", table) == [f"x.npy[{number}]" for number in range(5)]
    assert "\u28ff" in table or "#" in table
    both = [run(name, "--skip", 3, "--limit", 4).stdout for name in ("x.npy", "y.h5")]
    plain, labelled = (text.partition("\ndevice")[0].rstrip().splitlines() for text in both)
    assert [line.split()[2:] for line in plain] == [line.split()[2:] for line in labelled]
    assert "accuracy 4/4" in both[1] and "accuracy" not in both[0]
    assert run("y.h5", "--skip", 30, "--quiet").stdout.splitlines()[2:] == [
        "accuracy 2/2 = 100.00%"
    ]
    shipped = rows("--skip", 9_990)
    assert [row["file"] for row in shipped] == [f"digits-10k.h5[{n}]" for n in range(9990, 10_000)]


def test_runner_up_excludes_the_label():
    """Also if the label is not the likeliest: the float32 argmax may differ on equal scores."""
    likely = np.array([[0.5, 0.3, 0.2, *[0] * 7], [0.5, 0.3, 0.2, *[0] * 7]])
    found = Gathered(names=["a", "b"], notes=[(), ()])
    outcome = SimpleNamespace(labels=np.array([0, 1], np.int32))
    one, other = Classified(outcome, found, None, likely).rows()
    assert one["runner_up"] == {"label": 1, "probability": 0.3}
    assert other["runner_up"] == {"label": 0, "probability": 0.5}


def test_ctrl_c_while_reading_pictures_writes_nothing(folder, monkeypatch):
    from lenetgpu.pictures import given

    calls = []

    def stopped(path, as_is):
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return read(path, as_is)

    read = given.read_digit
    monkeypatch.setattr(given, "read_digit", stopped)
    result = run("scans", "--output", "o.csv")
    assert result.exit_code == 130 and "interrupted" in result.stderr
    assert not (folder / "o.csv").exists() and len(calls) == 3
