"""Takes pictures of pages, into one folder."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import tempfile

import chromium

PACKAGES = "fonts-dejavu-core pngquant"  # what Debian calls the rest of what pictures need


class Camera:
    def __init__(self, browser: chromium.Browser, folder: pathlib.Path) -> None:
        self._browser, self._folder = browser, folder

    def shoot(self, url: str, name: str, dark: bool = False) -> None:
        self.take(self._browser.open(url, scripts=False, dark=dark), name)

    def shoot_text(self, text: str, name: str, dark: bool = False) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".html") as file:
            file.write(text)
            file.flush()
            self.shoot(f"file://{file.name}", name, dark)

    def take(self, page: chromium.Page, name: str, *selectors: str) -> None:
        """A page as it is now, or the elements that are named; smaller where pngquant is installed."""
        path = self._folder / name
        page.screenshot(path, *selectors)
        if shutil.which("pngquant"):
            subprocess.run(["pngquant", "--force", "--output", path, path], check=True)
        print(f"{name}: {path.stat().st_size >> 10} KiB", flush=True)
