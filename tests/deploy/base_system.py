"""Libraries of each Debian: its essential ones, those that its name service opens, and what the compiler's runtime is."""

from __future__ import annotations

import re

BASE = re.compile(r"(ld-linux-x86-64|lib(c|dl|gcc_s|m|nss_\w+|pthread|resolv|rt|stdc\+\+|util))\.so\.[\d.]+$")
FOLDER = re.compile(r"^/(usr/)?lib/x86_64-linux-gnu/")
