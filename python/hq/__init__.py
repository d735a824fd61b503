"""Runs functions and programs on the workers of an hq server, or on this machine."""

from ._executor import Executor, Options
from .errors import (
    CallDied,
    CallError,
    HqError,
    InitFailed,
    NotPicklable,
    OutOfMemory,
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
    "Executor",
    "HqError",
    "InitFailed",
    "NotPicklable",
    "Options",
    "OutOfMemory",
    "RemoteError",
    "RemoteTraceback",
    "ServerGone",
    "TimeLimitReached",
    "WorkerLost",
    "WrongPython",
]
