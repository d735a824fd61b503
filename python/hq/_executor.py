"""`hq.Executor`: the interface of `concurrent.futures`, with the calls carried out by the workers of a server."""

from __future__ import annotations

import atexit
import collections
import itertools
import json
import os
import shlex
import sys
import tempfile
import threading
import time
import uuid
import weakref
from concurrent.futures import Executor as _BaseExecutor
from concurrent.futures import Future
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
    Union,
)

from . import _pickle
from ._bridge import Bridge
from .errors import HqError, InitFailed, ServerGone

T = TypeVar("T")

#: Reads its program from the worker, which is on the other end of standard input.
BOOT = "import socket;s=socket.socket(fileno=0);exec(s.recv(1<<17))"

#: Calls in one message to the bridge, and bytes of them.
_BATCH_MAX = 5_000
_BATCH_BYTES = 8 << 20
#: Longest payload that goes through the server; what is longer goes through a file.
_PAYLOAD_MAX = 1 << 20

FINISHED, FAILED, CANCELED, ABORTED = 2, 3, 4, 5

Resources = Mapping[str, Union[int, float, str]]


class _Call:
    """A call that was not yet handed to the bridge."""

    __slots__ = ("future", "payload", "template")

    def __init__(self, future: "Future[Any]", payload: bytes, template: int) -> None:
        self.future = future
        self.payload = payload
        self.template = template


