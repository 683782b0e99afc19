"""Pages opened in a headless browser: console messages, requests, layout."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PHONE, DESK = 390, 1440
_ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


@dataclass
class Opened:
    """A Playwright page; `console` lists errors and warnings, `requests` URLs outside the page.

    The page itself, data URIs and blobs are not listed in `requests`.
    """

    page: Any
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def overflow(self) -> int:
        """Return the width in pixels by which the page exceeds its window."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )


@dataclass
class Browser:
    """Headless Chromium."""

    chromium: Any

    @contextmanager
    def open(self, path: Path, width: int = DESK, dark: bool = False) -> Iterator[Opened]:
        """Open `path` in a window `width` pixels wide; it is closed when the block ends."""
        scheme = "dark" if dark else "light"
        page = self.chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.set_default_timeout(120_000)
        seen, own = Opened(page), path.resolve().as_uri()

        def asked(request: Any) -> None:
            if request.url != own and not request.url.startswith(("data:", "blob:")):
                seen.requests.append(request.url)

        def said(message: Any) -> None:
            if message.type in ("error", "warning"):
                seen.console.append(message.text)

        page.on("request", asked)
        page.on("console", said)
        page.on("pageerror", lambda error: seen.console.append(str(error)))
        try:
            page.goto(own, wait_until="load")
            yield seen
        finally:
            page.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Yield Chromium for a module's tests, or skip them if it or Playwright is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: extra dev")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("needs chromium on the PATH")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=program, args=_ARGUMENTS.split(), timeout=120_000
        )
        yield Browser(opened)
        opened.close()
