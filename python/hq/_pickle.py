"""Converts functions and arguments to bytes and back.

Objects in a module are sent by name. Objects in `__main__`, in a notebook or inside a function have no name on a worker
and are sent by value: with cloudpickle if installed, otherwise functions as code with the variables that they use.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import io
import json
import marshal
import mmap
import operator
import os
import pickle
import sys
import types
from concurrent.futures import CancelledError, Future
from typing import Any, Callable

from ._held import Held, held_by
from ._interpreter import KEY_SIZE, MEMO, keep_in, own_file
from ._spool import OWN_FILE_MIN, Spool, Stored, StoreError
from .errors import (
    CallDied,
    CallError,
    CallKilled,
    InitFailed,
    NotPicklable,
    OutOfMemory,
    RemoteError,
    RemoteTraceback,
    TimeLimitReached,
    ValueTooLarge,
    WorkerLost,
    WrongPython,
    remote_error,
)

PROTOCOL = 5

# First byte of an outcome; see _interpreter.py.
VALUE, EXCEPTION, DESCRIBED, IN_FILE, UNPICKLABLE, INIT_FAILED, MISFIT, HELD, LOST, TOO_LARGE, DIED = range(11)

# Immutable, so a call cannot distinguish one object from two equal ones.
_TEXTS = frozenset({bytes, str})
#: Types of objects that are no buffers, as far as they are known.
_without_buffer: set[type] = set()
_TYPES_KEPT = 4096
#: A pickle of at most this size may go to the server if it cannot be stored in a file.
_INSTEAD_MAX = 1 << 20
_SIMPLE = frozenset({int, float, str, bytes, bool, type(None), complex})

_CODE = (
    "__import__('types').FunctionType(__import__('marshal').loads(code), {**names, MODULES}, name, defaults, "
    "tuple(map(__import__('types').CellType, cells)))"
)
#: Rebuilds a proxy of a manager in a process that has the key of another manager, or none.
_REBUILD = "(setattr(__import__('multiprocessing').current_process(), 'authkey', key), function(*args))[1]"
_CACHED = "__import__('functools').lru_cache(maxsize, typed)(function)"


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


class Needs:
    """Futures among the arguments of a call, at any depth. Finished futures are replaced by their values."""

    __slots__ = ("held", "is_local", "known", "missing", "spool", "stored")

    def __init__(self, spool: Spool | None = None, is_local: bool = False) -> None:
        #: Where long values are stored. `None` = they stay among the arguments.
        self.spool = spool
        #: Whether the keys of managers can be sent with their proxies, because they do not leave this machine.
        self.is_local = is_local if spool is None else spool.is_local
        self.missing: set[Future[Any]] = set()
        #: Values that workers hold. The call refers to them by their positions in this list.
        self.held: list[Held] = []
        #: Files with arguments.
        self.stored: list[Stored] = []
        #: Long objects by id, with their files and what stands for them.
        self.known: dict[int, tuple[Any, Stored, Any]] = {}

    def replace(self, obj: Any) -> Any:
        """Returns what stands for a future, a proxy of a manager or a long buffer, or `NotImplemented` for other objects."""
        kind = type(obj)
        if kind in _without_buffer:
            return NotImplemented
        if isinstance(obj, Future):
            return self.reduce(obj)
        managers = sys.modules.get("multiprocessing.managers")
        if managers is not None and isinstance(obj, managers.BaseProxy):
            if not self.is_local:
                return NotImplemented
            function, args = obj.__reduce__()
            return eval, (_REBUILD, {"key": bytes(obj._authkey), "function": function, "args": args})
        try:
            view = memoryview(obj)
        except TypeError:
            if len(_without_buffer) >= _TYPES_KEPT:
                _without_buffer.clear()
            _without_buffer.add(kind)
            return NotImplemented
        except Exception:
            # An array of dates, for instance.
            return NotImplemented
        # Other objects, which may refer to each other, stay in one pickle.
        if self.spool is None or view.nbytes < OWN_FILE_MIN or "O" in view.format:
            return NotImplemented
        try:
            return self.store(obj)
        except NotPicklable:
            return NotImplemented

    def store(self, obj: Any) -> Any:
        """Moves a long object into a file."""
        if self.missing:
            # The arguments are pickled again when all values exist.
            return int, ()
        known = self.known.get(id(obj))
        if known is None:
            assert self.spool is not None
            known = self._add(obj, store(obj, self.spool))
        return known[2]

    def shorter(self, text: Any) -> Any:
        """Returns what stands for a long text among the arguments."""
        return _Replaced(self.store(text)) if type(text) in _TEXTS and len(text) >= OWN_FILE_MIN else text

    def payload(self, function: bytes, arguments: bytes, is_chunk: bool) -> bytes:
        """Returns a call for the server. What is too long for it is moved into files."""
        if self.spool is not None and not self.missing:
            for _ in range(2):
                if len(function) + len(arguments) <= self.spool.long:
                    break
                if len(function) > len(arguments):
                    function = self.shorten(function)
                else:
                    arguments = self.shorten(arguments)
        return b"".join((b"\1" if is_chunk else b"\0", len(function).to_bytes(4, "little"), function, arguments))

    def shorten(self, pickled: bytes) -> bytes:
        """Moves a pickle into a file. If that is impossible, the server gets a short one itself."""
        assert self.spool is not None
        try:
            stored = self.spool.store(pickled)
        except StoreError:
            if len(pickled) > _INSTEAD_MAX:
                raise
            return pickled
        return pickle.dumps(_Replaced(self._add(pickled, stored)[2]), PROTOCOL)

    def _add(self, obj: Any, stored: Stored) -> tuple[Any, Stored, Any]:
        known = self.known[id(obj)] = obj, stored, self._load(stored, len(self.stored))
        return known

    def _load(self, stored: Stored, number: int) -> Any:
        """Returns what loads a file. Objects with different numbers may share a file, but are different objects in a call."""
        self.stored.append(stored)
        return eval, (_LOAD_FILE, {"path": os.fsencode(stored.path), "number": number})

    def reduce(self, future: Future[Any]) -> Any:
        if future.done():
            stored = getattr(future, "_stored", None)
            if stored is not None and self.spool is not None and stored.spool is self.spool:
                if not os.path.exists(stored.path):
                    # A cleaner of temporary files has removed it.
                    stored = future._stored = store(future.result(), self.spool)  # type: ignore[attr-defined]
                return self._load(stored, id(future))
            error = CancelledError() if future.cancelled() else future.exception()
            if error is not None:
                raise NeedFailed(error)
            held = held_by(future)
            if held is None:
                return operator.getitem, ((future.result(),), 0)
            if held not in self.held:
                self.held.append(held)
            return _hq_values.load, (self.held.index(held),)
        self.missing.add(future)
        # The arguments are pickled again when all values exist.
        return int, ()


class _Replaced:
    """Pickles as something else."""

    def __init__(self, reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


class FileGone(Exception):
    """The file with the outcome of a call is missing."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class NeedFailed(Exception):
    """A future among the arguments has failed, or was cancelled."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class _Replacing:
    """The first base class of picklers: replaces what :class:`Needs` does. :meth:`other` reduces the remaining objects."""

    def __init__(self, file: io.BytesIO, needs: Needs | None, buffers: list[Any] | None) -> None:
        super().__init__(file, PROTOCOL, buffer_callback=keep_in(buffers))  # type: ignore[call-arg, no-untyped-call]
        self.needs = needs

    def reducer_override(self, obj: Any) -> Any:
        if self.needs is not None:
            replaced = self.needs.replace(obj)
            if replaced is not NotImplemented:
                return replaced
        return self.other(obj)

    def other(self, obj: Any) -> Any:
        raise NotImplementedError


class _Pickler(_Replacing, pickle.Pickler):
    """Detects objects that a worker could not find."""

    def other(self, obj: Any) -> Any:
        if isinstance(obj, _FUNCTIONS):
            if _has_no_name(obj):
                raise _ByValue
        elif isinstance(obj, type) and obj.__module__ == "__main__":
            raise _ByValue
        return NotImplemented


class _CodePickler(_Replacing, pickle.Pickler):
    """Sends functions without a name by their code."""

    def __init__(self, file: io.BytesIO, needs: Needs | None, buffers: list[Any] | None) -> None:
        super().__init__(file, needs, buffers)
        self.under_way: set[int] = set()

    def other(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj.__module__ == "__main__":
            raise NotPicklable(
                f"the class {obj.__qualname__} of __main__ can only be sent with cloudpickle (pip install cloudpickle), or "
                "from a module of its own"
            )
        if not isinstance(obj, _FUNCTIONS) or not _has_no_name(obj):
            return NotImplemented
        if not isinstance(obj, types.FunctionType):
            return _reduce_cached(obj)
        if id(obj) in self.under_way:
            raise NotPicklable(
                f"the function {obj.__qualname__}, which uses itself, can only be sent with cloudpickle (pip install "
                "cloudpickle), or from a module of its own"
            )
        self.under_way.add(id(obj))
        names = {name: obj.__globals__[name] for name in _used(obj.__code__) if name in obj.__globals__}
        modules = {name for name, value in names.items() if isinstance(value, types.ModuleType)}
        found = {name: names[name].__name__ for name in sorted(modules)}
        found["__builtins__"] = "builtins"
        imports = ", ".join(f"{name!r}: __import__('importlib').import_module({module!r})" for name, module in found.items())
        code = _CODE.replace("MODULES", imports)
        parts = {
            "code": marshal.dumps(obj.__code__),
            "names": {name: value for name, value in names.items() if name not in modules},
            "name": obj.__name__,
            "defaults": obj.__defaults__,
            "cells": [cell.cell_contents for cell in obj.__closure__ or ()],
        }
        own = {"__kwdefaults__": obj.__kwdefaults__, "__qualname__": obj.__qualname__, "__doc__": obj.__doc__}
        return eval, (code, parts), (obj.__dict__, own)


class _ByName(_Replacing, pickle.Pickler):
    """Refers to functions and classes of the script by name. Interpreters import the script for this, as `multiprocessing` does."""

    def __init__(self, file: io.BytesIO, needs: Needs | None, buffers: list[Any] | None, script: tuple[Any, ...]) -> None:
        super().__init__(file, needs, buffers)
        self.script = script

    def other(self, obj: Any) -> Any:
        if isinstance(obj, (*_FUNCTIONS, type)) and obj.__module__ == "__main__" and _is_in_module(obj):
            return _hq_values.find, (*self.script, obj.__qualname__)
        return NotImplemented


def _script() -> tuple[Any, ...] | None:
    """Returns module name, path and time of change of the script, or `None` if there is no file that can be imported."""
    main = sys.modules["__main__"]
    name, path = getattr(getattr(main, "__spec__", None), "name", None), getattr(main, "__file__", None)
    if name == "__main__":
        # A directory or archive, whose file is at `path`.
        name = None
    try:
        return path and (name, os.path.abspath(path), os.stat(path).st_mtime_ns)
    except OSError:
        return None


class _ByValue(Exception):
    pass


#: Types of functions that are pickled by their name.
_FUNCTIONS = (types.FunctionType, functools._lru_cache_wrapper)


def _reduce_cached(function: Any) -> Any:
    return eval, (_CACHED, {**function.cache_parameters(), "function": function.__wrapped__})


def _has_no_name(function: Any) -> bool:
    """Returns whether a worker could not import a function."""
    return function.__module__ in ("__main__", "__mp_main__", None) or not _is_in_module(function)


def _is_in_module(obj: Any) -> bool:
    found: Any = sys.modules.get(obj.__module__)
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is obj


def _used(code: types.CodeType) -> set[str]:
    """Returns the global names that code may use. `co_names` also contains names of attributes."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname.endswith(("_GLOBAL", "_GLOBALS", "_NAME"))}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _used(constant)
    return names


