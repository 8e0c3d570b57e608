"""The site of docs/: it builds, each page is in it, and a link to nowhere fails."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

from conftest import ROOT


def build(root: pathlib.Path, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(root / "deploy/site/mkdocs.yml"), "-d", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})


def test_every_page_is_on_the_site(tmp_path: pathlib.Path) -> None:
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        path = page.relative_to(ROOT / "docs").with_suffix("")
        assert (tmp_path / ("" if path.name == "README" else path) / "index.html").is_file(), path
    assert "engine/serve/served_pipeline.h" in (tmp_path / "life_of_a_request/index.html").read_text()


def test_a_link_to_nowhere_ends_the_build(tmp_path: pathlib.Path) -> None:
    for folder in ("docs", "deploy/site"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    page = tmp_path / "docs/glossary.md"
    for link, complaint in (("[x](nowhere.md)", "nowhere.md"), ("[x](planning.md#nowhere)", "#nowhere")):
        page.write_text(f"{(ROOT / 'docs/glossary.md').read_text()}\n\n{link}\n")
        done = build(tmp_path, tmp_path / "site")
        assert done.returncode != 0 and complaint in done.stderr, link
