"""Settings that differ from those of most machines: a zone that is nobody's, a language without UTF-8, of Python too."""

from __future__ import annotations

OTHERWISE = {"TZ": "Pacific/Chatham", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
