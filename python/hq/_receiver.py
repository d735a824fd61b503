"""Reports of the bridge, on its thread: the ends of calls, and calls that have to be repeated."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from concurrent.futures import Future
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from . import _pickle
from ._calls import CANCELED, FINISHED, Again, Call, End, same
from ._future import CallFuture, Canceled, settle
from ._held import Held
from ._ids import IDS, numbers_of
from ._program import File, ProgramFuture, read_output
from ._shared import Shared
from .errors import HqError, InitFailed, ServerGone


class Receiver(Shared):
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
                        # The call has read the value, even if the call failed.
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


def times_in(directory: str) -> Dict[str, int]:
    """Returns when the files in a directory were changed."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name: entry.stat().st_mtime_ns for entry in entries}
    except OSError:
        return {}
