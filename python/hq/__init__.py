"""Runs functions and programs on the workers of an hq server, or on this machine."""

from ._executor import Executor, Options
from ._future import CallFuture
from ._program import Completed, File, ProgramFuture
from .errors import (
    CallDied,
    CallError,
    CallKilled,
    HqError,
    InitFailed,
    NotPicklable,
    OutOfMemory,
    ProgramFailed,
    RemoteError,
    RemoteTraceback,
    ServerGone,
    TimeLimitReached,
    WorkerLost,
    WrongPython,
)

__all__ = [
    "CallDied",
    "CallError",
    "CallFuture",
    "CallKilled",
    "Completed",
    "Executor",
    "File",
    "HqError",
    "InitFailed",
    "NotPicklable",
    "Options",
    "OutOfMemory",
    "ProgramFailed",
    "ProgramFuture",
    "RemoteError",
    "RemoteTraceback",
    "ServerGone",
    "TimeLimitReached",
    "WorkerLost",
    "WrongPython",
]
