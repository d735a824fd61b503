"""Values that workers hold: lists them, fetches them, and recomputes lost ones."""

from __future__ import annotations

import collections
import json
import os
import tempfile
import threading
import time
import weakref
from concurrent.futures import Future, InvalidStateError
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Protocol, Sequence, Set, Tuple

from ._bridge import Bridge
from ._future import CallFuture, Continuation, settle
from ._held import Held, NotThere, Reference
from ._spec import CrashLimit
from ._spool import claim
from .errors import CallError, HqError, ServerGone, ValueTooLarge, ValueUnreachable, WorkerLost

#: Seconds to reach a worker that the server still counts on, and between two attempts.
_PATIENCE = 60.0
_PAUSE = 1.0
#: Maximum bytes to fetch at the end of an executor, for futures that still refer to them.
_HOME_MAX = 1 << 30
#: Seconds to tell workers which values are unneeded, at the end of an executor.
_RELEASE_PATIENCE = 10.0


class Calls(Protocol):
    """The calls of an executor, whose lock also protects its values."""

    lock: Any
    changed: threading.Condition
    bridge: Bridge
    owns_bridge: bool
    job: int
    pending: "Dict[int, CallFuture[Any]]"
    waiting: Deque[Any]
    needs: Dict[int, Sequence[Held]]
    adopted: int
    broken: Optional[BaseException]
    is_over: bool
    values: "Values"

    def add_errand(self, errand: Callable[[], None]) -> None: ...
    def cancel_sent(self, future: "CallFuture[Any]") -> bool: ...
    def give_up(self, number: int, error: BaseException) -> None: ...
    def make_again(self, number: int, held: Held, name: str) -> None: ...
    def submit_again(self, future: "CallFuture[Any]", task: int, swap: Dict[str, Any], needs: Sequence[Held]) -> None: ...


