"""State that an executor and its threads share, as the executor uses it."""

from __future__ import annotations

import atexit
import collections
import itertools
import os
import threading
import weakref
from typing import Any, Callable, Iterable, Optional

from ._bridge import Bridge
from ._calls import Call, begin, same
from ._future import CallFuture, mark_cancelled
from ._ids import IDS
from ._receiver import Receiver
from ._sender import Sender
from ._shared import LOOK_SOON, Shared
from ._spec import CrashLimit
from ._spool import Spool, sweep
from ._values import Values
from .errors import HqError, ServerGone


class State(Sender, Receiver):
    """The state that an executor and its threads share. It has no reference to the executor, so the executor can be collected."""

    def __init__(
        self, bridge: Bridge, owns_bridge: bool, job: int, workers: Optional[int], spool: Spool, crash_limit: CrashLimit = 0
    ) -> None:
        super().__init__(bridge, owns_bridge, job, workers, spool)
        self.values = Values(self, crash_limit)

    @property
    def is_telling_here(self) -> bool:
        """Whether this thread runs callbacks. The end of the executor waits for such threads."""
        return self.bridge.is_reading_here or self.values.settler is threading.current_thread()

    def memoized(self, key: bytes, make: "Callable[[], CallFuture[Any]]") -> "CallFuture[Any]":
        """Returns the call with this key, unless it failed or was canceled, or a new one."""
        with self.changed:
            # Calls that ended before this executor was attached are reported now.
            while self.asked > 0 and self.broken is None and not self.bridge.is_reading_here:
                self.changed.wait(LOOK_SOON)
            known = self.memo.get(key)
        if known is not None and not (known.done() and (known.cancelled() or known._exception is not None)):
            return known
        future = make()
        with self.lock:
            self._memoize(key, future)
        return future

    def cancel_sent(self, future: "CallFuture[Any]") -> bool:
        """Cancels a call that was handed over, whether it is running or not. Returns `False` if it has ended. The caller must
        settle the future, because there will be no further report about it."""
        with self.changed:
            number = future._number
            if number is None:
                # Its number belonged to another task, and it has no new one yet.
                again = [call for call in self.waiting if call.future is future]
                for call in again:
                    self.waiting.remove(call)
                return bool(again)
            if self.pending.get(number) is not future or self.broken is not None:
                return False
            del self.pending[number]
            self.abandoned.add(number)
            self.cancels.append(number)
            self.changed.notify_all()
        return True

    def cancel_waiting(self, futures: "Iterable[CallFuture[Any]]") -> None:
        """Cancels calls that have not started, as the standard library does when the iterator of `map` is dropped."""
        sent = [future for future in futures if not future.cancel_waiting() and not future.done()]
        with self.changed:
            numbers = [future._number for future in sent if future._number is not None]
            self.cancels_waiting += [number for number in numbers if number in self.pending]
            # Their numbers belonged to other tasks, and they have no new ones yet.
            back = {future for future in sent if future._number is None}
            unsent = [call.future for call in self.waiting if call.future in back] if back else []
            if unsent:
                self.waiting = collections.deque(call for call in self.waiting if call.future not in back)
            self.changed.notify_all()
        for future in unsent:
            mark_cancelled(future)

    def add(self, call: Call) -> None:
        with self.changed:
            self.check()
            self.waiting.append(call)
            if len(self.waiting) == 1:
                self.changed.notify_all()

    def defer(self, future: "CallFuture[Any]") -> None:
        with self.changed:
            self.check()
            self.deferred.add(future)

    def claim_deferred(self, future: "CallFuture[Any]") -> bool:
        """Returns whether to make a deferred call: not after a cancelling shutdown. :meth:`add_deferred` follows."""
        with self.changed:
            if future not in self.deferred:
                return False
            self.deferred.remove(future)
            self.making += 1
            return True

    def defer_again(self, future: "CallFuture[Any]") -> bool:
        """Puts a claimed call back because more values are missing, but not during a cancelling shutdown."""
        with self.changed:
            if self.is_cancelled:
                return False
            self.making -= 1
            self.deferred.add(future)
            return True

    def add_deferred(self, call: Optional[Call]) -> None:
        """Adds a deferred call, even after shutdown. `None` = the call was dropped."""
        cancelled = broken = None
        with self.changed:
            self.making -= 1
            if call is not None and self.broken is not None:
                broken = self.broken
            elif call is not None and self.is_cancelled:
                cancelled = call.future
            elif call is not None:
                self.waiting.append(call)
            self.changed.notify_all()
        if call is not None and broken is not None and begin(call.future):
            call.future.set_exception(same(broken))
        if cancelled is not None:
            cancelled.cancel()
            begin(cancelled)

    def check(self) -> None:
        if self.broken is not None:
            raise same(self.broken)
        if self.is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self.is_exiting:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        if self.next_id >= IDS:
            raise self._out_of_ids()

    def shut(self, cancel: bool) -> None:
        with self.changed:
            self.is_shut = True
            self.is_cancelled |= cancel
            cancelled = []
            if cancel:
                # Like the standard library: the first calls, one per cpu, count as begun.
                spared = 0 if self.workers is None else self.workers
                kept = max(0, spared - len(self.pending))
                cancelled = [call.future for call in itertools.islice(self.waiting, kept, None)]
                self.waiting = collections.deque(itertools.islice(self.waiting, kept))
                # The calls that they depend on may never end.
                cancelled += self.deferred
                self.deferred.clear()
                # Submitted calls may not have begun either.
                self.cancels_waiting = list(self.pending)[spared:]
            self.changed.notify_all()
        for future in cancelled:
            if future.running():
                # It was submitted under the number of another task.
                mark_cancelled(future)
            else:
                future.cancel()
                begin(future)

    def finish(self) -> None:
        """Ends the job and removes the files of this executor. No further calls follow."""
        with self.changed:
            if self.is_over:
                return
        self.values.end([state for state in list(states) if state is not self])
        with self.changed:
            self.is_over = True
        try:
            # Pending cancels are sent before the bridge goes.
            if self.broken is None and self.has_cancelled:
                self.bridge.request({"op": "cancel", "job": self.job, "tasks": []})
            if self.broken is None and (not self.owns_bridge or not self.bridge.is_local):
                self.bridge.ask({"what": "close", "job": self.job})
        except (HqError, ServerGone):
            pass
        self.bridge.forget(self.job, self.fail_all)
        if self.broken is None or (self.owns_bridge and self.bridge.is_local):
            self.spool.remove()
        else:
            # Calls may continue, with their arguments and results in it.
            self.spool.leave()
        if self.broken is None and self.adopted:
            # The process that created the job may have left some, and the job is closed now.
            base = os.path.dirname(self.spool.path)
            sweep(base, self.bridge.info["server_uid"], lambda job: self.bridge.ask({"what": "info", "job": job}))
        if self.owns_bridge:
            self.bridge.close()
        with self.changed:
            self.changed.notify_all()


states: "weakref.WeakKeyDictionary[State, threading.Thread]" = weakref.WeakKeyDictionary()


def _at_exit() -> None:
    """Runs all submitted calls before Python ends, like the executors of the standard library."""
    Shared.is_exiting = True
    for state, thread in list(states.items()):
        state.shut(False)
        thread.join()


# Before threads are joined; the standard library's own executors register there as well.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)


def _after_fork() -> None:
    """In a child process, invalidates the parent's executors, whose locks may be held forever."""
    for state in list(states):
        # Before any call is dropped: its files belong to the parent.
        state.spool.leave()
        state.lock = threading.RLock()
        state.changed = threading.Condition(state.lock)
        state.broken = ServerGone("this executor was made before a fork; make another one in this process")
        state.waiting.clear()
        state.pending.clear()
        state.unconfirmed.clear()
        state.is_over = True
        state.finished = threading.Event()
        state.finished.set()
    states.clear()


os.register_at_fork(after_in_child=_after_fork)


