"""Layer below the classes for users."""

from __future__ import annotations

import functools
import subprocess

from hq._bridge import find_hq


@functools.lru_cache(maxsize=1)
def get_version() -> str:
    """Version of the `hq` program; the server's has to be the same."""
    done = subprocess.run([find_hq(), "--version"], check=True, capture_output=True, text=True)
    return done.stdout.split()[-1].lstrip("v")
