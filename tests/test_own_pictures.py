"""Reading and preparing pictures: every mode and orientation, notes, and refusals."""

import io
import math
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFile

from lenetgpu.errors import LenetError
from lenetgpu.files.assets import default_digits
from lenetgpu.files.source import open_source
from lenetgpu.pictures import read, read_digit
from lenetgpu.pictures.as_mnist import as_it_is, as_mnist
from lenetgpu.pictures.masks import islands, shrunk
from lenetgpu.pictures.read import read_grey

MODES = ("1", "L", "LA", "P", "PA", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "I", "F")
TIFFS = ("CMYK", "YCbCr", "LAB", "I", "F")
DEEP = {"I;16": (257, "u2"), "I": (257, "i4"), "F": (1 / 255, "f4")}
FORMS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM")


def saved(image, form, **how):
    out = io.BytesIO()
    image.save(out, form, **how)
    return out.getvalue()


@pytest.fixture
def put(tmp_path):
    """Write bytes to a file, or save an image, and return the path."""

    def write(what, name="picture", **how):
        path = tmp_path / name
        if isinstance(what, Image.Image):
            what = saved(what, how.pop("form", "PNG"), **how)
        path.write_bytes(what)
        return path

    return write


def seven(width=120, height=160, paper=235, ink=20, stroke=9):
    """Return a page with a 7."""
    image = Image.new("L", (width, height), paper)
    line = [
        (0.3 * width, 0.25 * height),
        (0.7 * width, 0.25 * height),
        (0.45 * width, 0.8 * height),
    ]
    ImageDraw.Draw(image).line(line, fill=ink, width=stroke, joint="curve")
    return image


def alike(one, other, most=12.0):
    """Return True if two digits (28, 28) differ only by resampling."""
    return np.abs(one.astype(float) - other.astype(float)).mean() < most


SEVEN = as_mnist(np.asarray(seven(), np.float32)).pixels


@pytest.mark.parametrize("mode", MODES)
def test_every_image_mode_gives_the_same_digit(put, mode):
    image = seven()
    if mode in DEEP:
        scale, kind = DEEP[mode]
        image = Image.fromarray((np.asarray(image, np.float64) * scale).astype(kind))
    elif mode == "PA":
        image = image.convert("RGBA").quantize(8)
    else:
        image = image.convert("RGB").convert(mode)
    made = read_digit(put(image, form="TIFF" if mode in TIFFS else "PNG"))
    assert made.notes == ("dark on light, inverted",)
    assert alike(made.pixels, SEVEN)


