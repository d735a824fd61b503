"""Tasks that call a Python function.

Each of these tasks imports this module ahead of its function: it imports no more than that needs.
"""

from __future__ import annotations

import os
import sys

from ._load import load

# Defined as in `typing`, which would have to be imported.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._function import CODE, PythonEnv, PythonFunction, cloud_wrap

__all__ = ["CODE", "PythonEnv", "PythonFunction", "cloud_wrap", "task_main"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _function

    return getattr(_function, name)


def task_main() -> None:
    """The main function of a task: calls the function that standard input contains."""
    chosen = os.environ.get("HQ_PYLOG", "").upper()
    if chosen in ("DEBUG", "INFO", "WARNING", "ERROR"):
        import logging

        logging.basicConfig(level=getattr(logging, chosen), format="%(levelname)s:%(asctime)s:%(name)s: %(message)s")
    try:
        fn, args, kwargs = load(sys.stdin.buffer.read())
        fn(*args, **kwargs)
    except Exception:
        import traceback

        text = traceback.format_exc()
        path = os.environ.get("HQ_ERROR_FILENAME")
        if path:
            with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        sys.stderr.write(text)
        sys.stderr.flush()
        sys.exit(1)