def dumps(value: Any, what: str, needs: Needs | None = None, buffers: list[Any] | None = None) -> bytes:
    """Pickles an object; `what` names it in errors, `needs` receives its futures, and `buffers` long buffers. Raises the error of a
    failed future."""
    file = io.BytesIO()
    try:
        _Pickler(file, needs, buffers).dump(value)
        return file.getvalue()
    except _ByValue:
        pass
    except (NeedFailed, StoreError):
        raise
    except Exception as error:
        if _cloudpickle() is None:
            raise _named(what, error) from error
    cloudpickle = _cloudpickle()
    file = io.BytesIO()
    if buffers:
        buffers.clear()
    try:
        if cloudpickle is not None:
            _cloud_pickler(cloudpickle)(file, needs, buffers).dump(value)
        else:
            _CodePickler(file, needs, buffers).dump(value)
        return file.getvalue()
    except (NeedFailed, StoreError):
        raise
    except Exception as error:
        by_name = _dump_by_name(value, needs, buffers)
        if by_name is not None:
            return by_name
        if isinstance(error, NotPicklable):
            raise
        raise _named(what, error) from error


def _dump_by_name(value: Any, needs: Needs | None, buffers: list[Any] | None) -> bytes | None:
    """Pickles an object whose functions and classes can only be found in the script. `None` = it has other parts that cannot be sent."""
    script = _script()
    if script is None:
        return None
    # Results refer to the script by the name that it has on workers.
    sys.modules.setdefault("__mp_main__", sys.modules["__main__"])
    file = io.BytesIO()
    if buffers:
        buffers.clear()
    try:
        _ByName(file, needs, buffers, script).dump(value)
    except NeedFailed:
        raise
    except Exception:
        return None
    return file.getvalue()


