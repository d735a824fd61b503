"""The Python interface of HyperQueue, on top of the package `hq`.

Scripts written for HyperQueue's own package run unchanged. Results of functions are not transported; `hq.Executor`
does that.

Tasks that call functions also import this package, each in a separate process, so its parts are imported only when they are used.
"""

from __future__ import annotations

# Defined as in `typing`, which would have to be imported.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .client import Client
    from .cluster import LocalCluster
    from .ffi import get_version
    from .job import Job

__all__ = ["Client", "Job", "LocalCluster", "get_version"]
__version__ = "0.26.2.dev0"

_HOMES = {"Client": "client", "Job": "job", "LocalCluster": "cluster", "get_version": "ffi"}
_PARTS = ("client", "cluster", "common", "ffi", "job", "output", "task", "utils", "validation", "visualization")


def __getattr__(name: str) -> Any:
    import importlib

    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_PARTS})
