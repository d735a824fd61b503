"""Loads a function and its arguments without the modules that made the pickle.

Importing `pickle` and `cloudpickle` takes several times as long as starting an interpreter, and each task would do it. This module
contains what is needed to load functions in `__main__`, as in `cloudpickle`. For anything else, such as classes, it imports `cloudpickle`.
"""

from __future__ import annotations

import io
import sys

try:
    from _pickle import Unpickler
except ImportError:
    # This is a Python other than CPython.
    from pickle import Unpickler

# Defined as in `typing`, which would have to be imported.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict


# Defined as in `types`, which is not imported either.
_FUNCTION: Any = type(lambda: None)


def _make_function(code: Any, names: Dict[str, Any], *rest: Any) -> Any:
    names["__builtins__"] = __builtins__
    return _FUNCTION(code, names, *rest)


def _builtin_type(name: str) -> Any:
    if name == "CodeType":
        return type(_make_function.__code__)
    import types

    return getattr(types, name)


def _subimport(name: str) -> Any:
    # `__import__` returns the outermost package.
    __import__(name)
    return sys.modules[name]


def _make_empty_cell() -> Any:
    if TYPE_CHECKING:
        cell: Any = None
    return (lambda: cell).__closure__[0]  # type: ignore[index]


def _make_cell(*value: Any) -> Any:
    cell = _make_empty_cell()
    if value:
        (cell.cell_contents,) = value
    return cell


def _function_setstate(function: Any, states: Any) -> None:
    variables, slots = states
    function.__dict__.update(variables)
    names, closure = slots.pop("__globals__"), slots.pop("__closure__")
    # The modules only had to be imported.
    slots.pop("_cloudpickle_submodules", None)
    function.__globals__.update(names)
    function.__globals__["__builtins__"] = __builtins__
    for ours, cell in zip(function.__closure__ or (), closure or ()):
        try:
            ours.cell_contents = cell.cell_contents
        except ValueError:
            # The cell is empty.
            continue
    for name, value in slots.items():
        setattr(function, name, value)


_KNOWN: Dict[str, Callable[..., Any]] = {
    "_builtin_type": _builtin_type,
    "_function_setstate": _function_setstate,
    "_make_cell": _make_cell,
    "_make_empty_cell": _make_empty_cell,
    "_make_function": _make_function,
    "subimport": _subimport,
}


class _Loader(Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        known = _KNOWN.get(name) if module in ("cloudpickle.cloudpickle", "cloudpickle.cloudpickle_fast") else None
        return super().find_class(module, name) if known is None else known


def load(content: bytes) -> Any:
    try:
        return _Loader(io.BytesIO(content)).load()
    except Exception:
        # Another release of `cloudpickle` may pass something else. If the pickle itself is faulty, the error occurs
        # again.
        import pickle

        return pickle.loads(content)
