"""Futures of calls. Very many fit into memory, and running calls can be cancelled."""

from __future__ import annotations

import _thread
import logging
import threading
import time
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import _base as _futures
from typing import Any, Callable, Generator, List, Optional, Protocol, TypeVar

from ._held import Held
from .errors import NotPicklable

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """Cancels calls that have been handed over."""

    def cancel_sent(self, future: "CallFuture[Any]") -> bool: ...


class _Condition:
    """A subset of `threading.Condition` for futures, with a tenth of the memory."""

    __slots__ = ("_lock", "_waiters")

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()
        self._waiters: Optional[List[Any]] = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return bool(self._lock.acquire(blocking, timeout))

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return bool(self._lock.__enter__())

    def __exit__(self, *error: Any) -> None:
        self._lock.release()

    def wait(self, timeout: Optional[float] = None) -> bool:
        waiter = _thread.allocate_lock()
        waiter.acquire()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        saved = self._lock._release_save()
        was_told = False
        try:
            if timeout is None:
                was_told = waiter.acquire()
            else:
                was_told = waiter.acquire(True, timeout) if timeout > 0 else waiter.acquire(False)
        finally:
            self._lock._acquire_restore(saved)
            if not was_told and self._waiters is not None and waiter in self._waiters:
                self._waiters.remove(waiter)
        return was_told

    def notify_all(self) -> None:
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            waiter.release()

    def notify(self, n: int = 1) -> None:
        # Each waiting thread checks again.
        self.notify_all()


class Continuation:
    """An internal callback, which does not read the value of its future."""

    __slots__ = ("then",)

    def __init__(self, then: "Callable[[Future[Any]], None]") -> None:
        self.then = then

    def __call__(self, future: "Future[Any]") -> None:
        self.then(future)


class CallFuture(Future[T]):
    """The future of a call. Unlike in the standard library, :meth:`cancel` also ends a running call, with its
    interpreter."""

    __slots__ = (
        "_condition",
        "_state",
        "_result",
        "_exception",
        "_waiters",
        "_done_callbacks",
        "_owner",
        "_number",
        "_stored",
        "_template",
        "_key",
    )

    def __init__(self, owner: Optional[Owner] = None) -> None:
        # This replaces the condition of the standard library.
        self._condition: Any = _Condition()
        self._state: str = _futures.PENDING
        self._result: Any = None
        self._exception: Any = None
        self._waiters: List[Any] = []
        self._done_callbacks: List[Any] = []
        self._owner = owner
        #: The task id, after the submit.
        self._number: Optional[int] = None
        #: The file with its value for calls, if the program has put it there.
        self._stored: Any = None
        #: Identifies the common part that it shares with other calls.
        self._template: Optional[int] = None
        #: Identifies a memoized call.
        self._key: Optional[bytes] = None

    def result(self, timeout: Optional[float] = None) -> T:
        end = None if timeout is None else time.monotonic() + timeout
        value: Any = super().result(timeout)
        if type(value) is Held:
            value = value.load(None if end is None else end - time.monotonic())
        return value  # type: ignore[no-any-return]

    def settle_if_unwatched(self, value: Any) -> bool:
        """Ends the future unless a user's callback must run: it may read the value, which this thread cannot fetch."""
        with self._condition:
            if self._state not in (_futures.PENDING, _futures.RUNNING):
                return True
            if any(type(callback) is not Continuation for callback in self._done_callbacks):
                return False
            self._result = value
            self._state = _futures.FINISHED
            for waiter in self._waiters:
                waiter.add_result(self)
            self._condition.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined]
        return True

    def cancel(self) -> bool:
        if super().cancel():
            return True
        owner = self._owner
        if owner is None or not owner.cancel_sent(self):
            return False
        mark_cancelled(self)
        return True

    def __await__(self) -> Generator[Any, None, T]:
        """Waits in an event loop. If the waiting task is canceled, so is the call."""
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def cancel_waiting(self) -> bool:
        """Cancels the call unless it was submitted."""
        return super().cancel()

    @property
    def task(self) -> Optional[int]:
        """The id of the call's task, after the submit."""
        return self._number

    def __repr__(self) -> str:
        value = self._result
        if type(value) is not Held:
            return super().__repr__()
        return f"<{type(self).__name__} at {id(self):#x} state=finished returned {value!r}>"

    def __reduce__(self) -> Any:
        raise NotPicklable(
            "a future belongs to the process that has made the call: it can be among the arguments of a call, but not among the "
            "variables of its function, and a call returns the result of one, not the future"
        )

    def _repr_html_(self) -> str:
        import html

        words = {_futures.PENDING: "waits", _futures.RUNNING: "is under way", _futures.FINISHED: "has finished"}
        with self._condition:
            text = words.get(self._state, "was cancelled")
            if self._state == _futures.FINISHED and self._exception is not None:
                text = f"failed: {type(self._exception).__name__}: {self._exception}"
        task = "" if self._number is None else f" {self._number}"
        return f"<code>call{task}: {html.escape(text[:500])}</code>"


def mark_cancelled(future: "Future[Any]") -> None:
    """Marks the future of a submitted call as cancelled, unless the call has ended."""
    with future._condition:
        if future._state not in (_futures.PENDING, _futures.RUNNING):
            return
        future._state = _futures.CANCELLED_AND_NOTIFIED
        for waiter in future._waiters:
            waiter.add_cancelled(future)
        future._condition.notify_all()
    future._invoke_callbacks()  # type: ignore[attr-defined]


class Canceled(BaseException):
    """The outcome of a cancelled call."""


def settle(future: "CallFuture[Any]", result: Any, error: Optional[BaseException]) -> None:
    try:
        if error is None:
            future.set_result(result)
        elif isinstance(error, Canceled):
            mark_cancelled(future)
        else:
            future.set_exception(error)
    except InvalidStateError:
        # It was cancelled just now.
        pass
    except BaseException:
        # The standard library passes on exceptions other than `Exception`; here other threads wait for the calling thread.
        _log.exception("a callback of %r failed", future)
