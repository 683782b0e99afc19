"""Take docs/page-1440.png and docs/page-390.png: the page of docs/measured/nvidia-h200.

The wide one is light, the one as wide as a phone dark; each shows the page's first screens.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

import click

from lenetgpu.lab.report import ReportRequest, run_report
from lenetgpu.store import write_atomically

ROOT = Path(__file__).resolve().parent.parent
DOCS, FILES = ROOT / "docs", ROOT / "docs" / "measured" / "nvidia-h200"
SHOTS = ((1440, 4600, "light"), (390, 4600, "dark"))
"""Width and height in pixels, and the colour scheme."""
_COLOURS = 128


def smaller(png: bytes) -> bytes:
    """The picture in a palette: a page has few colours."""
    from PIL import Image

    out = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def shot(chromium: Any, page: Path, width: int, height: int, scheme: str) -> bytes:
    """The top of the page, every chart drawn."""
    opened = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened.goto(page.as_uri(), wait_until="load")
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.wait_for_function("document.querySelectorAll('.plot:not(.drawn)').length === 0")
    clip = {"x": 0, "y": 0, "width": width, "height": height}
    png: bytes = opened.screenshot(full_page=True, clip=clip)
    opened.close()
    return png


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=DOCS, help="where they go")
def main(folder: Path) -> None:
    """Take both pictures; needs Chromium and Playwright (extra dev)."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise click.ClickException("expected chromium on the PATH, found none")
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        page = Path(made) / "page.html"
        run_report(ReportRequest(page, (FILES,)), lambda *_: None)
        arguments = ["--headless", "--no-sandbox", "--disable-gpu"]
        chromium = playwright.chromium.launch(executable_path=program, args=arguments)
        for width, height, scheme in SHOTS:
            target = folder / f"page-{width}.png"
            write_atomically(target, smaller(shot(chromium, page, width, height, scheme)))
            click.echo(f"{target}: {target.stat().st_size / 1e3:,.0f} kB")
        chromium.close()


if __name__ == "__main__":
    main()
