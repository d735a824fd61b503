"""State that an executor and its threads share: waiting calls, submitted calls, and their outcomes."""

from __future__ import annotations

import atexit
import collections
import functools
import itertools
import json
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from concurrent.futures import Future
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Sequence, Set, Tuple, Union

from . import _pickle
from ._bridge import Bridge
from ._fit import explain
from ._future import CallFuture, Canceled, mark_cancelled, settle
from ._held import Held
from ._ids import IDS, Margin, numbers_of, ranges
from ._program import File, ProgramFuture, read_output
from ._spec import CrashLimit
from ._spool import Spool, Stored, remove_arguments, sweep
from ._values import Values
from .errors import HqError, InitFailed, ServerGone

#: Limits of one message to the bridge: calls, and their bytes.
_BATCH_MAX = 5_000
_BATCH_BYTES = 8 << 20
#: Limit of ranges of calls in one message.
_RANGES_MAX = 5_000
#: Seconds after which the sending thread looks for work without a notification.
_LOOK_AGAIN = 30.0
#: Likewise while values or arguments may become unneeded.
_LOOK_SOON = 1.0
#: If no call has ended for this many seconds, the executor asks whether any worker can run them, for a few calls.
_STALL = 5.0
_EXPLAINED_MAX = 10
#: Unneeded arguments of this many bytes are released at once, others after a while.
_SPENT_BYTES = 1 << 20
#: The sizes of payloads longer than this are known, others count as this size.
_COUNTED_BYTES = 1 << 9

FINISHED, FAILED, CANCELED, ABORTED = 2, 3, 4, 5


class Call:
    """A call that is not yet submitted; `spec` belongs to a template for this call alone, with the files that the task reads."""

    __slots__ = ("future", "needs", "payload", "spec", "stored", "template")

    def __init__(
        self,
        future: "CallFuture[Any]",
        payload: bytes,
        template: int,
        spec: Optional[Tuple[Dict[str, Any], bytes]] = None,
        needs: Sequence[Held] = (),
        stored: Sequence[Stored] = (),
    ) -> None:
        self.future = future
        self.payload = payload
        self.template = template
        self.spec = spec
        #: Values that it reads, which stay on their workers until then.
        self.needs = needs
        #: Files with its arguments.
        self.stored = stored


class Again:
    """A call that is repeated: a copy of its task, with some references to values replaced."""

    __slots__ = ("future", "needs", "swap", "task")

    def __init__(self, future: "CallFuture[Any]", task: int, swap: Dict[str, Any], needs: Sequence[Held]) -> None:
        self.future = future
        self.task = task
        self.swap = swap
        self.needs = needs


#: Number, state, value and error of an ended call.
End = Tuple[int, int, Optional[memoryview], Optional[str]]


