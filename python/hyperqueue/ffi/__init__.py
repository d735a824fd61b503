"""The layer below the classes for users."""

from __future__ import annotations

import functools
import subprocess

from hq._bridge import find_hq

JobId = int
TaskId = int


@functools.lru_cache(maxsize=1)
def get_version() -> str:
    """Returns the version of the `hq` program. The server must have the same version."""
    done = subprocess.run([find_hq(), "--version"], check=True, capture_output=True, text=True)
    return done.stdout.split()[-1].lstrip("v")
