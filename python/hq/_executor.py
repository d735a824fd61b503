"""`hq.Executor`: the interface of `concurrent.futures`, with calls that the workers of a server run."""

from __future__ import annotations

import collections
import itertools
import json
import operator
import os
import queue
import shlex
import sys
import tempfile
import threading
import time
import uuid
import warnings
import weakref
from concurrent.futures import Executor as _BaseExecutor
from concurrent.futures import Future, TimeoutError
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
from ._calls import Call, begin
from ._fit import Machine
from ._future import CallFuture, Continuation
from ._interpreter import INLINE_MAX
from ._pickle import Needs
from ._program import Argument, ProgramFuture, submit_program
from ._receiver import times_in
from ._spec import CrashLimit, Resources, make_context, make_spec, parse_bytes
from ._spool import Spool, left_of, sweep_once
from ._state import State, states
from .errors import HqError, NotPicklable, ServerGone, ValueTooLarge

T = TypeVar("T")

#: Arguments longer than this go through files, unless files are known to reach all workers: then the limit is that of results.
_PAYLOAD_MAX = 1 << 20
#: The server's size limit for one call, including references to values.
_ENTRY_MAX = 2_000_000



class Executor(_BaseExecutor):
    """Runs calls as tasks of a server.

    Without a server directory, `$HQ_SERVER_DIR`, or a server in the default directory, the executor starts a server and a
    worker on this machine, as `hq run` does, and stops them at its end. `local=True` requires that, `local=False` forbids
    it.

    :param max_workers: cpus of this machine to use, if the executor starts a server.
    :param mp_context: refused; it is here because `ProcessPoolExecutor` has it as its second parameter.
    :param server_dir: directory of the server.
    :param resources: resources of each call: ``{"cpus": 2, "gpus/nvidia": 0.5, "mem": "4GiB"}``.
    :param time_limit: seconds after which a call is ended.
    :param retries: how often a failed call is retried.
    :param retry_grow: growth of a retry after a call ran out of memory or reached its time limit:
        ``"mem=2,time=1.5"``, like ``hq submit --retry-grow``.
    :param crash_limit: how many lost workers a call survives; 0 = unlimited, ``"never-restart"`` = a started call never runs
        again, not even to recompute a lost value.
    :param priority: calls with a higher priority run first.
    :param limits: limits of the server that each call counts toward, such as ``["db", "licenses=2"]``, like
        ``hq submit --limit``.
    :param max_running: how many calls of the executor run at the same time.
    :param max_rate: how many calls of the executor start in a period: ``"20/s"``, ``"100/min"``.
    :param name: name of the job.
    :param env: variables for the interpreters.
    :param init: function that each interpreter calls once with `initargs`, before its first call; alias `initializer`.
    :param python: interpreter on the workers.
    :param prologue: shell commands before the interpreter: ``module load``, ``conda activate``.
    :param max_tasks_per_child: number of calls after which an interpreter is replaced.
    :param max_memory_per_child: memory in bytes, or text such as ``"2GiB"``; a larger interpreter is replaced after a call.
    :param output: directory for the output of calls; `None` = discard it. If the executor starts a server, it also shows the output.
    :param memoize: a call with the same function, by its source, and the same arguments as an earlier one has the same future, unless
        that has failed; with :meth:`attach`, also as a call that ended before.
    :param mode: ``"direct"`` = calls run in the interpreter itself, as threads and CUDA require; ``"fork"`` = each call runs in a
        child process, without side effects on the next one.
    :param values: directory on a file system that this machine and all workers share. Long results are stored there; without it,
        they stay on the workers that made them, and readers fetch them from there.
    :param max_value: limit of a result, in bytes or as text such as ``"2GiB"``; a larger one fails its call with
        :class:`hq.ValueTooLarge`. Default: ``"16GiB"``.
    """

    def __init__(
        self,
        max_workers: Optional[int] = None,
        mp_context: None = None,
        initializer: Optional[Callable[..., Any]] = None,
        initargs: Tuple[Any, ...] = (),
        *,
        server_dir: Union[str, "os.PathLike[str]", None] = None,
        local: Optional[bool] = None,
        resources: Optional[Resources] = None,
        time_limit: Optional[float] = None,
        retries: int = 0,
        retry_grow: Optional[str] = None,
        crash_limit: CrashLimit = 5,
        priority: int = 0,
        limits: Sequence[str] = (),
        max_running: Optional[int] = None,
        max_rate: Optional[str] = None,
        name: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        init: Optional[Callable[..., Any]] = None,
        python: Optional[str] = None,
        prologue: Optional[str] = None,
        shell: str = "bash",
        max_tasks_per_child: Optional[int] = None,
        max_memory_per_child: Union[int, str, None] = None,
        pin: bool = False,
        output: Optional[str] = "job-%{JOB_ID}",
        memoize: bool = False,
        mode: str = "direct",
        values: Union[str, "os.PathLike[str]", None] = None,
        max_value: Union[int, str, None] = None,
        bridge: Optional[Bridge] = None,
        _attach: Optional[int] = None,
    ) -> None:
        if max_workers is not None and operator.index(max_workers) <= 0:
            raise ValueError("max_workers must be greater than 0")
        if mp_context is not None:
            raise ValueError("mp_context has no meaning here: each worker starts its interpreters itself; leave it out")
        init = init if init is not None else initializer
        if init is not None and not callable(init):
            raise TypeError("init must be a callable")
        if max_tasks_per_child is not None and max_tasks_per_child <= 0:
            raise ValueError("max_tasks_per_child must be >= 1")
        if mode not in ("direct", "fork"):
            raise ValueError(f"mode must be 'direct' or 'fork', found {mode!r}")
        if getattr(sys.modules["_hq_values"], "is_importing", False):
            raise RuntimeError(
                "a worker imports this script for a function that can only be sent by its name: put its main part below "
                "`if __name__ == '__main__':`"
            )
        memory = None if max_memory_per_child is None else parse_bytes(max_memory_per_child)
        owns_bridge = bridge is None
        if bridge is None:
            bridge, is_local = _open_bridge(max_workers, server_dir, local)
        else:
            is_local = False
        self._bridge = bridge
        try:
            self._functions = _pickle.Functions()
            cpus = _count_cpus(bridge)
            if cpus is None and not bridge.is_local and not bridge.ask({"what": "queues"}):
                warnings.warn(
                    "the server has neither workers nor allocation queues: calls wait until there is a worker (`hq worker start`, "
                    "`hq alloc add`)",
                    stacklevel=2 if _attach is None else 3,
                )
            self._max_workers = max_workers or cpus or os.cpu_count() or 1
            self._machine = Machine(cpus or self._max_workers) if bridge.is_local else None
            base = os.path.abspath(values) if values is not None else tempfile.gettempdir() if is_local else os.getcwd()
            if _attach is not None:
                _refuse_own_job(_attach, bridge.info["server_uid"])
            job = bridge.ask({"what": "open", "name": name or "python"}) if _attach is None else _attach
            workers = self._max_workers if is_local else None
            server = bridge.info["server_uid"]
            long = INLINE_MAX if bridge.is_local or values is not None else _PAYLOAD_MAX
            spool = Spool(os.path.join(base, f".hq-values-{uuid.uuid4().hex[:12]}"), server, job, bridge.is_local, long)
            if values is not None:
                # Workers store results there.
                spool.make()
            self._state = State(bridge, owns_bridge, job, workers, spool, crash_limit)
            #: The calls that already existed, by task id; see :meth:`attach`.
            self.futures: Dict[int, "CallFuture[Any]"] = {}
            if _attach is not None:
                self._adopt(_attach)
            #: The limits of the job. The last calls that have other ones would change them for all calls.
            self._of_job = {"max_running": max_running, "max_rate": max_rate}
            self._options: Dict[str, Any] = {
                "resources": resources,
                "time_limit": time_limit,
                "retries": retries,
                "retry_grow": retry_grow,
                "crash_limit": crash_limit,
                "priority": priority,
                "limits": limits,
                "env": dict(env or {}),
                "python": python or sys.executable or "python3",
                "prologue": prologue,
                "shell": shell,
                "pin": pin,
                "output": output,
                "memoize": memoize,
            }
            how = {
                "max_calls": max_tasks_per_child,
                "max_memory": memory,
                "max_value": None if max_value is None else parse_bytes(max_value),
                "mode": mode,
                "values": None if values is None else spool.path,
            }
            self._context = make_context(init, initargs, how, bridge.is_local)
            self._templates: Dict[str, int] = {}
            self._memoizing: Set[int] = set()
            self._template = self._state.template = self._name_template(self._options)
            state = self._state
            bridge.follow(job, state.on_event)
            state.ask_for(self.futures)
        except BaseException:
            if owns_bridge:
                bridge.close()
            raise
        bridge.when_gone(state.fail_all)
        self._thread = threading.Thread(target=state.send_calls, name="hq-executor", daemon=True)
        states[state] = self._thread
        self._thread.start()
        sweep_once(base, server, lambda job: bridge.ask({"what": "info", "job": job}))
        self._finalizer = weakref.finalize(self, state.shut, False)
        self._finalizer.atexit = False

    @classmethod
    def attach(cls, job: int, **options: Any) -> "Executor":
        """Continues the job of an executor whose process has ended, even after weeks. ``futures`` of the result maps task ids to
        futures; the result of a successful program is `None`. More calls can be added unless that executor was shut
        down."""
        if options.get("local"):
            raise ValueError("a server that ended with its executor has no job to attach to")
        return cls(local=False, _attach=operator.index(job), **{key: value for key, value in options.items() if key != "local"})

    def _adopt(self, job: int) -> None:
        """Takes over the existing calls of the job."""
        # Before the question: calls of processes that end later may be missing in its answer.
        directories = left_of(job, self._bridge.info["server_uid"], os.path.dirname(self._state.spool.path))
        info = self._bridge.ask({"what": "info", "job": job})
        if info is None:
            raise HqError(f"job {job} does not exist on this server")
        state = self._state
        known = [range(first, first + count * step, step) for first, count, step in info["ids"]]
        for number in itertools.chain(*known):
            future: "CallFuture[Any]" = CallFuture(state)
            future._number = number
            future.set_running_or_notify_cancel()
            self.futures[number] = state.pending[number] = future
        state.next_id = state.adopted = max((numbers[-1] + 1 for numbers in known), default=0)
        state.adopted_left, state.adopted_directories = len(self.futures), directories

    # ---- the interface of the standard library

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "CallFuture[T]":
        return self._submit(self._template, fn, args, kwargs)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: Optional[float] = None,
        chunksize: int = 1,
        buffersize: Optional[int] = None,
        ordered: bool = True,
    ) -> Iterator[T]:
        """Like the method of the standard library. With `ordered=False`, the results of calls come as these end."""
        return self._map(self._template, fn, iterables, timeout, chunksize, buffersize, ordered)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._state.shut(cancel_futures)
        # In a callback of a future, shutdown would wait for that same callback.
        if wait and self._thread is not threading.current_thread() and not self._state.is_telling_here:
            self._state.finished.wait()
            self._thread.join()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._leave(kind is not None and issubclass(kind, KeyboardInterrupt))

    # ---- extensions

    def _leave(self, cancel: bool) -> None:
        """Ends the executor at the end of a block. An interrupt cancels the calls that have not begun, and another one does not wait
        for the others."""
        interrupt = None
        while True:
            try:
                self.shutdown(cancel_futures=cancel)
                break
            except KeyboardInterrupt as error:
                if cancel:
                    self._abandon()
                    raise
                cancel, interrupt = True, error
        if interrupt is not None:
            raise interrupt

    def _abandon(self) -> None:
        """Leaves running calls to the server and says how to reach them."""
        state = self._state
        # The end of Python must not wait for them either.
        states.pop(state, None)
        if self._bridge.is_local or state.broken is not None:
            return
        try:
            self._bridge.begin({"op": "ask", "question": {"what": "close", "job": state.job}})
        except ServerGone:
            pass
        place = "" if self._bridge.server_dir is None else f" --server-dir {shlex.quote(os.fspath(self._bridge.server_dir))}"
        with state.lock:
            running = len(state.pending)
        print(
            f"hq: job {state.job} goes on with {running} running calls. `hq{place} job cancel {state.job}` ends them, "
            f"hq.Executor.attach({state.job}) gets their results.",
            file=sys.stderr,
        )

    @property
    def _broken(self) -> bool:
        # The executors of the standard library have this attribute.
        return self._state.broken is not None

    @property
    def job(self) -> int:
        """The id of the job whose tasks the calls are."""
        return self._state.job

    def put(self, value: T) -> "Future[T]":
        """Stores a value for calls. Pass the returned future to any number of calls, at any depth, in place of the value. The
        stored copy is deleted when the future has been garbage-collected and these calls have ended."""
        with self._state.lock:
            self._state.check()
        future: "CallFuture[T]" = CallFuture()
        future.set_result(value)
        # Changes of the object have no effect on calls.
        future._stored = _pickle.store(value, self._state.spool)
        return future

    def options(self, **changes: Any) -> "Options":
        """Returns the same executor with other options for calls that are made through the result: ``resources``,
        ``time_limit``, ``retries``, ``retry_grow``, ``crash_limit``, ``priority``, ``limits``, ``env``, ``python``, ``prologue``,
        ``shell``, ``pin``, ``output``, ``memoize``."""
        unknown = sorted(set(changes) - set(self._options))
        if unknown:
            raise TypeError(f"unknown options: {', '.join(unknown)}; there are {', '.join(sorted(self._options))}")
        return Options(self, self._name_template({**self._options, **changes}))

    def __reduce__(self) -> Any:
        raise NotPicklable(
            "an executor belongs to the process that has made it: make calls with hq.Executor() in a call, which has a job of its own"
        )

    def __repr__(self) -> str:
        state = self._state
        with state.lock:
            waiting, pending = len(state.waiting), len(state.pending)
            how = "broken" if state.broken else "shut down" if state.is_shut else "open"
        return f"<hq.Executor of job {state.job}, {how}: {pending} calls under way, {waiting} waiting>"

    def _repr_html_(self) -> str:
        import html

        return f"<code>{html.escape(repr(self))}</code>"

    def _submit(
        self, template: int, fn: Callable[..., T], args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> "CallFuture[T]":
        state = self._state
        with state.lock:
            state.check()
        key = _pickle.key_of(fn, args, kwargs) if template in self._memoizing else None

        def make() -> "CallFuture[T]":
            future: "CallFuture[T]" = CallFuture(state)
            self._start(future, lambda needs: _pickle.with_key(self._payload(fn, (args, kwargs), needs), key), template)
            return future

        return make() if key is None else state.memoized(key, make)

    def _payload(self, fn: Callable[..., Any], call: Tuple[Tuple[Any, ...], Dict[str, Any]], needs: Needs) -> bytes:
        arguments = _pickle.dump_arguments(*call, needs)
        return needs.payload(self._functions.dumps(fn, needs), arguments, False)

    def _chunk_payload(self, fn: Callable[..., Any], chunk: List[Tuple[Any, ...]], needs: Needs) -> bytes:
        arguments = _pickle.dumps(chunk, "the arguments", needs)
        return needs.payload(self._functions.dumps(fn, needs), arguments, True)

    def _start(self, future: "CallFuture[Any]", make: Callable[[Needs], bytes], template: int) -> None:
        """Submits a call, at once or when the futures among its arguments have values."""
        needs = Needs(self._state.spool)
        call = self._call(future, make, template, needs)
        if needs.missing:
            self._state.defer(future)
            self._wait_for(needs.missing, future, make, template)
        elif call is not None:
            self._state.add(call)

    def _call(
        self, future: "CallFuture[Any]", make: Callable[[Needs], bytes], template: int, needs: Needs
    ) -> Optional[Call]:
        """Returns the call to send. `None` = a value is missing, or the call cannot be sent and its future has the error."""
        failure: BaseException
        try:
            payload = make(needs)
            if needs.missing:
                return None
            payload = _pickle.with_needs(payload, needs.held)
            if len(payload) > _ENTRY_MAX and not needs.held:
                raise ValueTooLarge(
                    f"the call has {len(payload)} bytes that cannot be put into {self._state.spool.path}, and at most {_ENTRY_MAX} fit "
                    "without: values= names another directory"
                )
            if len(payload) > _ENTRY_MAX:
                raise ValueTooLarge(
                    f"the call needs {len(needs.held)} long values of other calls, whose references have {len(payload)} bytes, and at "
                    f"most {_ENTRY_MAX} fit: let some calls combine a few hundred of them each"
                )
            if needs.known:
                self._state.spool.count(stored for _, stored, _ in needs.known.values())
            return Call(future, payload, template, None, tuple(needs.held), tuple(needs.stored))
        except _pickle.NeedFailed as error:
            failure = error.error
        except Exception as error:
            failure = error
        needs.missing.clear()
        if begin(future):
            future.set_exception(failure)
        return None

    def _wait_for(
        self, missing: "Set[Future[Any]]", future: "CallFuture[Any]", make: Callable[[Needs], bytes], template: int
    ) -> None:
        state = self._state

        def ended() -> None:
            if not state.claim_deferred(future):
                return
            needs = Needs(state.spool)
            call = self._call(future, make, template, needs)
            if not needs.missing:
                state.add_deferred(call)
            elif state.defer_again(future):
                # Meanwhile, a caller has put another future into an argument.
                self._wait_for(needs.missing, future, make, template)
            else:
                state.add_deferred(Call(future, b"", template))

        when_all(missing, ended)

    def _map(
        self,
        template: int,
        fn: Callable[..., T],
        iterables: Sequence[Iterable[Any]],
        timeout: Optional[float],
        chunksize: int,
        buffersize: Optional[int],
        ordered: bool,
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
        results = _results if ordered else _unordered
        return results(self._state, collections.deque(first), made, buffersize is not None, end, chunksize > 1)

    def _submit_chunk(self, template: int, fn: Callable[..., Any], chunk: List[Tuple[Any, ...]]) -> "CallFuture[Any]":
        future: "CallFuture[Any]" = CallFuture(self._state)
        self._start(future, lambda needs: self._chunk_payload(fn, chunk, needs), template)
        return future

    def program(
        self,
        args: "Sequence[Argument]",
        *,
        stdin: Union[str, bytes, None] = None,
        stdout: Union[str, "os.PathLike[str]", None] = None,
        stderr: Union[str, "os.PathLike[str]", None] = None,
        cwd: Union[str, "os.PathLike[str]", None] = None,
        env: Optional[Mapping[str, str]] = None,
        deps: "Sequence[CallFuture[Any]]" = (),
        **changes: Any,
    ) -> "ProgramFuture":
        """Runs a program as a task of the job. Futures among the words are replaced by their values; the futures in `deps`
        must succeed first. The result is a :class:`Completed`; a failed program raises :class:`ProgramFailed`. `changes`
        as in :meth:`options`."""
        unknown = sorted(set(changes) - set(self._options))
        if unknown:
            raise TypeError(f"unknown options: {', '.join(unknown)}; there are {', '.join(sorted(self._options))}")
        options = {**self._options, **changes, **self._of_job}
        self._check_fit(options)
        return submit_program(
            self._state,
            self._state.job,
            self._start_program,
            args,
            options,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            deps=deps,
            env=env,
        )

    def _start_program(
        self,
        future: "CallFuture[Any]",
        prepare: Callable[[], Tuple[Dict[str, Any], bytes]],
        needs: "Set[CallFuture[Any]]",
    ) -> None:
        """Submits a program after the futures that it needs have succeeded."""

        def make() -> Optional[Call]:
            try:
                for need in needs:
                    error = need.exception(0)
                    if error is not None:
                        raise error
                return Call(future, b"", next(_numbers), prepare())
            except BaseException as error:
                if begin(future):
                    future.set_exception(error)
                return None

        state = self._state
        if all(need.done() for need in needs):
            with state.lock:
                state.check()
            call = make()
            if call is not None:
                state.add(call)
            return

        def ended() -> None:
            if state.claim_deferred(future):
                state.add_deferred(make())

        state.defer(future)
        when_all(needs, ended)

    def _name_template(self, options: Dict[str, Any]) -> int:
        """Returns the number of the common part of calls with these options. Equal options share it."""
        self._check_fit(options)
        spec = make_spec({**options, **self._of_job})
        key = json.dumps([spec, options["memoize"]], sort_keys=True)
        known = self._templates.get(key)
        if known is not None:
            return known
        number = next(_numbers)
        self._bridge.request({"op": "template", "t": number, "spec": spec}, self._context)
        self._templates[key] = number
        if options["memoize"]:
            self._memoizing.add(number)
        self._state.values.crash_limits[number] = options["crash_limit"]
        if self._bridge.is_local and options["output"] is not None:
            directory = os.path.abspath(options["output"].replace("%{JOB_ID}", str(self._state.job)))
            self._state.outputs[number] = directory, times_in(directory)
        return number

    def _check_fit(self, options: Dict[str, Any]) -> None:
        if self._machine is not None and options["resources"]:
            self._machine.check(options["resources"])
        if self._bridge.is_local and options["limits"]:
            raise ValueError(
                "limits belong to a server with other jobs, and this executor has its own: max_running and max_rate limit its calls"
            )


_numbers = itertools.count(1)


def when_all(needs: "Iterable[Future[Any]]", then: Callable[[], None]) -> None:
    """Calls a function after all of these futures have ended."""
    needs = set(needs)
    lock = threading.Lock()
    left = len(needs)

    def ended(_: "Future[Any]") -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        _do_in_turn(then)

    for need in needs:
        need.add_done_callback(Continuation(ended))


class _Turns(threading.local):
    """The pending work of this thread; `None` = the thread is not working."""

    queue: Optional[Deque[Callable[[], None]]] = None


_turns = _Turns()


def _do_in_turn(then: Callable[[], None]) -> None:
    """Calls a function, but never within another such call, because chains of futures that end each other may be long."""
    if _turns.queue is not None:
        _turns.queue.append(then)
        return
    queue = _turns.queue = collections.deque([then])
    failure: Optional[BaseException] = None
    try:
        while queue:
            try:
                queue.popleft()()
            except BaseException as error:
                # A user's callback failed. The other futures must be settled as well.
                failure = error if failure is None else failure
    finally:
        _turns.queue = None
    if failure is not None:
        raise failure


class Options:
    """An executor with other options for its calls; see :meth:`Executor.options`."""

    def __init__(self, executor: Executor, template: int) -> None:
        self._executor = executor
        self._template = template

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "CallFuture[T]":
        return self._executor._submit(self._template, fn, args, kwargs)

    def put(self, value: T) -> "Future[T]":
        return self._executor.put(value)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: Optional[float] = None,
        chunksize: int = 1,
        buffersize: Optional[int] = None,
        ordered: bool = True,
    ) -> Iterator[T]:
        return self._executor._map(self._template, fn, iterables, timeout, chunksize, buffersize, ordered)


def _chunks(items: Iterator[Tuple[Any, ...]], size: int) -> Iterator[List[Tuple[Any, ...]]]:
    while True:
        chunk = list(itertools.islice(items, size))
        if not chunk:
            return
        yield chunk


def _results(
    state: State,
    futures: "Deque[CallFuture[Any]]",
    more: "Iterator[CallFuture[Any]]",
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
                del following
            # Only the caller keeps the values.
            held = _take(state, futures.popleft(), end, is_chunked)
            while held:
                yield held.pop()
    finally:
        # The other results are no longer wanted.
        state.cancel_waiting(futures)


def _unordered(
    state: State,
    first: "Deque[CallFuture[Any]]",
    more: "Iterator[CallFuture[Any]]",
    is_buffered: bool,
    end: Optional[float],
    is_chunked: bool,
) -> Iterator[Any]:
    done: "queue.SimpleQueue[CallFuture[Any]]" = queue.SimpleQueue()
    pending: "Set[CallFuture[Any]]" = set()
    try:
        while first or pending:
            while first:
                pending.add(first[0])
                first.popleft().add_done_callback(Continuation(done.put))  # type: ignore[arg-type]
            try:
                future = done.get(timeout=None if end is None else max(end - time.monotonic(), 0))
            except queue.Empty:
                raise TimeoutError() from None
            pending.remove(future)
            if is_buffered:
                first.extend(itertools.islice(more, 1))
            held = _take(state, future, end, is_chunked)
            del future
            while held:
                yield held.pop()
    finally:
        state.cancel_waiting([*pending, *first])


def _take(state: State, future: "CallFuture[Any]", end: Optional[float], is_chunked: bool) -> List[Any]:
    """Returns the results of a call, the last one first."""
    try:
        result = future.result(None if end is None else end - time.monotonic())
        return result[::-1] if is_chunked else [result]
    finally:
        if not future.done():
            state.cancel_waiting([future])
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


def _refuse_own_job(job: int, server_uid: str) -> None:
    """Raises an error in a task of this job: the executor would wait for its own task, and close the caller's job."""
    # This is `SERVER/JOB@TASK/…` of the task that started this process. A reused interpreter runs calls of several
    # jobs.
    server = os.environ.get("HQ_INSTANCE_KEY", "").split("/")[0]
    if server == server_uid and os.environ.get("HQ_JOB_ID") == str(job):
        raise HqError(
            f"a call of job {job} cannot attach to its own job, because it would wait for its own end. Use hq.Executor() in the call, "
            "which creates a separate job, or return the next call to the caller"
        )


def _count_cpus(bridge: Bridge) -> Optional[int]:
    workers = bridge.ask({"what": "workers"})
    return sum(worker["cpus"] or 0 for worker in workers if worker["is_running"]) or None
