"""Errors of calls, in addition to the exceptions of the functions themselves."""

from __future__ import annotations

import sys
from concurrent.futures import BrokenExecutor
from typing import Any, Type


class HqError(Exception):
    """The base class of the exceptions in this package."""


class ServerGone(BrokenExecutor, HqError):
    """The server, or the bridge to it, is gone for good. The outcome of unfinished calls stays unknown."""


class InitFailed(BrokenExecutor, HqError):
    """The `init` function of an executor failed on a worker."""


class CallError(HqError):
    """A call failed for another reason than an exception of its function."""


class NotPicklable(CallError, TypeError):
    """An argument, a function or a result cannot be pickled; the text names it."""


class WrongPython(CallError):
    """The interpreter on the worker cannot read pickles of this interpreter."""


class ValueTooLarge(CallError):
    """A result is larger than allowed, or than the free space for values on its worker."""


class ValueUnreachable(CallError):
    """A value is on a running worker that its reader cannot reach."""


class CallDied(CallError):
    """The interpreter ended during the call: a signal, `os._exit`, a crash."""


class CallKilled(CallDied):
    """A signal ended the interpreter during the call; the text names it."""


class ProgramFailed(CallError):
    """A program exited with an error, was ended by a signal, or could not be started; the text contains the end of its
    standard error."""


class OutOfMemory(CallError, MemoryError):
    """The call used more memory than it requested, or than its machine had."""


class TimeLimitReached(CallError, TimeoutError):
    """The call ran for longer than its time limit."""


class WorkerLost(CallError):
    """The call lost more workers than its crash limit allows."""


class RemoteError(CallError):
    """Replaces an exception of the function that cannot be pickled. If its class is known here, `except` clauses for that class
    also catch this exception, but it lacks the attributes."""

    def __init__(self, type_name: str, text: str, traceback: str, module: str = "") -> None:
        # Not the constructor of the class of the exception, which would expect its own arguments.
        Exception.__init__(self, f"{type_name}: {text}" if text else type_name)
        self.type_name = type_name
        self.text = text
        self.traceback = traceback
        self.module = module

    def __str__(self) -> str:
        return Exception.__str__(self)

    def __reduce__(self) -> Any:
        return remote_error, (self.type_name, self.text, self.traceback, self.module)


def remote_error(type_name: str, text: str, traceback: str, module: str) -> RemoteError:
    """Returns a :class:`RemoteError` that is also of the class with this name, if this process has imported it."""
    found: Any = sys.modules.get(module)
    for part in type_name.split("."):
        found = getattr(found, part, None)
    try:
        if isinstance(found, type) and issubclass(found, Exception):
            both: Type[RemoteError] = type("RemoteError", (RemoteError, found), {"__module__": __name__})
            return both(type_name, text, traceback, module)
    except Exception:
        # The class cannot have subclasses, or not without its own arguments.
        pass
    return RemoteError(type_name, text, traceback, module)


class RemoteTraceback(Exception):
    """The cause of an exception from a worker. Contains the traceback on the worker."""

    def __init__(self, traceback: str) -> None:
        super().__init__(traceback)
        #: `tb` is the name in the standard library.
        self.traceback = self.tb = traceback

    def __str__(self) -> str:
        return f'\n"""\n{self.traceback}"""'
