"""Installs the packages in a system of their own and trains, as README.md says; packages.py runs it there, with that system's
Python.

Usage: packages_inside.py       (/packages, /wheels of what the client needs, /torch a site-packages, /README.md, /LICENSE)

Prints a JSON document: the seconds, the libraries that the daemon had loaded, and what the example printed.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time


def main() -> int:
    compilers = [name for name in ("cc", "gcc", "g++", "clang", "ld", "make", "cmake") if shutil.which(name)]
    if compilers:
        print(f"this system has {', '.join(compilers)}", file=sys.stderr)
        return 1
    start = time.monotonic()
    venv = "/tmp/venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    (site,) = glob.glob(f"{venv}/lib/python3*/site-packages")
    with open(f"{site}/torch.pth", "w") as path:
        path.write("/torch\n")
    before_pip = time.monotonic()
    pip = [f"{venv}/bin/pip", "install", "--quiet", "--no-index", "--find-links", "/wheels"]
    subprocess.run([*pip, *glob.glob("/packages/*.whl")], check=True)
    after_pip = time.monotonic()
    daemon = subprocess.Popen([f"{venv}/bin/penstockd", "--state-dir=/tmp/state", "--drain-announce=0s"])
    try:
        subprocess.run([f"{venv}/bin/penstock", "health", "readiness", "--wait", "60"], check=True)
        with open("/README.md") as page:
            program = re.findall(r"```python\n(.*?)```", page.read(), re.DOTALL)[0]
        trained = subprocess.run([f"{venv}/bin/python", "-c", program], cwd="/", capture_output=True, text=True)
        if trained.returncode:
            print(trained.stderr, file=sys.stderr)
            return 1
        end = time.monotonic()
        with open(f"/proc/{daemon.pid}/maps") as maps:
            loaded = sorted(set(re.findall(r"^\S+ r.*? (/\S+\.so\S*)$", maps.read(), re.M)))
        daemon.send_signal(signal.SIGTERM)
        if daemon.wait(60) != 0:
            print(f"penstockd ended with {daemon.returncode}", file=sys.stderr)
            return 1
    finally:
        daemon.kill()
    about = {"python": sys.version.split()[0], "user": os.getuid(), "loaded": loaded, "printed": trained.stdout}
    seconds = {"environment": before_pip - start, "pip": after_pip - before_pip, "pip to trained": end - before_pip}
    print(json.dumps({**about, "seconds": {name: round(value, 1) for name, value in seconds.items()}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
