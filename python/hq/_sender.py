"""The sending thread of an executor: submits and cancels calls, and releases what is no longer needed."""

from __future__ import annotations

import collections
import threading
import time
import warnings
from concurrent.futures import Future
from typing import Any, List, Tuple

from ._calls import Call, begin
from ._fit import explain
from ._future import settle
from ._ids import IDS, ranges
from ._shared import COUNTED_BYTES, LOOK_SOON, Shared
from .errors import HqError, ServerGone

#: Limits of one message to the bridge: calls, and their bytes.
_BATCH_MAX = 5_000
_BATCH_BYTES = 8 << 20
#: Seconds after which the sending thread looks for work without a notification.
_LOOK_AGAIN = 30.0
#: If no call has ended for this many seconds, the executor asks whether any worker can run them, for a few calls.
_STALL = 5.0
_EXPLAINED_MAX = 10


class Sender(Shared):
    def send_calls(self) -> None:
        try:
            while True:
                with self.changed:
                    while not (self._may_send() or self.cancels or self.cancels_waiting or self.was_away or self._has_more()):
                        if self.broken is not None or self._is_done() or self.spool.is_to_sign() or self._has_stalled():
                            break
                        # The loop checks periodically as well: a finalizer on this thread cannot notify.
                        soon = self.values.live or self.spent or self._may_stall()
                        self.changed.wait(LOOK_SOON if soon else _LOOK_AGAIN)
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
        return self._has_ended() and (self.values.are_home or self.is_exiting or not self.values.live)

    def _has_more(self) -> bool:
        """Returns whether work is left that does not concern calls."""
        values = self.values
        if not values.is_bringing and values.live and self._has_ended() and not self.is_exiting and self.broken is None:
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
            if len(call.payload) > COUNTED_BYTES:
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