class Values:
    """The values of the calls of one executor."""

    def __init__(self, state: Calls, crash_limit: CrashLimit) -> None:
        self.state = state
        #: How often a value may be lost, unless the template of its call sets a limit.
        self.crash_limit = crash_limit
        self.crash_limits: Dict[int, CrashLimit] = {}
        self.live: "weakref.WeakSet[Held]" = weakref.WeakSet()
        # By all names of each value.
        self.by_name: "weakref.WeakValueDictionary[str, Held]" = weakref.WeakValueDictionary()
        self.released: Deque[Reference] = collections.deque()
        self.recoveries: Dict[Held, "Future[None]"] = {}
        # The time of the first failed fetch of a value.
        self.unreachable_since: "weakref.WeakKeyDictionary[Held, float]" = weakref.WeakKeyDictionary()
        # Calls that wait for a value to be recomputed.
        self.recovering: Set[int] = set()
        self.home: Optional[tempfile.TemporaryDirectory[str]] = None
        self.number = 0
        # Futures whose callbacks may read their values, and whether a thread handles them.
        self.watched: Deque[Tuple["CallFuture[Any]", Held]] = collections.deque()
        self.is_settling = False
        self.settler: Optional[threading.Thread] = None
        # Whether values are being fetched because the executor ends, and whether that is complete.
        self.is_bringing = False
        self.are_home = False
        self.is_ending = False

    # ---- for values

    def take(self, number: int, data: bytes) -> Held:
        """Returns the value of a call from its worker's report."""
        reference = json.loads(data)
        state = self.state
        with state.lock:
            future = state.pending.get(number)
        held = Held(self, reference, number < state.adopted)
        held.template = getattr(future, "_template", None)
        self._add(held)
        return held

    def _add(self, held: Held) -> None:
        with self.state.lock:
            self.live.add(held)
            self.by_name[held.name] = held

    @property
    def is_over(self) -> bool:
        return self.state.is_over

    def begin_fetch(self, reference: Reference) -> "Future[str]":
        """Starts to fetch a value into a file, without waiting."""
        if self.state.is_over and self.state.broken is not None:
            raise ServerGone(f"the value of call {reference['task']} is on its worker, and nothing leads there: {self.state.broken}")
        if self.state.is_over:
            raise ValueTooLarge(
                f"the value of call {reference['task']} has {reference['size']} bytes and was not read before its executor was shut "
                f"down, when at most {_HOME_MAX} bytes of such values are fetched: ask for it earlier"
            )
        with self.state.lock:
            home = self._make_home()
            self.number += 1
            path = os.path.join(home, str(self.number))
        fetched: "Future[str]" = Future()

        def answered(answer: "Future[Any]") -> None:
            try:
                came = answer.result()
                if came["how"] == "here":
                    self.note_reached(reference["name"])
                    fetched.set_result(path)
                else:
                    fetched.set_exception(NotThere(came["how"], came["text"]))
            except BaseException as error:
                fetched.set_exception(error)

        self.state.bridge.begin({"op": "fetch", "ref": reference, "path": path}).add_done_callback(answered)
        return fetched

    def _make_home(self) -> str:
        """Creates the directory for fetched values."""
        if self.home is None:
            self.home = tempfile.TemporaryDirectory(prefix="hq-values-")
            number = claim(self.home.name, {"server": "", "job": 0, "is_local": True})
            # Closed just before the directory is removed, because NFS would otherwise keep it. Futures may need the
            # directory after their executor has ended.
            weakref.finalize(self.home, os.close, number)
        return self.home.name

    def note_reached(self, name: str) -> None:
        """Records a successful fetch, which resets the count of failed ones."""
        with self.state.lock:
            held = self.by_name.get(name)
            if held is not None:
                self.unreachable_since.pop(held, None)

    def release(self, held: Held) -> None:
        if not self.state.is_over:
            # Any finalizer may run this, so no lock is taken. The sending thread checks periodically.
            self.released.append(held.reference)

    def take_released(self) -> List[Reference]:
        found = []
        while self.released:
            found.append(self.released.popleft())
        return found

    # ---- lost values

    def on_lost(self, number: int, described: Dict[str, Any]) -> None:
        """Repeats a call that lacked a value, once the value exists again."""
        state = self.state
        lost = described["ref"]
        with state.lock:
            future = state.pending.get(number)
            if future is None or number in self.recovering:
                return
            self.recovering.add(number)
            of_call = [held for held in state.needs.get(number, ()) if held.name == lost["name"]]
            held = of_call[0] if of_call else self.by_name.get(lost["name"])
        if held is None:
            # The value comes from a call of another process.
            held = Held(self, lost, True)
            self._add(held)
        known: Held = held

        def go_on(done: "Future[None]") -> None:
            error = done.exception()
            if error is None:
                state.make_again(number, known, lost["name"])
            else:
                state.give_up(number, error)

        if known.name != lost["name"]:
            state.make_again(number, known, lost["name"])
        else:
            known.keeper.recover(known, described["why"], described["text"]).add_done_callback(Continuation(go_on))

    def recover(self, held: Held, why: str, text: str) -> "Future[None]":
        """Recomputes a lost value. Returns whether another fetch is worthwhile."""
        done: "Future[None]" = Future()
        with self.state.lock:
            running = self.recoveries.get(held)
            if running is not None:
                return running
            over = self.is_ending or self.state.is_over or self.state.broken is not None
            # Another call may have one of our numbers.
            over |= held.is_from_elsewhere or held.reference["job"] != self.state.job
            if not over:
                self.recoveries[held] = done
        done.add_done_callback(Continuation(lambda _: self._end_recovery(held)))
        if over:
            done.set_exception(ServerGone(f"{text}; its executor cannot make it again any more"))
        elif why == "local":
            done.set_exception(CallError(text))
        elif why == "gone":
            self._run_again(held, done)
        else:
            self._look_for_worker(held, done, text)
        return done

    def _end_recovery(self, held: Held) -> None:
        with self.state.lock:
            self.recoveries.pop(held, None)

    def _look_for_worker(self, held: Held, done: "Future[None]", text: str) -> None:
        """Finds out whether an unreachable worker has ended, or only the connection is broken."""

        def answered(answer: "Future[Any]") -> None:
            try:
                workers = answer.result()
            except BaseException as error:
                done.set_exception(error)
                return
            is_running = any(worker["id"] == held.reference["worker"] and worker["is_running"] for worker in workers)
            if not is_running:
                self._run_again(held, done)
                return
            since = self.unreachable_since.setdefault(held, time.monotonic())
            if time.monotonic() - since < _PATIENCE:
                timer = threading.Timer(_PAUSE, _go_on, (done,))
                timer.daemon = True
                timer.start()
                return
            self.unreachable_since.pop(held, None)
            running = f"Worker {held.reference['worker']} runs; with values=DIRECTORY long results are files that all see"
            done.set_exception(ValueUnreachable(f"{text}. {running}"))

        def ask() -> None:
            try:
                self.state.bridge.begin({"op": "ask", "question": {"what": "workers"}}).add_done_callback(answered)
            except BaseException as error:
                done.set_exception(error)

        self.state.add_errand(ask)

    def _run_again(self, held: Held, done: "Future[None]") -> None:
        reference = held.reference
        self.unreachable_since.pop(held, None)
        limit = self.crash_limit if held.template is None else self.crash_limits.get(held.template, self.crash_limit)
        if limit == "never-restart":
            done.set_exception(WorkerLost(f"the value of call {reference['task']} was lost, and its crash_limit is 'never-restart'"))
            return
        held.runs += 1
        if isinstance(limit, int) and 0 < limit < held.runs:
            text = f"the value of call {reference['task']} was lost {held.runs} times, with its worker or as that had no room for it"
            done.set_exception(WorkerLost(text))
            return
        future: "CallFuture[Any]" = CallFuture(self.state)
        future.set_running_or_notify_cancel()
        future._template = held.template

        def ended(_: "Future[Any]") -> None:
            error = None if future.cancelled() else future.exception()
            value = future._result
            if future.cancelled() or error is not None:
                done.set_exception(error or HqError("the call that makes the value again was cancelled"))
            elif type(value) is Held:
                # It is enough if one of them releases the value.
                value.is_borrowed = True
                with self.state.lock:
                    held.reference = value.reference
                    self.by_name[held.name] = held
                done.set_result(None)
            else:
                done.set_exception(CallError(f"call {reference['task']} came to a short value when it was made again"))

        future.add_done_callback(Continuation(ended))
        self.state.submit_again(future, reference["task"], {}, [])

    # ---- the reading thread

    def settle(self, future: "CallFuture[Any]", held: Held) -> None:
        if future.settle_if_unwatched(held):
            return
        with self.state.lock:
            self.watched.append((future, held))
            if self.is_settling:
                return
            self.is_settling = True
            self.settler = threading.Thread(target=self._settle_watched, name="hq-values", daemon=True)
        self.settler.start()

    def _settle_watched(self) -> None:
        state = self.state
        while True:
            with state.changed:
                if not self.watched:
                    self.is_settling = False
                    state.changed.notify_all()
                    return
                future, held = self.watched.popleft()
            settle(future, held, None)
            del future, held

    # ---- at the end

    def bring_home(self) -> None:
        """Fetches the values that are still wanted, before the connections to the workers end."""
        state = self.state
        left = _HOME_MAX
        # Fetch as many as fit.
        for held in sorted(self.live, key=lambda held: int(held.reference["size"])):
            if held.is_here:
                continue
            if held.path_here() is None:
                if held.reference["size"] > left:
                    continue
                left -= held.reference["size"]
            try:
                with state.lock:
                    home = self._make_home()
                held.bring_home(home)
            except Exception:
                # The reader of the value gets the error.
                pass
            del held
        with state.changed:
            self.are_home = True
            state.changed.notify_all()

    def _hand_on(self, others: Iterable[Calls]) -> None:
        """Transfers values that calls of other executors of this process read to those executors."""
        for other in others:
            if other.is_over or other.broken is not None:
                continue
            with other.lock:
                reading = [*other.needs.values(), *(call.needs for call in other.waiting)]
            for held in {held for needs in reading for held in needs if held.keeper is self}:
                with self.state.lock:
                    self.live.discard(held)
                held.keeper, held.is_from_elsewhere = other.values, True
                other.values._add(held)

    def end(self, others: Iterable[Calls]) -> None:
        """Ends all fetches. `others` are the other executors of this process."""
        state = self.state
        is_last = state.owns_bridge and state.bridge.is_local
        if state.broken is None and not is_last:
            self._hand_on(others)
        with state.lock:
            self.is_ending = True
            ours = [held.reference for held in self.live if not held.is_borrowed]
            unsettled = list(self.recoveries.values())
        gone = ServerGone("the executor was shut down")
        for done in unsettled:
            if not done.done():
                done.set_exception(gone)
        references = self.take_released() + ours
        if references and state.broken is None and not is_last:
            try:
                state.bridge.request({"op": "release", "refs": references}, timeout=_RELEASE_PATIENCE)
            except Exception:
                # The values are lost with their workers.
                pass


def _go_on(done: "Future[None]") -> None:
    try:
        done.set_result(None)
    except InvalidStateError:
        # The executor has ended.
        pass
