"""What libtiff prints past Pillow is a sentence that names the file, and no line of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading

import pytest
from conftest import ROOT
from PIL import Image, ImageDraw, features

from lenetgpu import LenetError
from lenetgpu.pictures.overheard import overheard
from lenetgpu.pictures.read import read_grey

pytestmark = pytest.mark.skipif(not features.check("libtiff"), reason="Pillow without libtiff")
SAID = "Fax3Decode1D: Bad code word at line"


def fax(damaged):
    """A fax of a seven, a few of its bytes others where it is `damaged`."""
    image = Image.new("1", (300, 200), 1)
    ImageDraw.Draw(image).line([(80, 40), (200, 40), (120, 170)], 0, 12)
    file = io.BytesIO()
    image.save(file, "TIFF", compression="group3")
    data = bytearray(file.getvalue())
    if damaged:
        with Image.open(file) as opened:
            middle = opened.tag_v2[273][0] + opened.tag_v2[279][0] // 2
        data[middle : middle + 6] = bytes(6)
    return bytes(data)


def test_a_damaged_fax_is_refused_and_nothing_else_is_printed(tmp_path, capfd):
    path = tmp_path / "fax.tif"
    path.write_bytes(fax(damaged=False))
    assert read_grey(path)[0].shape == (200, 300)
    path.write_bytes(fax(damaged=True))
    with pytest.raises(LenetError, match=f"found a damaged one .{SAID}"):
        read_grey(path)
    assert capfd.readouterr() == ("", "")


def test_what_others_print_meanwhile_is_not_lost(capfd):
    """Nor taken for libtiff's; its warnings are no damage, and an error keeps its own words."""
    with overheard("TIFF"):
        writer = threading.Thread(target=os.write, args=(2, b"reading 3 of 5\r"))
        writer.start()
        writer.join()
        os.write(2, b"TIFFFetch: Warning, an odd tag.\n")
    assert capfd.readouterr().err == "reading 3 of 5\r"
    with pytest.raises(OSError, match="cut off"), overheard("TIFF"):
        raise OSError("cut off")
    with overheard("PNG"):
        os.write(2, b"as ever: this.\n")
    assert capfd.readouterr().err == "as ever: this.\n"


def test_where_stderr_is_closed(tmp_path):
    path = tmp_path / "fax.tif"
    path.write_bytes(fax(damaged=False))
    words = [sys.executable, "-m", "lenetgpu", "infer", path, "--device", "cpu", "--plan", "fp32"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *words], cwd=ROOT, stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == 0 and b"fax.tif" in done.stdout
