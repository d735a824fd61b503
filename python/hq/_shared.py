"""State that the threads of an executor share: waiting calls, submitted calls and their values."""

from __future__ import annotations

import collections
import functools
import threading
import time
from typing import Any, Callable, ClassVar, Deque, Dict, Iterable, List, Optional, Sequence, Set, Tuple, Union

from ._bridge import Bridge
from ._calls import Again, Call, End, begin, same
from ._future import CallFuture, settle
from ._held import Held
from ._ids import Margin, ranges
from ._spool import Spool, Stored, remove_arguments
from ._values import Values
from .errors import HqError

#: Seconds after which the sending thread looks for work while values or arguments may become unneeded.
LOOK_SOON = 1.0
#: Limit of ranges of calls in one message.
_RANGES_MAX = 5_000
#: Unneeded arguments of this many bytes are released at once, others after a while.
_SPENT_BYTES = 1 << 20
#: The sizes of payloads longer than this are known, others count as this size.
COUNTED_BYTES = 1 << 9


class Shared:
    """The data that an executor and its threads share, and what all of them do with it."""

    values: Values
    #: Whether Python ends.
    is_exiting: ClassVar[bool] = False

    def __init__(
        self, bridge: Bridge, owns_bridge: bool, job: int, workers: Optional[int], spool: Spool
    ) -> None:
        self.bridge = bridge
        self.owns_bridge = owns_bridge
        self.job = job
        self.spool = spool
        # Reentrant: the finalizer of an executor, or a signal handler, may run on a thread that holds it.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.waiting: Deque[Call] = collections.deque()
        self.pending: Dict[int, "CallFuture[Any]"] = {}
        self.next_id = 0
        self.margin = Margin()
        # Whether others can add tasks to the job: the bridge is the only client of a server of our own.
        self.is_shared = not bridge.is_local
        # Submitted calls without confirmed numbers: tasks of the job may add tasks, and other executors may be attached to it, so a number
        # may belong to another task.
        self.unconfirmed: Dict[int, Union[Call, Again]] = {}
        # Early reports about tasks with their numbers, and how to cancel these tasks: `True` = only if they do not run yet.
        self.early: Dict[int, End] = {}
        self.late_cancels: Dict[int, bool] = {}
        # Our calls without waiting futures.
        self.abandoned: Set[int] = set()
        # Submitted calls to cancel: including running ones, and only waiting ones.
        self.cancels: List[int] = []
        self.cancels_waiting: List[int] = []
        self.has_cancelled = False
        # Calls whose arguments are missing, and the number of calls that are being created.
        self.deferred: Set["CallFuture[Any]"] = set()
        self.making = 0
        # Whether the server was away, so that missed ends must be requested.
        self.was_away = False
        # Tasks with smaller ids existed before.
        self.adopted = 0
        # The number of these tasks with arguments that may be needed, and directories with such arguments without an owner.
        self.adopted_left = 0
        self.adopted_directories: List[str] = []
        # Template of calls with unknown options.
        self.template = 0
        self.is_shut = False
        self.is_cancelled = False
        self.is_over = False
        # Set when the sending thread ends. In some versions of Python, a thread whose `join` was interrupted counts as ended.
        self.finished = threading.Event()
        self.broken: Optional[BaseException] = None
        # Alone on this machine, calls are submitted shortly before they can run, so the rest can still be cancelled.
        self.window = None if workers is None else 2 * workers + 1
        self.workers = workers
        self.ended_count = 0
        self.window_since = time.monotonic()
        # Values that submitted calls read.
        self.needs: Dict[int, Sequence[Held]] = {}
        # Our calls that have ended and are not needed to compute a value again: the server can drop their arguments. The total size of
        # these arguments, and the sizes of long arguments of all calls.
        self.spent: List[int] = []
        self.spent_bytes = 0
        self.sizes: Dict[int, int] = {}
        # Files with arguments of submitted calls.
        self.stored: Dict[int, Sequence[Stored]] = {}
        # The calls whose arguments a repeated call has.
        self.copied: Dict[int, int] = {}
        self.released_at = time.monotonic()
        # Where the output of calls goes by template, if it is shown here as well, with the files of earlier servers and their times:
        # the first job of each server has the same directory.
        self.outputs: Dict[int, Tuple[str, Dict[str, int]]] = {}
        # When the last call ended or the first one was submitted, and the templates whose calls were explained since they did not run.
        self.moved_at = time.monotonic()
        self.explained: Set[Optional[int]] = set()
        # Memoized calls by key, and the number of questions about ended calls without an answer.
        self.memo: Dict[bytes, "CallFuture[Any]"] = {}
        self.asked = 0
        # Further work of the sending thread.
        self.errands: Deque[Callable[[], None]] = collections.deque()

    def _spend(self, numbers: Iterable[int]) -> None:
        """Drops the arguments of calls, and of the calls that they repeat."""
        was_idle = not self.spent
        spent = [*numbers]
        # `spent` grows by repeated calls.
        for number in spent if self.copied else ():
            if number in self.copied:
                spent.append(self.copied.pop(number))
        self.spent += spent
        self.spent_bytes += COUNTED_BYTES * len(spent)
        for number in spent if self.sizes else ():
            self.spent_bytes += self.sizes.pop(number, 0)
        for number in spent if self.stored else ():
            self.stored.pop(number, None)
        if was_idle and self.spent or self._may_release():
            # The sending thread waits for long while there is nothing to release.
            self.changed.notify_all()
        if self.adopted_left:
            self.adopted_left -= sum(number < self.adopted for number in spent)
            if not self.adopted_left:
                self.errands += [functools.partial(remove_arguments, path) for path in self.adopted_directories]
                self.changed.notify_all()

    def _may_release(self) -> bool:
        is_due = time.monotonic() - self.released_at >= LOOK_SOON
        return self.spent_bytes >= _SPENT_BYTES or bool(self.spent) and is_due

    def ask_for(self, numbers: Iterable[int]) -> None:
        """Asks which of these calls have ended, and how."""
        found = ranges(numbers)
        for first in range(0, len(found), _RANGES_MAX):
            with self.lock:
                self.asked += 1
            self.bridge.send({"op": "settle", "job": self.job, "tasks": found[first : first + _RANGES_MAX]})

    def _has_ended(self) -> bool:
        """Returns whether only the fetching of values is left."""
        busy = self.waiting or self.pending or self.deferred or self.making or self.cancels or self.errands or self.unconfirmed
        return self.is_shut and not (busy or self.values.is_settling)

    def _out_of_ids(self) -> HqError:
        return HqError(f"the task ids of job {self.job} are used up; make another executor")

    def _forget(self, number: int) -> None:
        """Drops a call, and ignores further reports about a task with its number, because that is not our call."""
        self.sizes.pop(number, None)
        self.stored.pop(number, None)
        self.copied.pop(number, None)
        self.unconfirmed.pop(number, None)
        self.early.pop(number, None)
        self.late_cancels.pop(number, None)
        self.abandoned.discard(number)

    def fail_all(self, error: BaseException) -> None:
        with self.changed:
            if self.broken is None:
                self.broken = error
            futures = list(self.pending.values())
            self.pending.clear()
            self.needs.clear()
            self.unconfirmed.clear()
            self.early.clear()
            waiting = [call.future for call in self.waiting]
            self.waiting.clear()
            self.changed.notify_all()
        for future in waiting:
            if begin(future):
                futures.append(future)
        for future in futures:
            settle(future, None, same(error))

    def fail(self, future: "CallFuture[Any]", error: BaseException) -> None:
        """Fails a call in any state."""
        with self.changed:
            number = future._number
            if number is not None and self.pending.pop(number, None) is not None:
                self._forget(number)
            self.waiting = collections.deque(call for call in self.waiting if call.future is not future)
            self.changed.notify_all()
        settle(future, None, error)

    def add_errand(self, errand: Callable[[], None]) -> None:
        with self.changed:
            self.errands.append(errand)
            self.changed.notify_all()

    def finish(self) -> None:
        raise NotImplementedError