@pytest.mark.parametrize(
    ("form", "orientation"),
    [("JPEG", 6), ("PNG", 5), ("TIFF", 8), ("WEBP", 3), ("PNG", 2), ("PNG", 4), ("PNG", 7)],
)
def test_exif_orientation_is_applied(put, form, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    wide = np.asarray(seven(), np.uint8)
    grey, *_ = read_grey(put(Image.fromarray(wide), form=form, exif=exif, quality=95))
    undone = {
        2: wide[:, ::-1], 3: wide[::-1, ::-1], 4: wide[::-1], 5: wide.T,
        6: np.rot90(wide, -1), 7: np.rot90(wide, 2).T, 8: np.rot90(wide),
    }[orientation]  # fmt: skip
    assert grey.shape == undone.shape
    assert np.abs(grey - undone).mean() < 4


@pytest.mark.parametrize("ink", [0, 255])
def test_ink_only_in_alpha_channel_is_read(put, ink):
    cover = 255 - (np.asarray(seven(paper=255, ink=0)))
    grey = np.full_like(cover, ink)
    made = read_digit(put(Image.fromarray(np.stack([grey, grey, grey, cover], axis=-1))))
    assert alike(made.pixels, SEVEN)
    assert made.notes == (("dark on light, inverted",) if ink == 0 else ())


def test_only_first_frame_is_read_with_a_note(put):
    frames = [seven(), Image.new("L", (120, 160), 0)]
    for form in ("GIF", "TIFF", "WEBP", "PNG"):
        path = put(frames[0], form=form, save_all=True, append_images=frames[1:], duration=100)
        made = read_digit(path)
        assert "the first of several frames" in made.notes, form
        assert alike(made.pixels, SEVEN)


@pytest.mark.parametrize(("dark", "tight"), [(True, False), (False, True)])
def test_mnist_digits_are_unchanged(dark, tight):
    """Digits in MNIST's form do not change, in either polarity, also when cropped to the ink."""
    from lenetgpu import LeNet

    with open_source(default_digits(), limit=120) as source:
        digits = source.whole()
    made = []
    for image in digits.images[..., 0]:
        if tight:
            rows, columns = np.nonzero(image > 50)
            image = image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        try:
            made.append(as_mnist((255 - image if dark else image).astype(np.float32)))
        except LenetError:
            assert tight
            made.append(as_it_is(image.astype(np.float32), image.shape))
    with LeNet.load(device="cpu") as net:
        labels = net(np.stack([one.pixels for one in made]))
        assert (labels == digits.labels).mean() > (0.93 if tight else 0.96)
        assert (labels == net(digits.images)).mean() > (0.94 if tight else 0.98)
    assert np.mean([one.notes == (("dark on light, inverted",) * dark) for one in made]) > 0.98


def test_prepared_digit_has_mnist_format():
    pixels = SEVEN.astype(float)
    rows, columns = np.nonzero(pixels)
    assert SEVEN.shape == (28, 28) and SEVEN.dtype == np.uint8 and SEVEN.max() == 255
    assert max(np.ptp(rows), np.ptp(columns)) + 1 == 20
    y, x = np.mgrid[:28, :28] + 0.5
    assert abs((pixels * y).sum() / pixels.sum() - 14) <= 0.5
    assert abs((pixels * x).sum() / pixels.sum() - 14) <= 0.5


@pytest.mark.parametrize("how", ["from the left", "a lamp's", "a hard shadow"])
def test_uneven_light_does_not_change_the_digit(how):
    y, x = np.mgrid[-1:1:400j, -1:1:300j]
    light = {
        "from the left": 0.7 + 0.3 * x,
        "a lamp's": np.exp(-(x * x + y * y) / 2),
        "a hard shadow": np.where(x < 0.1, 0.55, 1.0),
    }[how]
    page = np.asarray(seven(300, 400, stroke=22)) * light
    page += np.random.default_rng(5).normal(0, 12, page.shape)
    assert alike(as_mnist(np.clip(page, 0, 255).astype(np.float32)).pixels, SEVEN)


def test_several_digits_give_a_note():
    made = as_mnist(np.tile(np.asarray(seven(), np.float32), 3))
    assert "3 separate digits; only the largest is read" in made.notes
    assert alike(made.pixels, SEVEN)


@pytest.mark.parametrize(
    "page",
    [
        np.full((100, 80), 255), np.zeros((1, 1)), np.full((2000, 3), 128),
        np.tile(np.linspace(0, 255, 90), (70, 1)),
        np.random.default_rng(2).normal(128, 60, (300, 400)).clip(0, 255),
        np.random.default_rng(3).integers(0, 256, (28, 28)),
    ],
    ids=["white", "one pixel", "narrow", "shade", "noise", "28x28"],
)  # fmt: skip
def test_picture_without_a_digit_is_refused(page):
    with pytest.raises(LenetError, match="^expected a digit, found (a blank|only noise|ink in)"):
        as_mnist(page.astype(np.float32))


def test_as_is_only_resizes(put):
    image = seven(56, 56)
    made = read_digit(put(image), as_is=True)
    assert made.notes == ("resized from 56x56",)
    assert made.pixels.shape == (28, 28) and made.pixels[0, 0] == 235
    exact = np.arange(784, dtype=np.uint8).reshape(28, 28)
    kept = read_digit(put(Image.fromarray(exact)), as_is=True)
    assert kept.notes == () and (kept.pixels == exact).all()


@given(st.integers(1, 24), st.integers(1, 24), st.floats(0.05, 0.95), st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_islands_match_a_flood_fill(height, width, share, seed):
    mask = np.random.default_rng(seed).random((height, width)) < share
    found, numbers = islands(mask)
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    floods = set()
    while left:
        edge, part = [left.pop()], []
        while edge:
            y, x = edge.pop()
            part.append((y, x))
            near = {(y + a, x + b) for a in (-1, 0, 1) for b in (-1, 0, 1)} & left
            left -= near
            edge += near
        floods.add(frozenset(part))
    assert ((numbers >= 0) == mask).all()
    ours = {frozenset(map(tuple, np.argwhere(numbers == one.number).tolist())) for one in found}
    assert ours == floods and len(found) == len(floods)
    for one in found:
        rows, columns = np.nonzero(numbers == one.number)
        assert (one.top, one.bottom, one.left, one.right, one.mass) == (
            rows.min(), rows.max() + 1, columns.min(), columns.max() + 1, len(rows),
        )  # fmt: skip


def chunk(name, data):
    body = name + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def png(width, height, data, more=b""):
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    end = chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + end


def tiff(**changed):
    tags = {256: (4, 1, 50), 257: (4, 1, 50), 258: (3, 1, 8), 259: (3, 1, 1), 262: (3, 1, 1),
            273: (4, 1, 300), 277: (3, 1, 1), 278: (4, 1, 50), 279: (4, 1, 2500)}  # fmt: skip
    tags |= {int(tag[1:]): entry for tag, entry in changed.items()}
    body = b"II*\0" + struct.pack("<IH", 8, len(tags))
    for tag in sorted(tags):
        body += struct.pack("<HHII", tag, *tags[tag])
    return (body + struct.pack("<I", 0)).ljust(300, b"\0") + bytes(2500)


LARGE = r"a \w+ picture of at most [\d,]+ pixels, found more$"
DAMAGED = r"a whole \w+ picture, found a damaged one \("
BOMBS = {
    "png": (lambda: png(60_000, 60_000, zlib.compress(bytes(100))), LARGE),
    "pixels": (lambda: png(6400, 6251, zlib.compress(bytes(100))), "found 6,400x6,251 pixels"),
    "text": (lambda: png(9, 9, zlib.compress(bytes(90)),
                         chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 26)))), "too large"),
    "crc": (lambda: png(9, 9, zlib.compress(bytes(90)))[:-16] + bytes(4) + chunk(b"IEND", b""),
            DAMAGED),
    "tiff": (lambda: tiff(t256=(4, 1, 60_000), t257=(4, 1, 60_000)), LARGE),
    "strip": (lambda: tiff(t256=(4, 1, 9_000), t257=(4, 1, 4_000), t278=(4, 1, 4_000),
                           t259=(3, 1, 5), t258=(3, 1, 16)), "more than 200,000,000 bytes"),
    "comment": (lambda: b"GIF89a" + bytes(5 << 20),
                "a GIF picture of at most 4,194,304 bytes, found 5,"),
    "runs": (lambda: b"BM" + struct.pack("<IIIIiiHHI", 0, 0, 54, 40, 90, 90, 1, 8, 1)
             + bytes(5 << 20), "bmp_rle in more than 4,194,304 bytes"),
    "long text": (lambda: b"P2 3000 3000 255\n" + b"0 " * (3 << 20), "ppm_plain in more than"),
    "progressive": (lambda: saved(Image.new("RGB", (5200, 5200)), "JPEG", progressive=True),
                    "of at most 26,666,666 pixels, found 5,200x5,200 pixels"),
    "scans": (lambda: saved(Image.new("L", (9_000, 9_000)), "JPEG") + b"\xff\xda" * 40,
              "more scans than a picture"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_decoding(put, name, monkeypatch):
    make, said = BOMBS[name]
    path = put(make())
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(LenetError, match=rf": expected .*({said})"):
        read_grey(path)


def test_truncated_files_are_refused_despite_pillow_setting(put, monkeypatch):
    whole = saved(seven(), "JPEG")
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(LenetError, match="cut off"):
        read_grey(put(whole[: len(whole) // 2]))


def test_nonfinite_pixels_are_refused(put):
    with pytest.raises(LenetError, match="found NaN or infinity in it"):
        read_grey(put(b"Pf\n3 3\n-1.0\n" + struct.pack("<9f", *[math.nan] * 9)))


MEASURED = """
import resource, sys
from lenetgpu.pictures import read_digit
peaks = []
for path in sys.argv[1:]:
    read_digit(path, True)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[1] - peaks[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize(
    ("form", "mode", "size"),
    [("PNG", "RGBA", (6400, 6250)), ("TIFF", "CMYK", (6400, 6250)), ("WEBP", "RGB", (4096, 3072))],
)
def test_largest_picture_needs_little_extra_memory(put, form, mode, size):
    how = {"TIFF": {"compression": "tiff_adobe_deflate"}, "PNG": {"compress_level": 1}}
    large = put(Image.new(mode, size), "large", form=form, **how.get(form, {}))
    small = put(Image.new(mode, (30, 30)), "small", form=form)
    grown = subprocess.check_output([sys.executable, "-c", MEASURED, small, large])
    assert int(grown) * 1024 < 215_000_000


@pytest.mark.parametrize("mode", ["RGBA", "L", "I;16", "P"])
@pytest.mark.parametrize("size", [(1026, 300), (3, 9_000)])
def test_strips_average_like_the_whole(put, mode, size, monkeypatch):
    """Strips and a single pass give the same pixels; for grey images they match NumPy."""
    rng = np.random.default_rng(3)
    values = rng.integers(0, 256, size[::-1]).astype(np.uint8)
    if mode == "I;16":
        image = Image.fromarray(values.astype(np.uint16) * 257)
    else:
        image = Image.fromarray(values).convert("RGB").convert(mode)
    path = put(image, form="PNG")
    found = []
    for pixels in (2_000, 1 << 40):
        monkeypatch.setattr(read, "_STRIP", pixels)
        found.append(read_grey(path)[0])
    assert (found[0] == found[1]).all() and max(found[0].shape) <= 512
    if mode in ("L", "I;16"):
        assert np.allclose(found[0], shrunk(values.astype(np.float32)), atol=0.6)


@pytest.mark.parametrize("form", FORMS)
def test_truncated_files_are_refused(put, form):
    whole = saved(
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 70)).astype(np.uint8)), form
    )
    read_grey(put(whole))
    for share in (0.02, 0.7, 0.97):
        with pytest.raises(LenetError, match=": expected (a whole|a picture)"):
            read_grey(put(whole[: int(share * len(whole))]))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"), (b"hello", "5 bytes in no known format"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "in HEIC form"), (b"%!PS-Adobe-3.0 EPSF", "PostScript"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"), (b"\0\0\1\0\1\0\x10\x10", "8 bytes"),
        (b"8BPS\0\1", "Photoshop"), (b"\xff\x0a\xfa", "JPEG XL"), (b"%PDF-", "PDF"),
        (b"\0\0\0\x1cftypmif1", "HEIF"), (b"\0\0\0\x1cftypavif", "AVIF"), (b"<svg x", "SVG"),
    ],
)  # fmt: skip
def test_other_file_types_are_named(put, data, found):
    with pytest.raises(LenetError, match=found):
        read_grey(put(data))


def test_pillow_prints_nothing(put):
    """Warnings and logs of Pillow do not reach the screen."""
    path = put(tiff(t282=(5, 1, 9_999_999), t700=(1, 4_000, 9_999_999)))
    code = """
import sys
from lenetgpu.errors import LenetError
from lenetgpu.pictures import read_digit
try: read_digit(sys.argv[1])
except LenetError: pass
"""
    words = [sys.executable, "-W", "always", "-c", code, path]
    assert subprocess.check_output(words, stderr=subprocess.STDOUT) == b""


@pytest.mark.parametrize(
    ("way", "mode", "found"),
    [("group3", "1", "a damaged one .Fax3Decode1D: Bad code"), ("jpeg", "L", "300x8 pixels in a"),
     ("group4", "1", "a damaged one .Group 4 data without 99 of its rows")],
)  # fmt: skip
def test_damaged_tiff_is_refused_without_other_output(put, capfd, way, mode, found):
    """Messages that libtiff prints, and missing rows that it ignores, become the error."""
    image = Image.new("1", (300, 200), 1)
    ImageDraw.Draw(image).line([(80, 40), (200, 40), (120, 170)], 0, 12)
    path = put(image.convert(mode), form="TIFF", compression=way)
    assert read_grey(path)[0].shape == (200, 300)
    data = bytearray(path.read_bytes())
    with Image.open(path) as opened:
        middle = opened.tag_v2[273][0] + opened.tag_v2[279][0] // 2
    at, change = (data.find(b"\xff\xc0") + 5, b"\0\x08") if way == "jpeg" else (middle, bytes(6))
    data[at : at + len(change)] = change
    with pytest.raises(LenetError, match=f"found {found}"):
        read_grey(put(data))
    assert capfd.readouterr() == ("", "")
