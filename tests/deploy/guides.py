"""Does what the guides say, one after the other: the whole change and every command, each in a copy of the tree.

Usage: guides.py [GUIDE...]      (all of docs/guides; a guide builds for some ten minutes)

Run by tests/run.sh --long. The copies lie in build/guides and stay there, so that a failure can be looked at.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
START = 'syntax = "proto3";\n\npackage penstock.v1;\n\n'


def blocks(text: str, language: str) -> list[tuple[str, str]]:
    """Each block of a language, with the line of text before it; that is empty where another block ends there."""
    return re.findall(rf"(?:^([^\n]*)\n\n)?^```{language}\n(.*?)^```$", text, re.S | re.M)


def copied_tree(guide: pathlib.Path) -> pathlib.Path:
    tree = ROOT / "build/guides" / guide.stem
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0")[:-1]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    (tree / "build").mkdir()
    (tree / "build/deps").symlink_to((ROOT / "build/deps").resolve())
    return tree


def write_new_files(text: str, tree: pathlib.Path) -> None:
    for before, block in blocks(text, "cpp"):
        found = re.search(r"`(\w+\.(?:cc|h))`, in `([\w/]+)`", before.splitlines()[-1])
        assert found, f"which file is this: {before.splitlines()[-1]}"
        (tree / found[2] / found[1]).write_text(block)
    for before, block in blocks(text, "proto"):  # several files, each begins with an import that says which
        folder = re.findall(r"in `([\w/]+)`", before.splitlines()[-1])[0]
        for part in re.split(r"^(?=import .*// \w+\.proto$)", block, flags=re.M)[1:]:
            name = re.search(r"// (\w+\.proto)$", part.splitlines()[0])
            assert name
            (tree / folder / name[1]).write_text(START + part.replace(f"  // {name[1]}", "", 1))


def follow(guide: pathlib.Path) -> bool:
    text = guide.read_text()
    tree = copied_tree(guide)
    write_new_files(text, tree)
    for _, diff in blocks(text, "diff"):
        subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True, cwd=tree)
    python = "".join(f"build/deps/test-venv/bin/python - <<'END'\n{block}END\n" for _, block in blocks(text, "python"))
    commands = "".join(block for _, block in blocks(text, "sh"))
    # A daemon in the background is up before the next command, and goes with the shell.
    commands = re.sub(r"^(.*penstockd.*|\$PENSTOCKD .*) &$", r"\1 &\nbuild/release/client/cli/penstock health --wait 60", commands, flags=re.M)
    script = f"set -euo pipefail\ntrap 'kill $(jobs -p)' EXIT\nexport PYTHONPATH=client/python\n{commands}{python}"
    return subprocess.run(["bash", "-c", script], cwd=tree).returncode == 0


def someone_serves() -> bool:
    """Whether a daemon has the port already that the guides' own would have: their commands would ask that one."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", 8470)) == 0


def main(names: list[str]) -> int:
    if someone_serves():
        print("a daemon runs on port 8470; the guides start one there")
        return 1
    guides = [guide for guide in sorted((ROOT / "docs/guides").glob("*.md")) if not names or guide.stem in names]
    failed = [guide.stem for guide in guides if not follow(guide)]
    print(f"{len(guides) - len(failed)} of {len(guides)} guides work" + (f"; these don't: {', '.join(failed)}" if failed else ""))
    return 1 if failed or not guides else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