@functools.lru_cache(maxsize=1)
def _cloud_pickler(cloudpickle: Any) -> Any:
    class CloudPickler(_Replacing, cloudpickle.CloudPickler):  # type: ignore[misc]
        def other(self, obj: Any) -> Any:
            if isinstance(obj, types.CodeType):
                # cloudpickle 3.1.3 drops the name of the file, which tracebacks need.
                return marshal.loads, (marshal.dumps(obj),)
            if isinstance(obj, functools._lru_cache_wrapper) and _has_no_name(obj):
                return _reduce_cached(obj)
            return cloudpickle.CloudPickler.reducer_override(self, obj)

    return CloudPickler


def cloud_dumps(value: Any) -> bytes:
    """Pickles an object with cloudpickle, which must be installed."""
    file = io.BytesIO()
    _cloud_pickler(_cloudpickle())(file, None, None).dump(value)
    return file.getvalue()


def _named(what: str, error: Exception) -> Exception:
    """Returns an error of the same type that names the object that cannot be pickled."""
    text = f"{what} cannot be pickled: {type(error).__name__}: {error}"
    if isinstance(error, pickle.PicklingError):
        return _PicklingError(text)
    return NotPicklable(text)


class _PicklingError(NotPicklable, pickle.PicklingError):
    pass


