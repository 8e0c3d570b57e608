"""Links from a page to files that are no pages: on the site their path stays, as text."""

import pathlib
import posixpath
import re

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Called by MkDocs for each page."""

    def of_the_site(match: re.Match[str]) -> str:
        text, target = match[1], match[2].split("#")[0]
        if not target or "://" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), target))
        if path.startswith("docs/") and files.get_file_from_path(path.removeprefix("docs/")) is not None:
            return match[0]
        if not (_ROOT / path).exists():
            return match[0]  # and the build fails
        return text if path in text else f"{text} (`{path}`)"

    return _LINK.sub(of_the_site, markdown)