class State:
    """The state that an executor and its threads share. It has no reference to the executor, so the executor can be collected."""

    def __init__(
        self, bridge: Bridge, owns_bridge: bool, job: int, workers: Optional[int], spool: Spool, crash_limit: CrashLimit = 0
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
        self.values = Values(self, crash_limit)
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

    # ---- the sending thread

    def send_calls(self) -> None:
        try:
            while True:
                with self.changed:
                    while not (self._may_send() or self.cancels or self.cancels_waiting or self.was_away or self._has_more()):
                        if self.broken is not None or self._is_done() or self.spool.is_to_sign() or self._has_stalled():
                            break
                        # The loop checks periodically as well: a finalizer on this thread cannot notify.
                        soon = self.values.live or self.spent or self._may_stall()
                        self.changed.wait(_LOOK_SOON if soon else _LOOK_AGAIN)
                    if self.broken is not None or self._is_done():
                        break
                    errands, self.errands = self.errands, collections.deque()
                    cancels, self.cancels = self._confirmed(self.cancels, False), []
                    waiting, self.cancels_waiting = self._confirmed(self.cancels_waiting, True), []
                    away = sorted(self.pending) if self.was_away else []
                    self.was_away = False
                    batch, first, template = self._take_batch() if self._may_send() else ([], 0, 0)
                    refused = self._take_unnumbered()
                    stalled = self._take_stalled()
                if stalled:
                    threading.Thread(target=self._explain, args=(stalled,), name="hq-explain", daemon=True).start()
                self.spool.sign()
                for call in refused:
                    settle(call.future, None, self._out_of_ids())
                del refused
                while errands:
                    errands.popleft()()
                self._release()
                self._send_cancels(cancels, False)
                self._send_cancels(waiting, True)
                self.ask_for(away)
                if batch and self._send_template(batch[0]):
                    lens = [len(call.payload) for call in batch]
                    message = {"op": "calls", "job": self.job, "t": template, "first": first, "lens": lens}
                    self.bridge.send(message, b"".join([call.payload for call in batch]))
                # Otherwise they would live until the next batch.
                del batch
        except BaseException as error:
            self.fail_all(error if isinstance(error, ServerGone) else ServerGone(f"calls can no longer be sent: {error!r}"))
        try:
            self.finish()
        finally:
            self.finished.set()

    def _may_stall(self) -> bool:
        return bool(self.pending) and not self.bridge.is_local and len(self.explained) < _EXPLAINED_MAX

    def _has_stalled(self) -> bool:
        return self._may_stall() and time.monotonic() - self.moved_at > _STALL

    def _take_stalled(self) -> List[int]:
        """Returns the first calls of some templates if no call ends."""
        if not self._has_stalled():
            return []
        self.moved_at = time.monotonic()
        found = []
        for number, future in self.pending.items():
            if future._template not in self.explained and len(self.explained) < _EXPLAINED_MAX:
                self.explained.add(future._template)
                found.append(number)
        return found

    def _explain(self, numbers: List[int]) -> None:
        """Warns of calls that no worker can run."""
        try:
            if self.bridge.ask({"what": "queues"}):
                # Workers of other kinds may come.
                return
            for number in numbers:
                why = explain(self.bridge.server_dir, self.job, number)
                if why is not None and number in self.pending:
                    warnings.warn(f"call {number} of job {self.job} waits. {why}", stacklevel=1)
        except (HqError, OSError, RuntimeError):
            # The server is away, or the executor has ended.
            pass

    def _release(self) -> None:
        """Names the values, and the calls with arguments, that are no longer needed."""
        references = self.values.take_released()
        with self.lock:
            # Without their values, calls need not be repeated.
            self._spend(reference["task"] for reference in references if reference["job"] == self.job)
            spent: List[int] = []
            if self._may_release():
                spent, self.spent, self.spent_bytes = self.spent, [], 0
                self.released_at = time.monotonic()
        if references or spent:
            self.bridge.send({"op": "release", "refs": references, "job": self.job, "tasks": ranges(spent)})

    def _spend(self, numbers: Iterable[int]) -> None:
        """Drops the arguments of calls, and of the calls that they repeat."""
        was_idle = not self.spent
        spent = [*numbers]
        # `spent` grows by repeated calls.
        for number in spent if self.copied else ():
            if number in self.copied:
                spent.append(self.copied.pop(number))
        self.spent += spent
        self.spent_bytes += _COUNTED_BYTES * len(spent)
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
        is_due = time.monotonic() - self.released_at >= _LOOK_SOON
        return self.spent_bytes >= _SPENT_BYTES or bool(self.spent) and is_due

    def ask_for(self, numbers: Iterable[int]) -> None:
        """Asks which of these calls have ended, and how."""
        found = ranges(numbers)
        for first in range(0, len(found), _RANGES_MAX):
            with self.lock:
                self.asked += 1
            self.bridge.send({"op": "settle", "job": self.job, "tasks": found[first : first + _RANGES_MAX]})

    def _send_template(self, call: Call) -> bool:
        """Sends the template that belongs to this call alone. Errors in it are reported to the future, because nothing waits for
        the answer. Only this thread sends it: the thread that reads answers would wait for itself when both pipes are full."""
        if call.spec is None:
            return True
        spec, stdin = call.spec
        future = call.future

        def answered(answer: "Future[Any]") -> None:
            error = answer.exception()
            if error is not None:
                self.fail(future, error)

        try:
            told = self.bridge.begin({"op": "template", "t": call.template, "spec": spec}, stdin)
        except ServerGone:
            raise
        except Exception as error:
            self.fail(future, error)
            return False
        told.add_done_callback(answered)
        return True

    def _confirmed(self, numbers: List[int], keep_running: bool) -> List[int]:
        """Returns the calls that the server has under their numbers. The others are cancelled once it has them."""
        for number in numbers:
            if number in self.unconfirmed:
                self.late_cancels[number] = keep_running and self.late_cancels.get(number, True)
        return [number for number in numbers if number not in self.unconfirmed]

    def _send_cancels(self, numbers: List[int], keep_running: bool) -> None:
        if numbers:
            self.has_cancelled = True
            message = {"op": "cancel", "job": self.job, "tasks": ranges(numbers), "keep_running": keep_running}
            self.bridge.send(message)

    def _is_done(self) -> bool:
        return self._has_ended() and (self.values.are_home or _is_exiting or not self.values.live)

    @property
    def is_telling_here(self) -> bool:
        """Whether this thread runs callbacks. The end of the executor waits for such threads."""
        return self.bridge.is_reading_here or self.values.settler is threading.current_thread()

    def _has_ended(self) -> bool:
        """Returns whether only the fetching of values is left."""
        busy = self.waiting or self.pending or self.deferred or self.making or self.cancels or self.errands or self.unconfirmed
        return self.is_shut and not (busy or self.values.is_settling)

    def _has_more(self) -> bool:
        """Returns whether work is left that does not concern calls."""
        values = self.values
        if not values.is_bringing and values.live and self._has_ended() and not _is_exiting and self.broken is None:
            values.is_bringing = True
            # On a separate thread: lost values are computed again, which needs this thread for sending.
            threading.Thread(target=values.bring_home, name="hq-values-home", daemon=True).start()
        return bool(self.errands or values.released or self._may_release())

    def _may_send(self) -> bool:
        return bool(self.waiting) and (self.window is None or len(self.pending) < self.window)

    def _take_batch(self) -> Tuple[List[Call], int, int]:
        first = self.next_id
        if not self.pending:
            self.moved_at = time.monotonic()
        template = self.waiting[0].template
        batch: List[Call] = []
        size = 0
        room = min(_BATCH_MAX, IDS - first)
        if self.window is not None:
            room = min(room, self.window - len(self.pending))
        while self.waiting and len(batch) < room and size < _BATCH_BYTES:
            call = self.waiting[0]
            if call.template != template:
                break
            self.waiting.popleft()
            if not begin(call.future):
                continue
            call.future._number = self.next_id
            call.future._template = call.template
            if call.needs:
                self.needs[self.next_id] = call.needs
            if call.stored:
                self.stored[self.next_id] = call.stored
            self.pending[self.next_id] = call.future
            if self.is_shared:
                self.unconfirmed[self.next_id] = call
            if len(call.payload) > _COUNTED_BYTES:
                self.sizes[self.next_id] = len(call.payload)
            self.next_id += 1
            batch.append(call)
            size += len(call.payload)
        return batch, first, template

    def _take_unnumbered(self) -> List[Call]:
        """Takes the calls beyond the last possible id of the job."""
        if self.next_id < IDS or not self.waiting:
            return []
        calls = [call for call in self.waiting if begin(call.future)]
        self.waiting.clear()
        return calls

    def _out_of_ids(self) -> HqError:
        return HqError(f"the task ids of job {self.job} are used up; make another executor")

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

    # ---- reports of the bridge, on its thread

    def on_event(self, message: Dict[str, Any], blob: memoryview) -> None:
        event = message["ev"]
        if event == "ended":
            self._on_ended(message, blob)
        elif event == "accepted":
            self._on_accepted(numbers_of(message))
        elif event == "taken":
            self._on_taken(numbers_of(message), message["free"])
        elif event == "refused":
            text = message["text"]
            if "is not opened" in text:
                # By the end of this executor before it was attached again, by another executor, or by `hq job close`.
                text = f"job {self.job} is closed and takes no more calls; make another executor"
            error = HqError(f"the server refused the calls: {text}")
            numbers = numbers_of(message)
            with self.lock:
                cancelled = self._disown(numbers)
            self._settle([(number, None, Canceled() if number in cancelled else error) for number in numbers])
        elif event == "settled":
            with self.changed:
                self.asked -= 1
                self.changed.notify_all()
        elif event == "again":
            with self.changed:
                self.was_away = True
                # The questions are repeated.
                self.asked = 0
                self.changed.notify_all()
        elif event == "gone":
            self.fail_all(ServerGone(message["text"]))

    def _on_accepted(self, numbers: range) -> None:
        """Handles the report that the server has these calls under their numbers."""
        ends: List[End] = []
        with self.changed:
            self.margin.shrink()
            for number in numbers:
                self.unconfirmed.pop(number, None)
            if self.early:
                ends = [self.early.pop(number) for number in numbers if number in self.early]
            for number in [number for number in self.late_cancels if number in numbers]:
                keep_running = self.late_cancels.pop(number)
                (self.cancels_waiting if keep_running else self.cancels).append(number)
            if self.is_shut or self.cancels or self.cancels_waiting:
                self.changed.notify_all()
        self._on_ends(ends)

    def _on_taken(self, numbers: range, free: int) -> None:
        """Handles the report that other tasks of the job have some of these numbers: the calls get new ones."""
        calls: List[Call] = []
        again: List[Again] = []
        with self.changed:
            self.next_id = max(self.next_id, self.margin.behind(free, len(numbers)))
            unconfirmed = [self.unconfirmed.get(number) for number in numbers]
            cancelled = self._disown(numbers)
            for number, call in zip(numbers, unconfirmed):
                if number in cancelled:
                    continue
                self.needs.pop(number, None)
                # Otherwise it has failed.
                if call is None or self.pending.pop(number, None) is None:
                    continue
                if isinstance(call, Again):
                    again.append(call)
                else:
                    call.future._number = None
                    calls.append(call)
            self.waiting.extendleft(reversed(calls))
            self.changed.notify_all()
        self._settle([(number, None, Canceled()) for number in numbers if number in cancelled])
        for one in again:
            self.submit_again(one.future, one.task, one.swap, one.needs)

    def _disown(self, numbers: range) -> Set[int]:
        """Handles that the server does not have these calls under these numbers, which may belong to other tasks. Returns the
        numbers of the calls to cancel."""
        cancelled = {number for number in (*self.cancels, *self.cancels_waiting, *self.late_cancels) if number in numbers}
        # Calls that were not sent yet.
        self.cancels = [number for number in self.cancels if number not in numbers]
        self.cancels_waiting = [number for number in self.cancels_waiting if number not in numbers]
        if self.is_cancelled:
            cancelled.update(number for number in numbers if number in self.pending)
        for number in numbers:
            self._forget(number)
        return cancelled

    def _forget(self, number: int) -> None:
        """Drops a call, and ignores further reports about a task with its number, because that is not our call."""
        self.sizes.pop(number, None)
        self.stored.pop(number, None)
        self.copied.pop(number, None)
        self.unconfirmed.pop(number, None)
        self.early.pop(number, None)
        self.late_cancels.pop(number, None)
        self.abandoned.discard(number)

    def _on_ended(self, message: Dict[str, Any], blob: memoryview) -> None:
        errors = message["errors"]
        offset = 0
        ends: List[End] = []
        with self.lock:
            for index, (number, state, length) in enumerate(zip(message["ids"], message["states"], message["lens"])):
                value = None if length < 0 else blob[offset : offset + length]
                offset += max(0, length)
                end = number, state, value, errors.get(str(index))
                if number in self.unconfirmed:
                    self.early[number] = end
                elif number in self.pending or number in self.abandoned:
                    self.abandoned.discard(number)
                    ends.append(end)
                # Otherwise the task belongs to another client, and so does its value.
        self._on_ends(ends)

    def _show(self, numbers: Iterable[int]) -> None:
        """Writes the output of calls of our own server to the streams of this process, as calls of a process pool do themselves."""
        # Directories exist only if calls have written something.
        places = {template: place for template, place in self.outputs.items() if os.path.isdir(place[0])}
        for number in numbers if places else ():
            future = self.pending.get(number)
            place = None if future is None else places.get(self.template if future._template is None else future._template)
            if place is None or isinstance(future, ProgramFuture):
                continue
            directory, earlier = place
            for name, stream in ((f"{number}.stdout", sys.stdout), (f"{number}.stderr", sys.stderr)):
                path = os.path.join(directory, name)
                try:
                    if os.stat(path).st_mtime_ns != earlier.get(name):
                        stream.write(read_output(File(path)))
                        stream.flush()
                except (OSError, ValueError, AttributeError):
                    # The call has written nothing, or the stream was closed, or there is none.
                    pass

    def _on_ends(self, ends: List[End]) -> None:
        self._show(end[0] for end in ends)
        settled: List[Tuple[int, Any, Optional[BaseException]]] = []
        for number, state, value, reason in ends:
            if value is None:
                settled.append((number, *self._without_value(number, state, reason)))
                continue
            if value[0] == _pickle.LOST:
                self.values.on_lost(number, json.loads(bytes(value[1:])))
                continue
            if value[0] == _pickle.HELD:
                settled.append((number, self.values.take(number, bytes(value[1:])), None))
                continue
            result, error = self._load(number, value)
            del value
            settled.append((number, result, error))
        with self.changed:
            self._spend(number for number, result, _ in settled if type(result) is not Held)
        self._settle(settled)

    def _without_value(
        self, number: int, state: int, error: Optional[str]
    ) -> Tuple[Any, Optional[BaseException]]:
        if state == CANCELED:
            return None, Canceled()
        with self.lock:
            future = self.pending.get(number)
        if isinstance(future, ProgramFuture):
            return future.without_value(state == FINISHED, error)
        if state == FINISHED and number < self.adopted:
            # A program: a call always has a value.
            return None, None
        if state == FINISHED:
            return None, _pickle.without_value("the call finished, but its value was lost")
        return None, _pickle.without_value(error)

    def _load(self, number: int, value: memoryview) -> Tuple[Any, Optional[BaseException]]:
        try:
            result, error, path, key = _pickle.load(value)
        except _pickle.FileGone as gone:
            return None, HqError(
                f"the result of call {number} of job {self.job} was in {gone.path}, which is gone: the executor that made the call has "
                "read it, or its directory was removed"
            )
        except BaseException as failure:
            return None, HqError(f"the result of the call cannot be unpickled here: {type(failure).__name__}: {failure}")
        # Other clients may attach to a job that existed before: its files live as long as the job.
        # Memoized results must outlive this process.
        if path is not None and key is None and number >= self.adopted:
            try:
                os.unlink(path)
            except OSError:
                pass
        if key is not None and number < self.adopted:
            with self.lock:
                self._memoize(key, self.pending.get(number))
        return result, error

    def _settle(self, settled: List[Tuple[int, Any, Optional[BaseException]]]) -> None:
        futures = []
        with self.changed:
            for number, result, error in settled:
                future = self.pending.pop(number, None)
                if self.needs:
                    for held in self.needs.pop(number, ()):
                        # The call reached the value, whatever its own result.
                        self.values.unreachable_since.pop(held, None)
                if future is not None:
                    futures.append((future, result, error))
            self._widen(len(futures))
            self.moved_at = time.monotonic()
            if self.waiting or self.is_shut:
                self.changed.notify_all()
        for future, result, error in futures:
            if isinstance(error, InitFailed):
                if self.broken is None:
                    # As the standard library does.
                    logging.getLogger("concurrent.futures").critical("Exception in initializer:", exc_info=error)
                self.fail_all(error)
            if type(result) is Held:
                self.values.settle(future, result)
            else:
                settle(future, result, error)

    def _widen(self, ended: int) -> None:
        """Submits as many calls as have ended recently, to keep short calls flowing."""
        if self.window is None or self.workers is None:
            return
        self.ended_count += ended
        now = time.monotonic()
        elapsed = now - self.window_since
        if elapsed >= 0.02:
            rate = self.ended_count / elapsed
            self.window = 2 * self.workers + 1 + min(2_000, int(rate * 0.05))
            self.window_since, self.ended_count = now, 0
        elif self.ended_count > self.window:
            self.window = min(2_000, 2 * self.window)

    def _memoize(self, key: bytes, future: "Optional[CallFuture[Any]]") -> None:
        if future is not None:
            future._key = key
            self.memo[key] = future

    def memoized(self, key: bytes, make: "Callable[[], CallFuture[Any]]") -> "CallFuture[Any]":
        """Returns the call with this key, unless it failed or was canceled, or a new one."""
        with self.changed:
            # Calls that ended before this executor was attached are reported now.
            while self.asked > 0 and self.broken is None and not self.bridge.is_reading_here:
                self.changed.wait(_LOOK_SOON)
            known = self.memo.get(key)
        if known is not None and not (known.done() and (known.cancelled() or known._exception is not None)):
            return known
        future = make()
        with self.lock:
            self._memoize(key, future)
        return future

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

    # ---- repeated calls

    def add_errand(self, errand: Callable[[], None]) -> None:
        with self.changed:
            self.errands.append(errand)
            self.changed.notify_all()

    def make_again(self, number: int, held: Held, name: str) -> None:
        """Repeats a call that lacked the value `name`."""
        with self.changed:
            self.values.recovering.discard(number)
            future = self.pending.pop(number, None)
            needs = self.needs.pop(number, ())
        if future is not None:
            self.submit_again(future, number, {name: held.reference}, [*needs, held])

    def give_up(self, number: int, error: BaseException) -> None:
        self.values.recovering.discard(number)
        with self.changed:
            self._spend([number])
        self._settle([(number, None, same(error))])

    def submit_again(self, future: "CallFuture[Any]", task: int, swap: Dict[str, Any], needs: Sequence[Held]) -> None:
        """Resubmits the server's copy of a call as another task."""
        if self.next_id >= IDS:
            settle(future, None, self._out_of_ids())
            return
        with self.changed:
            number = future._number = self.next_id
            self.next_id += 1
            self.pending[number] = future
            if self.is_shared:
                self.unconfirmed[number] = Again(future, task, swap, needs)
            if needs:
                self.needs[number] = needs
            if task in self.stored:
                self.stored[number] = self.stored[task]
            self.copied[number] = task
        template = self.template if future._template is None else future._template
        message = {"op": "again", "job": self.job, "task": task, "t": template, "number": number, "swap": swap}

        def answered(answer: "Future[Any]") -> None:
            error = answer.exception()
            if error is not None:
                self.fail(future, error)

        def send() -> None:
            try:
                self.bridge.begin(message).add_done_callback(answered)
            except ServerGone:
                raise
            except Exception as error:
                self.fail(future, error)

        self.add_errand(send)

    # ---- for the executor

    def fail(self, future: "CallFuture[Any]", error: BaseException) -> None:
        """Fails a call in any state."""
        with self.changed:
            number = future._number
            if number is not None and self.pending.pop(number, None) is not None:
                self._forget(number)
            self.waiting = collections.deque(call for call in self.waiting if call.future is not future)
            self.changed.notify_all()
        settle(future, None, error)

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
        if _is_exiting:
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


def begin(future: "CallFuture[Any]") -> bool:
    """Returns whether to submit a call: it was not cancelled and did not fail because of its options."""
    if future.done() and not future.cancelled():
        return False
    if future.running():
        # Submitted for the second time.
        return True
    return future.set_running_or_notify_cancel()


def times_in(directory: str) -> Dict[str, int]:
    """Returns when the files in a directory were changed."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name: entry.stat().st_mtime_ns for entry in entries}
    except OSError:
        return {}


def same(error: BaseException) -> BaseException:
    """Returns a copy of an exception for each receiver, because raising it adds a traceback."""
    try:
        copy = type(error)(*error.args)
    except Exception:
        return error
    copy.__cause__ = error.__cause__
    return copy


states: "weakref.WeakKeyDictionary[State, threading.Thread]" = weakref.WeakKeyDictionary()
_is_exiting = False


def _at_exit() -> None:
    """Runs all submitted calls before Python ends, like the executors of the standard library."""
    global _is_exiting
    _is_exiting = True
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