class _Bytes:
    """Bytes whose content a pickle need not copy."""

    def __init__(self, value: bytes | bytearray) -> None:
        self.value = value

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self.value), (pickle.PickleBuffer(self.value),)


def store(value: Any, spool: Spool) -> Stored:
    """Stores a value for calls in a file. Its buffers can be mapped from there."""
    buffers: list[Any] = []
    what = f"a value of type {type(value).__qualname__}"
    pickled = dumps(_Bytes(value) if type(value) in (bytes, bytearray) else value, what, None, buffers)
    return spool.store(pickled, buffers)


def dump_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], needs: Needs) -> bytes:
    """Pickles the arguments of one call. An error names the one that cannot be sent."""
    own_file_min = sys.maxsize if needs.spool is None else OWN_FILE_MIN
    is_simple = not kwargs
    for arg in args if is_simple else (*args, *kwargs.values()):
        kind = type(arg)
        if kind in _TEXTS and len(arg) >= own_file_min:
            args, kwargs = tuple(map(needs.shorter, args)), {name: needs.shorter(arg) for name, arg in kwargs.items()}
            is_simple = False
            break
        is_simple = is_simple and kind in _SIMPLE
    if is_simple:
        return pickle.dumps((args, kwargs), PROTOCOL)
    try:
        return dumps((args, kwargs), "the arguments", needs)
    except NotPicklable as error:
        needs = Needs()
        for number, arg in enumerate(args, 1):
            dumps(arg, f"argument {number}, of type {type(arg).__qualname__},", needs)
        for name, arg in kwargs.items():
            dumps(arg, f"argument `{name}`, of type {type(arg).__qualname__},", needs)
        raise error


