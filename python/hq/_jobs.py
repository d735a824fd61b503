"""Programs, alone and in jobs together with functions."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, TypeVar

from ._executor import Executor
from ._future import CallFuture
from ._progress import progress
from ._query import Table, tasks

if TYPE_CHECKING:
    from ._program import Argument, Completed, ProgramFuture

T = TypeVar("T")

_default: Optional[Executor] = None
_lock = threading.Lock()


def _executor() -> Executor:
    """Returns the executor of :func:`run` and :func:`submit`, which is created on demand."""
    global _default
    with _lock:
        if _default is None or _default._state.broken is not None or _default._state.is_shut:
            _default = Executor(name="programs")
        return _default


def submit(args: "Sequence[Argument]", **options: Any) -> "ProgramFuture":
    """Runs a program on the server, or on this machine without one; see :meth:`Executor.program`. All these
    programs are tasks of a single job of this process."""
    return _executor().program(args, **options)


def run(args: "Sequence[Argument]", **options: Any) -> "Completed":
    """Like :func:`submit`, but waits until the program has ended."""
    return submit(args, **options).result()


class Job:
    """Programs and functions of one job, with dependencies::

        with hq.Job("pipeline") as job:
            made = job.program(["generate", "--count", 1000], stdout="numbers")
            sorted_ = job.program(["sort", "-n", made], stdout="sorted")
            job.function(plot, sorted_)

    A program among the words of another one stands for its output file. The end of the block waits for all tasks and raises
    the first failure. Options as for :class:`Executor`.
    """

    def __init__(self, name: Optional[str] = None, executor: Optional[Executor] = None, **options: Any) -> None:
        self._owns = executor is None
        self._executor = Executor(name=name or "job", **options) if executor is None else executor
        #: In the order they were added.
        self.futures: List[CallFuture[Any]] = []

    @property
    def id(self) -> int:
        return self._executor.job

    def program(self, args: "Sequence[Argument]", **options: Any) -> "ProgramFuture":
        future = self._executor.program(args, **options)
        self.futures.append(future)
        return future

    def function(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "CallFuture[T]":
        future = self._executor._submit(self._executor._template, fn, args, kwargs)
        self.futures.append(future)
        return future

    def wait(self, show: bool = False) -> List[Any]:
        """Returns the results of all tasks in the order they were added. Raises the exception of the first failed one."""
        if show:
            for _ in progress(self.futures, f"job {self.id}"):
                pass
        wait(self.futures)
        return [future.result() for future in self.futures]

    def tasks(self) -> Table:
        """Returns the started tasks, as reported by the server."""
        return tasks(self.id, self._executor)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        cancel = True
        try:
            if kind is None:
                self.wait()
                cancel = False
        finally:
            # Done even after an interrupt of the wait.
            if self._owns:
                self._executor._leave(cancel)

    def __repr__(self) -> str:
        done = sum(future.done() for future in self.futures)
        return f"<hq.Job {self.id}: {done} of {len(self.futures)} have ended>"

    def _repr_html_(self) -> str:
        import html

        states: Dict[str, int] = {}
        for future in self.futures:
            state = "cancelled" if future.cancelled() else "waiting" if not future.done() else "finished"
            if state == "finished" and future.exception() is not None:
                state = "failed"
            states[state] = states.get(state, 0) + 1
        cells = "".join(f"<tr><td>{html.escape(state)}</td><td>{count}</td></tr>" for state, count in sorted(states.items()))
        return f"<b>Job {self.id}</b><table>{cells}</table>"