class _State:
    """What an executor and its threads share; it does not know the executor, so that this can be collected."""

    def __init__(self, bridge: Bridge, owns_bridge: bool, job: int, workers: Optional[int], spool: str) -> None:
        self.bridge = bridge
        self.owns_bridge = owns_bridge
        self.job = job
        self.spool = spool
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.waiting: Deque[_Call] = collections.deque()
        self.pending: Dict[int, "Future[Any]"] = {}
        self.next_id = 0
        # Calls whose arguments are not there yet.
        self.deferred = 0
        self.is_shut = False
        self.is_cancelled = False
        self.is_over = False
        self.broken: Optional[BaseException] = None
        # Alone on this machine, calls are handed over as they can run soon: those behind can still be cancelled.
        self.window = None if workers is None else 2 * workers + 1
        self.workers = workers
        self.ended_count = 0
        self.window_since = time.monotonic()
        self.files = False

    # ---- the thread that sends

    def send_calls(self) -> None:
        try:
            while True:
                with self.changed:
                    while not self._may_send():
                        if self.broken is not None or self._is_done():
                            break
                        self.changed.wait()
                    if self.broken is not None or self._is_done():
                        break
                    batch, first, template = self._take_batch()
                if batch:
                    lens = [len(call.payload) for call in batch]
                    message = {"op": "calls", "job": self.job, "t": template, "first": first, "lens": lens}
                    self.bridge.send(message, b"".join([call.payload for call in batch]))
                    # Otherwise they would live until the next batch.
                    del batch
        except BaseException as error:
            self.fail_all(error if isinstance(error, ServerGone) else ServerGone(f"calls can no longer be sent: {error!r}"))
        self.finish()

    def _is_done(self) -> bool:
        return self.is_shut and not self.waiting and not self.pending and not self.deferred

    def _may_send(self) -> bool:
        return bool(self.waiting) and (self.window is None or len(self.pending) < self.window)

    def _take_batch(self) -> Tuple[List[_Call], int, int]:
        first = self.next_id
        template = self.waiting[0].template
        batch: List[_Call] = []
        size = 0
        room = _BATCH_MAX if self.window is None else min(_BATCH_MAX, self.window - len(self.pending))
        while self.waiting and len(batch) < room and size < _BATCH_BYTES:
            call = self.waiting[0]
            if call.template != template:
                break
            self.waiting.popleft()
            if not call.future.set_running_or_notify_cancel():
                continue
            self.pending[self.next_id] = call.future
            self.next_id += 1
            batch.append(call)
            size += len(call.payload)
        return batch, first, template

    def finish(self) -> None:
        """Nothing more is to come: the job ends, and with it what this executor has made."""
        with self.changed:
            if self.is_over:
                return
            self.is_over = True
        self.bridge.forget(self.job)
        try:
            if self.broken is None and not self.owns_bridge:
                self.bridge.ask({"what": "close", "job": self.job})
        except (HqError, ServerGone):
            pass
        if self.files:
            import shutil

            shutil.rmtree(self.spool, ignore_errors=True)
        if self.owns_bridge:
            self.bridge.close()
        with self.changed:
            self.changed.notify_all()

    # ---- what the bridge tells, on its thread

    def on_event(self, message: Dict[str, Any], blob: memoryview) -> None:
        event = message["ev"]
        if event == "ended":
            self._on_ended(message, blob)
        elif event == "refused":
            error = HqError(f"the server refused the calls: {message['text']}")
            ids = range(message["first"], message["first"] + message["count"])
            self._settle([(number, None, error) for number in ids])
        elif event == "again":
            self._ask_again()
        elif event == "gone":
            self.fail_all(ServerGone(message["text"]))

    def _on_ended(self, message: Dict[str, Any], blob: memoryview) -> None:
        errors = message["errors"]
        offset = 0
        settled: List[Tuple[int, Any, Optional[BaseException]]] = []
        for index, (number, state, length) in enumerate(zip(message["ids"], message["states"], message["lens"])):
            if length < 0:
                settled.append((number, None, self._without_value(state, errors.get(str(index)))))
                continue
            value = blob[offset : offset + length]
            offset += length
            result, error = self._load(value)
            settled.append((number, result, error))
        self._settle(settled)

    @staticmethod
    def _without_value(state: int, error: Optional[str]) -> BaseException:
        if state == CANCELED:
            from concurrent.futures import CancelledError

            return CancelledError()
        if state == FINISHED:
            return _pickle.without_value("the call finished, but its value was lost")
        return _pickle.without_value(error)

    @staticmethod
    def _load(value: memoryview) -> Tuple[Any, Optional[BaseException]]:
        try:
            result, error, path = _pickle.load(value)  # type: ignore[arg-type]
        except BaseException as failure:
            return None, HqError(f"the result of the call cannot be unpickled here: {type(failure).__name__}: {failure}")
        if path is not None:
            try:
                os.unlink(path)
            except OSError:
                pass
        return result, error

    def _settle(self, settled: List[Tuple[int, Any, Optional[BaseException]]]) -> None:
        futures = []
        with self.changed:
            for number, result, error in settled:
                future = self.pending.pop(number, None)
                if future is not None:
                    futures.append((future, result, error))
            self._widen(len(futures))
            if self.waiting or self.is_shut:
                self.changed.notify_all()
        for future, result, error in futures:
            if error is None:
                future.set_result(result)
                continue
            if isinstance(error, InitFailed):
                self.fail_all(error)
            if not future.done():
                future.set_exception(error)

    def _widen(self, ended: int) -> None:
        """Hands over as many calls as have ended in the last moments, so that short ones flow."""
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

    def _ask_again(self) -> None:
        """The server was away: what ended meanwhile has to be asked for."""
        with self.lock:
            numbers = sorted(self.pending)
        if not numbers:
            return
        first, count = numbers[0], numbers[-1] - numbers[0] + 1
        try:
            self.bridge.send({"op": "settle", "job": self.job, "first": first, "count": count})
        except ServerGone as error:
            self.fail_all(error)

    def fail_all(self, error: BaseException) -> None:
        with self.changed:
            if self.broken is None:
                self.broken = error
            futures = list(self.pending.values())
            self.pending.clear()
            waiting = [call.future for call in self.waiting]
            self.waiting.clear()
            self.changed.notify_all()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                futures.append(future)
        for future in futures:
            if not future.done():
                future.set_exception(_same(error))

    # ---- for the executor

    def add(self, call: _Call) -> None:
        with self.changed:
            self.check()
            self.waiting.append(call)
            if len(self.waiting) == 1:
                self.changed.notify_all()

    def defer(self) -> None:
        with self.changed:
            self.check()
            self.deferred += 1

    def add_deferred(self, call: Optional[_Call]) -> None:
        """Adds a call that was deferred, also after shutdown; `None` = nothing came of it."""
        cancelled = broken = None
        with self.changed:
            self.deferred -= 1
            if call is not None and self.broken is not None:
                broken = self.broken
            elif call is not None and self.is_cancelled:
                cancelled = call.future
            elif call is not None:
                self.waiting.append(call)
            self.changed.notify_all()
        if call is not None and broken is not None and call.future.set_running_or_notify_cancel():
            call.future.set_exception(_same(broken))
        if cancelled is not None:
            cancelled.cancel()
            cancelled.set_running_or_notify_cancel()

    def check(self) -> None:
        if self.broken is not None:
            raise _same(self.broken)
        if self.is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if _is_exiting:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    def shut(self, cancel: bool) -> None:
        with self.changed:
            self.is_shut = True
            self.is_cancelled |= cancel
            cancelled = [call.future for call in self.waiting] if cancel else []
            if cancel:
                self.waiting.clear()
            self.changed.notify_all()
        for future in cancelled:
            future.cancel()
            future.set_running_or_notify_cancel()