class OwnNeeds(Needs):
    """Long values among the variables of a function. Futures cannot be there."""

    __slots__ = ()

    def reduce(self, future: Future[Any]) -> Any:
        return NotImplemented


class Functions:
    """A cache of pickled functions."""

    _MAX = 256

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[..., Any], Any, bytes]] = {}

    def dumps(self, function: Callable[..., Any], needs: Needs) -> bytes:
        code = getattr(function, "__code__", None)
        known = self._known.get(id(function))
        if known is not None and known[0] is function and known[1] is code:
            return known[2]
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        own = OwnNeeds(needs.spool)
        before, own.stored = len(needs.stored), needs.stored
        pickled = dumps(function, f"the function {name}", own)
        needs.known.update(own.known)
        if _is_constant(function) and len(needs.stored) == before:
            if len(self._known) >= self._MAX:
                self._known.clear()
            self._known[id(function)] = (function, code, pickled)
        return pickled


def _is_constant(function: Any) -> bool:
    """Returns whether pickling a function again gives the same bytes, even if variables change meanwhile."""
    if isinstance(function, (types.BuiltinFunctionType, type)):
        return getattr(function, "__module__", None) != "__main__"
    if not isinstance(function, types.FunctionType):
        return False
    if not _has_no_name(function):
        return True
    if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        return False
    used = (function.__globals__.get(name) for name in _used(function.__code__))
    return all(value is None or isinstance(value, types.ModuleType) for value in used)


def _refusal(what: str) -> str:
    """Returns code for workers of earlier releases."""
    text = f"the worker does not know {what}, so it is of an older release than the client: start workers of the same release"
    return f"raise RuntimeError({text!r})"


#: Loads a file in an interpreter.
_LOAD_FILE = (
    "(getattr(__import__('sys').modules.get('_hq_values'), 'load_file', None) or "
    f"exec({_refusal('files with arguments')!r}))(path, number)"
)


class _KeyPickler(_Pickler):
    """Pickles what identifies a call, with the source of functions instead of their code."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Future):
            key = getattr(obj, "_key", None)
            if key is None:
                raise _ByValue
            return bytes, (key,)
        if isinstance(obj, _FUNCTIONS):
            function = inspect.unwrap(obj)
            try:
                source: Any = inspect.getsource(function)
            except (OSError, TypeError):
                source = marshal.dumps(function.__code__)
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
            described = source, function.__defaults__, function.__kwdefaults__, cells
            return tuple, ([function.__module__, function.__qualname__, *described],)
        return NotImplemented


def key_of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
    """Returns the key of a memoized call. `None` = it cannot be compared with others, for example as a future among the arguments has
    no key."""
    file = io.BytesIO()
    try:
        _KeyPickler(file, None, None).dump((sys.version_info[:2], function, args, sorted(kwargs.items())))
    except Exception:
        return None
    return hashlib.sha256(file.getvalue()).digest()


def with_key(payload: bytes, key: bytes | None) -> bytes:
    return payload if key is None else b"".join((b"\5", key, payload))


def key_in(value: memoryview) -> bytes | None:
    """Returns the key at the end of the result of a memoized call."""
    return bytes(value[-KEY_SIZE - len(MEMO) : -len(MEMO)]) if value[-len(MEMO) :] == MEMO else None


class _Notice:
    """Raises an error when it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, (_refusal("values of other calls"),)


