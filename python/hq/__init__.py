"""Runs functions and programs on the workers of an hq server, or on this machine."""

from ._executor import Executor, Options
from ._future import CallFuture
from ._jobs import Job, run, submit
from ._program import Completed, File, ProgramFuture
from ._progress import as_completed, progress
from ._query import Table, jobs, query, tasks
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
    ValueTooLarge,
    ValueUnreachable,
    WorkerLost,
    WrongPython,
)


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import subprocess

    from ._bridge import find_hq

    # The package and the program come in one wheel.
    return subprocess.run([find_hq(), "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]


__all__ = [
    "CallDied",
    "CallError",
    "CallFuture",
    "CallKilled",
    "Completed",
    "Executor",
    "File",
    "HqError",
    "Job",
    "Table",
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
    "ValueTooLarge",
    "ValueUnreachable",
    "WorkerLost",
    "WrongPython",
    "as_completed",
    "jobs",
    "progress",
    "query",
    "run",
    "submit",
    "tasks",
]