def _same(error: BaseException) -> BaseException:
    """An exception of its own for each who gets it: it will be given a traceback."""
    try:
        copy = type(error)(*error.args)
    except Exception:
        return error
    copy.__cause__ = error.__cause__
    return copy


_states: "weakref.WeakKeyDictionary[_State, threading.Thread]" = weakref.WeakKeyDictionary()
_is_exiting = False


def _at_exit() -> None:
    """As the executors of the standard library: what was submitted is carried out before Python ends."""
    global _is_exiting
    _is_exiting = True
    for state, thread in list(_states.items()):
        state.shut(False)
        thread.join()


# Before threads are joined; the standard library's own executors register there as well.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)


def _after_fork() -> None:
    """In a child: its parent's executors are not its own, and their locks may be held for ever."""
    for state in list(_states):
        state.lock = threading.Lock()
        state.changed = threading.Condition(state.lock)
        state.broken = ServerGone("this executor was made before a fork; make another one in this process")
        state.waiting.clear()
        state.pending.clear()
        state.is_over = True
    _states.clear()


os.register_at_fork(after_in_child=_after_fork)


class Executor(_BaseExecutor):
    """Carries out calls as tasks of a server.

    Without a server directory, and without `$HQ_SERVER_DIR` or a server in the default place, a server and a worker are
    started on this machine for as long as the executor lives, as `hq run` does; `local=True` demands that, `local=False`
    forbids it.

    :param max_workers: cpus of this machine to use, if a server is started here.
    :param server_dir: directory of the server.
    :param resources: what each call needs: ``{"cpus": 2, "gpus/nvidia": 0.5, "mem": "4GiB"}``.
    :param time_limit: seconds after which a call is ended.
    :param retries: how often a call is tried again after it failed.
    :param priority: calls with a larger one run first.
    :param name: of the job.
    :param env: variables for the interpreters.
    :param init: called once in each interpreter, before its first call, with `initargs`; also named `initializer`.
    :param python: interpreter on the workers.
    :param prologue: lines for a shell ahead of the interpreter: ``module load``, ``conda activate``.
    :param max_tasks_per_child: calls after which an interpreter is replaced.
    :param output: directory of what calls print; `None` = nothing is kept.
    """

    def __init__(
        self,
        max_workers: Optional[int] = None,
        *,
        server_dir: Union[str, "os.PathLike[str]", None] = None,
        local: Optional[bool] = None,
        resources: Optional[Resources] = None,
        time_limit: Optional[float] = None,
        retries: int = 0,
        priority: int = 0,
        name: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        init: Optional[Callable[..., Any]] = None,
        initargs: Tuple[Any, ...] = (),
        initializer: Optional[Callable[..., Any]] = None,
        python: Optional[str] = None,
        prologue: Optional[str] = None,
        shell: str = "bash",
        max_tasks_per_child: Optional[int] = None,
        pin: bool = False,
        output: Optional[str] = "job-%{JOB_ID}",
        bridge: Optional[Bridge] = None,
        _attach: Optional[int] = None,
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        init = init if init is not None else initializer
        if init is not None and not callable(init):
            raise TypeError("init must be a callable")
        if max_tasks_per_child is not None and max_tasks_per_child <= 0:
            raise ValueError("max_tasks_per_child must be >= 1")
        owns_bridge = bridge is None
        if bridge is None:
            bridge, is_local = _open_bridge(max_workers, server_dir, local)
        else:
            is_local = False
        self._bridge = bridge
        try:
            self._functions = _pickle.Functions()
            self._max_workers = max_workers or _count_cpus(bridge) or os.cpu_count() or 1
            base = tempfile.gettempdir() if is_local else os.getcwd()
            spool = os.path.join(base, f".hq-values-{uuid.uuid4().hex[:12]}")
            job = bridge.ask({"what": "open", "name": name or "python"}) if _attach is None else _attach
            workers = self._max_workers if is_local else None
            self._state = _State(bridge, owns_bridge, job, workers, spool)
            #: Calls that were there before, by task id; see :meth:`attach`.
            self.futures: Dict[int, "Future[Any]"] = {}
            if _attach is not None:
                self._adopt(_attach)
            self._options: Dict[str, Any] = {
                "resources": resources,
                "time_limit": time_limit,
                "retries": retries,
                "priority": priority,
                "env": dict(env or {}),
                "python": python or sys.executable or "python3",
                "prologue": prologue,
                "shell": shell,
                "pin": pin,
                "output": output,
            }
            self._context = _context(init, initargs, spool, max_tasks_per_child)
            self._template = self._name_template(self._options)
            state = self._state
            bridge.follow(job, state.on_event)
            if self.futures:
                bridge.send({"op": "settle", "job": job, "first": 0, "count": len(self.futures)})
        except BaseException:
            if owns_bridge:
                bridge.close()
            raise
        bridge.when_gone(state.fail_all)
        self._thread = threading.Thread(target=state.send_calls, name="hq-executor", daemon=True)
        _states[state] = self._thread
        self._thread.start()
        self._finalizer = weakref.finalize(self, state.shut, False)
        self._finalizer.atexit = False

    @classmethod
    def attach(cls, job: int, **options: Any) -> "Executor":
        """Goes on with the job of an executor whose process has ended, also after weeks: ``futures`` of the result has what its
        calls came to, or will come to, by task id. More calls can be added unless that executor was shut down."""
        if options.get("local"):
            raise ValueError("a server that ended with its executor has no job to attach to")
        return cls(local=False, _attach=job, **{key: value for key, value in options.items() if key != "local"})

    def _adopt(self, job: int) -> None:
        info = self._bridge.ask({"what": "info", "job": job})
        if info is None:
            raise HqError(f"job {job} does not exist on this server")
        state = self._state
        for number in range(info["total"]):
            future: "Future[Any]" = Future()
            future.set_running_or_notify_cancel()
            self.futures[number] = state.pending[number] = future
        state.next_id = info["total"]

    # ---- the interface of the standard library

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        return self._submit(self._template, fn, args, kwargs)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: Optional[float] = None,
        chunksize: int = 1,
        buffersize: Optional[int] = None,
    ) -> Iterator[T]:
        return self._map(self._template, fn, iterables, timeout, chunksize, buffersize)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._state.shut(cancel_futures)
        if wait and self._thread is not threading.current_thread():
            self._thread.join()

    # ---- beyond it

    @property
    def job(self) -> int:
        """Id of the job whose tasks the calls are."""
        return self._state.job

    def options(self, **changes: Any) -> "Options":
        """The same executor with other options for the calls that are made through the result: ``resources``,
        ``time_limit``, ``retries``, ``priority``, ``env``, ``python``, ``prologue``, ``shell``, ``pin``, ``output``."""
        unknown = sorted(set(changes) - set(self._options))
        if unknown:
            raise TypeError(f"unknown options: {', '.join(unknown)}; there are {', '.join(sorted(self._options))}")
        return Options(self, self._name_template({**self._options, **changes}))

    def __repr__(self) -> str:
        state = self._state
        with state.lock:
            waiting, pending = len(state.waiting), len(state.pending)
            how = "broken" if state.broken else "shut down" if state.is_shut else "open"
        return f"<hq.Executor of job {state.job}, {how}: {pending} calls under way, {waiting} waiting>"

    def _repr_html_(self) -> str:
        import html

        return f"<code>{html.escape(repr(self))}</code>"

    def _submit(self, template: int, fn: Callable[..., T], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> "Future[T]":
        state = self._state
        with state.lock:
            state.check()
        future: "Future[T]" = Future()
        needs = {value for value in itertools.chain(args, kwargs.values()) if isinstance(value, Future)}
        if needs:
            self._submit_after(needs, future, template, fn, args, kwargs)
            return future
        call = self._call(future, template, fn, args, kwargs)
        if call is not None:
            state.add(call)
        return future

    def _call(
        self, future: "Future[T]", template: int, fn: Callable[..., T], args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> Optional[_Call]:
        """What is to be sent; `None` = it cannot be, which the future says."""
        try:
            payload = _pickle.payload(self._functions.dumps(fn), _pickle.dump_arguments(args, kwargs), False)
            return _Call(future, self._shortened(payload), template)
        except Exception as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
            return None

    def _submit_after(
        self,
        needs: "Set[Future[Any]]",
        future: "Future[T]",
        template: int,
        fn: Callable[..., T],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> None:
        """Submits a call once the futures among its arguments have their values, which take their places."""
        state = self._state
        state.defer()
        lock = threading.Lock()
        left = len(needs)

        def value(argument: Any) -> Any:
            return argument.result() if isinstance(argument, Future) else argument

        def ended(_: "Future[Any]") -> None:
            nonlocal left
            with lock:
                left -= 1
                if left:
                    return
            call = None
            try:
                values = tuple(value(argument) for argument in args)
                named = {name: value(argument) for name, argument in kwargs.items()}
                call = self._call(future, template, fn, values, named)
            except BaseException as error:
                # One of them failed or was cancelled.
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            state.add_deferred(call)

        for need in needs:
            need.add_done_callback(ended)

    def _map(
        self,
        template: int,
        fn: Callable[..., T],
        iterables: Sequence[Iterable[Any]],
        timeout: Optional[float],
        chunksize: int,
        buffersize: Optional[int],
    ) -> Iterator[T]:
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        with self._state.lock:
            self._state.check()
        end = None if timeout is None else time.monotonic() + timeout
        items = zip(*iterables)
        if chunksize == 1:
            made = (self._submit(template, fn, args, {}) for args in items)
        else:
            made = (self._submit_chunk(template, fn, chunk) for chunk in _chunks(items, chunksize))
        first = list(made) if buffersize is None else list(itertools.islice(made, buffersize))
        return _results(collections.deque(first), made, buffersize is not None, end, chunksize > 1)

    def _submit_chunk(self, template: int, fn: Callable[..., Any], chunk: List[Tuple[Any, ...]]) -> "Future[Any]":
        future: "Future[Any]" = Future()
        try:
            arguments = _pickle.dumps(chunk, "the arguments")
            payload = self._shortened(_pickle.payload(self._functions.dumps(fn), arguments, True))
        except Exception as error:
            future.set_running_or_notify_cancel()
            future.set_exception(error)
            return future
        self._state.add(_Call(future, payload, template))
        return future

    def _shortened(self, payload: bytes) -> bytes:
        """A payload that is too long for the server is put into a file."""
        if len(payload) <= _PAYLOAD_MAX:
            return payload
        state = self._state
        os.makedirs(state.spool, 0o700, exist_ok=True)
        state.files = True
        path = os.path.join(state.spool, f"call-{uuid.uuid4().hex}")
        with open(path, "wb") as file:
            file.write(payload)
        return b"\2" + os.fsencode(path)

    def _name_template(self, options: Dict[str, Any]) -> int:
        number = next(_templates)
        message = {"op": "template", "t": number, "spec": _spec(options)}
        self._bridge.request(message, self._context)
        return number


_templates = itertools.count(1)


class Options:
    """An executor with other options for its calls; see :meth:`Executor.options`."""

    def __init__(self, executor: Executor, template: int) -> None:
        self._executor = executor
        self._template = template

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        return self._executor._submit(self._template, fn, args, kwargs)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: Optional[float] = None,
        chunksize: int = 1,
        buffersize: Optional[int] = None,
    ) -> Iterator[T]:
        return self._executor._map(self._template, fn, iterables, timeout, chunksize, buffersize)


def _chunks(items: Iterator[Tuple[Any, ...]], size: int) -> Iterator[List[Tuple[Any, ...]]]:
    while True:
        chunk = list(itertools.islice(items, size))
        if not chunk:
            return
        yield chunk


def _results(
    futures: Deque["Future[Any]"],
    more: Iterator["Future[Any]"],
    is_buffered: bool,
    end: Optional[float],
    is_chunked: bool,
) -> Iterator[Any]:
    try:
        while futures:
            if is_buffered:
                following = next(more, None)
                if following is not None:
                    futures.append(following)
            # Nobody but the caller keeps what was given.
            result = _take(futures.popleft(), end)
            if is_chunked:
                result.reverse()
                while result:
                    yield result.pop()
            else:
                held = [result]
                del result
                yield held.pop()
    finally:
        for future in futures:
            future.cancel()


def _take(future: "Future[Any]", end: Optional[float]) -> Any:
    try:
        return future.result(None if end is None else end - time.monotonic())
    finally:
        future.cancel()
        del future


def _open_bridge(
    max_workers: Optional[int], server_dir: Union[str, "os.PathLike[str]", None], local: Optional[bool]
) -> Tuple[Bridge, bool]:
    if local and server_dir is not None:
        raise ValueError("either local=True or server_dir can be given")
    named = server_dir or os.environ.get("HQ_SERVER_DIR")
    if local is None:
        local = named is None and not os.path.exists(os.path.expanduser("~/.hq-server/hq-current"))
    if local:
        return Bridge(local=True, local_cpus=max_workers), True
    return Bridge(server_dir=named), False


def _count_cpus(bridge: Bridge) -> Optional[int]:
    workers = bridge.ask({"what": "workers"})
    return sum(worker["cpus"] or 0 for worker in workers if worker["is_running"]) or None


def _spec(options: Dict[str, Any]) -> Dict[str, Any]:
    python, prologue = options["python"], options["prologue"]
    args = [python, "-c", BOOT]
    if prologue:
        args = [options["shell"], "-c", f"{prologue}\n\nexec {shlex.join(args)}"]
    output = options["output"]
    spec: Dict[str, Any] = {
        "args": args,
        "env": options["env"],
        "cwd": os.getcwd(),
        "retries": options["retries"],
        "priority": options["priority"],
        "pin": options["pin"],
        "is_call": True,
        "crash_limit": 5,
    }
    if output is not None:
        spec["stdout"] = {"path": os.path.join(output, "%{TASK_ID}.stdout")}
        spec["stderr"] = {"path": os.path.join(output, "%{TASK_ID}.stderr")}
    if options["time_limit"] is not None:
        spec["time_limit"] = float(options["time_limit"])
    if options["resources"]:
        amounts = {name: str(amount) for name, amount in options["resources"].items()}
        if "cpus" not in amounts:
            amounts["cpus"] = "1"
        spec["requests"] = [{"resources": amounts}]
    return spec


def _context(
    init: Optional[Callable[..., Any]], initargs: Tuple[Any, ...], spool: str, max_calls: Optional[int]
) -> bytes:
    head = {
        "python": list(sys.version_info[:2]),
        "path": [os.path.abspath(entry) if isinstance(entry, str) else entry for entry in sys.path],
        "argv": list(sys.argv),
        "spool": spool,
        "max_calls": max_calls,
    }
    context = json.dumps(head).encode() + b"\n"
    if init is not None:
        context += _pickle.dumps((init, tuple(initargs)), "init with its arguments")
    return context