#: A worker of an earlier release treats it as the function.
_NOTICE = pickle.dumps(_Notice(), PROTOCOL)


def with_needs(payload: bytes, held: list[Held]) -> bytes:
    """Returns a payload with the references in its arguments, so that the worker can prepare the values."""
    if not held:
        return payload
    references = json.dumps([one.reference for one in held]).encode()
    return b"".join((b"\4", _counted(_NOTICE), _counted(references), payload))


def _counted(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


class _HqValues(types.ModuleType):
    """Stands for a module of the interpreters: arguments refer to values by calls of its `load`, and to parts of the script by calls
    of its `find`."""

    @staticmethod
    def load(index: int) -> Any:
        raise RuntimeError("values of calls are read on workers only")

    @staticmethod
    def find(module: str | None, path: str, changed: int, name: str) -> Any:
        raise RuntimeError("the script is imported on workers only")


_HqValues.load.__module__, _HqValues.load.__qualname__ = "_hq_values", "load"
_HqValues.find.__module__, _HqValues.find.__qualname__ = "_hq_values", "find"
# In an interpreter of a worker, where a call may import this package, the module already exists.
_hq_values: Any = sys.modules.setdefault("_hq_values", _HqValues("_hq_values"))


def load(value: memoryview) -> tuple[Any, BaseException | None, bytes | None, bytes | None]:
    """Returns the outcome of a call: a result or an exception, its file, which can be removed, and the key of a memoized call."""
    kind, data = value[0], value[1:]
    path = None
    if kind == IN_FILE:
        path = bytes(data)
        try:
            file = own_file(path)
        except FileNotFoundError:
            raise FileGone(os.fsdecode(path)) from None
        with file:
            # Mapped instead of read, because the result needs the memory.
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
        kind, data = mapped[0], memoryview(mapped)[1:]
    if kind == VALUE:
        return pickle.loads(data), None, path, key_in(data)
    if kind == EXCEPTION:
        error, traceback = pickle.loads(data)
        error.__cause__ = RemoteTraceback(traceback)
        return None, error, path, None
    text = bytes(data).decode("utf-8", "replace")
    failed: BaseException
    if kind == DESCRIBED:
        failed = _remote(json.loads(text))
    elif kind == INIT_FAILED:
        remote = _remote(json.loads(text))
        failed = InitFailed(f"init failed on the worker: {remote}")
        failed.__cause__ = RemoteTraceback(remote.traceback)
    elif kind == UNPICKLABLE:
        failed = _PicklingError(text)
    elif kind == MISFIT:
        failed = WrongPython(text)
    elif kind == TOO_LARGE:
        failed = ValueTooLarge(text)
    elif kind == DIED:
        failed = without_value(text)
    else:
        failed = CallError(f"a value of an unknown kind, {kind}: the worker is of another release")
    return None, failed, path, None


def _remote(described: dict[str, str]) -> RemoteError:
    error = remote_error(described["type"], described["text"], described["traceback"], described.get("module", ""))
    error.__cause__ = RemoteTraceback(described["traceback"])
    return error


def without_value(error: str | None, otherwise: type[CallError] = CallDied) -> BaseException:
    """The exception for a call without a value, from the error text of its task; `otherwise` for other failures."""
    text = error or "the call has ended without a value"
    lower = text.lower()
    kind = otherwise
    if "received signal" in lower and otherwise is CallDied:
        kind = CallKilled
    if "out of memory" in lower:
        kind = OutOfMemory
        text = text.replace("`--resource mem=…`, in MiB", 'resources={"mem": "4G"}, or another amount')
    elif "time limit" in lower:
        kind = TimeLimitReached
    elif "worker" in lower and "lost" in lower:
        kind = WorkerLost
    return kind(text)
