"""Calls that are cancelled, depend on each other, or break their interpreter. Each future settles, and other calls continue."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
from concurrent.futures import BrokenExecutor, CancelledError, Future, as_completed, wait

import pytest
from conftest import Cluster, wait_for

import hq
from hq._bridge import Bridge
from hq._calls import Call
from hq._future import CallFuture


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """An executor for tests that do not change it."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("shared"))
    with hq.Executor(2, local=True) as executor:
        yield executor
    os.chdir(before)


def wait_for_file(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def hold(begun, go):
    """Runs until the call may end."""
    import os
    import time

    with open(begun + ".tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(begun + ".tmp", begun)
    while not os.path.exists(go):
        time.sleep(0.01)
    return "done"


def begin(executor, path, count):
    """Starts calls that run until the file `go` exists. Returns them and the interpreters where they run."""
    names = [str(path / f"begun-{number}") for number in range(count)]
    held = [executor.submit(hold, name, str(path / "go")) for name in names]
    wait_for(lambda: all(os.path.exists(name) for name in names), "all of them run")
    return held, [int(open(name).read()) for name in names]


def counts(cluster, job):
    bridge = Bridge(server_dir=cluster.dir)
    try:
        return bridge.ask({"what": "info", "job": job})
    finally:
        bridge.close()


def nap():
    time.sleep(2)
    return "rested"


def test_a_call_that_reached_its_time_limit_gets_more_time(cluster):
    with hq.Executor(server_dir=cluster.dir, time_limit=1, retry_grow="time=100") as executor:
        assert executor.submit(nap).result(60) == "rested"
    with pytest.raises(hq.HqError, match="mem cannot grow"):
        hq.Executor(server_dir=cluster.dir, retry_grow="mem=2")


# Cancelling.


def test_a_call_that_runs_is_ended_with_its_interpreter(cluster, tmp_path):
    with hq.Executor(server_dir=cluster.dir, retries=3) as executor:
        (future,), (pid,) = begin(executor, tmp_path, 1)
        told = []
        future.add_done_callback(told.append)
        assert future.cancel() and future.cancelled() and future.cancel()
        assert told == [future]
        with pytest.raises(CancelledError):
            future.result(0)
        wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "its interpreter ends")
        assert executor.submit(pow, 2, 5).result(60) == 32
        job = executor.job
    info = counts(cluster, job)
    assert (info["canceled"], info["finished"], info["is_open"]) == (1, 1, False)


def test_a_call_that_waits_on_the_server_never_begins(cluster, tmp_path):
    with hq.Executor(server_dir=cluster.dir) as executor:
        held, _ = begin(executor, tmp_path, 2)
        unwanted = executor.submit(hold, str(tmp_path / "unwanted"), str(tmp_path / "go"))
        wait_for(lambda: unwanted.task is not None, "it is handed over")
        assert unwanted.cancel()
        question = {"what": "info", "job": executor.job}
        wait_for(lambda: executor._bridge.ask(question)["canceled"] == 1, "the server knows it")
        (tmp_path / "go").touch()
        assert [future.result(60) for future in held] == ["done", "done"]
        assert not held[0].cancel() and not held[0].cancelled()
        assert executor.submit(pow, 2, 3).result(60) == 8
        job = executor.job
    assert counts(cluster, job)["canceled"] == 1
    assert not (tmp_path / "unwanted").exists()


def test_a_shutdown_that_cancels_lets_what_runs_end(cluster, tmp_path):
    executor = hq.Executor(server_dir=cluster.dir)
    held, _ = begin(executor, tmp_path, 2)
    waiting = [executor.submit(pow, 2, number) for number in range(50)]
    wait_for(lambda: waiting[-1].task is not None, "all are handed over")
    question = {"what": "info", "job": executor.job}
    wait_for(lambda: executor._bridge.ask(question)["running"] == 2, "the server knows that they run")
    executor.shutdown(wait=False, cancel_futures=True)
    assert wait(waiting, timeout=60).not_done == set()
    assert all(future.cancelled() for future in waiting)
    (tmp_path / "go").touch()
    assert [future.result(60) for future in held] == ["done", "done"]
    executor.shutdown()


def test_a_job_that_is_cancelled_by_others_cancels_its_futures(cluster, tmp_path):
    with hq.Executor(server_dir=cluster.dir) as executor:
        held, _ = begin(executor, tmp_path, 1)
        cluster.ask("job", "cancel", str(executor.job))
        assert wait(held, timeout=60).not_done == set()
        assert held[0].cancelled()


def test_a_cancel_and_an_end_at_once_settle_a_future_once(shared):
    for _ in range(50):
        future = shared.submit(pow, 2, 3)
        if future.cancel():
            assert future.cancelled()
        else:
            assert future.result(60) == 8
    assert shared.submit(pow, 2, 4).result(60) == 16


# Futures.


def test_futures_are_small():
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        futures = [CallFuture() for _ in range(1_000)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(futures) < 500
    assert futures[0].__dict__ == {}


def test_threads_wait_for_a_future():
    future = CallFuture()
    with pytest.raises(TimeoutError):
        try:
            future.result(0.001)
        except Exception as error:
            # Until Python 3.11, this was a different class.
            raise TimeoutError from error
    found = []
    threads = [threading.Thread(target=lambda: found.append(future.result(60))) for _ in range(5)]
    for thread in threads:
        thread.start()
    future.set_running_or_notify_cancel()
    future.set_result(7)
    for thread in threads:
        thread.join()
    assert found == [7] * 5


def test_futures_anywhere_among_the_arguments_are_dependencies(shared):
    first, second = shared.submit(pow, 2, 3), shared.submit(eval, "__import__('time').sleep(0.2) or 4")
    assert shared.submit(sum, [first, 1, second]).result(60) == 13
    nested = {"a": [first, (second, {"b": second})]}
    assert shared.submit(lambda x, y: (x, y), nested, y=first).result(60) == ({"a": [8, (4, {"b": 4})]}, 8)
    assert list(shared.map(pow, [first, second], [1, second], chunksize=2)) == [8, 256]
    failing = shared.submit(divmod, 1, 0)
    with pytest.raises(ZeroDivisionError):
        shared.submit(sum, [1, failing]).result(60)
    leaving = shared.submit(eval, "__import__('sys').exit(3)")
    wait([leaving])
    with pytest.raises(SystemExit):
        shared.submit(sum, [leaving]).result(60)


def test_a_future_that_was_cancelled_cancels_what_needs_it(cluster, tmp_path):
    with hq.Executor(server_dir=cluster.dir) as executor:
        (held,), _ = begin(executor, tmp_path, 1)
        dependent = executor.submit(len, [held])
        held.cancel()
        with pytest.raises(CancelledError):
            dependent.result(60)


@pytest.mark.parametrize("settle", [lambda first: first.set_exception(KeyError("early")), lambda first: first.cancel()])
def test_long_chains_end_with_their_first(shared, settle):
    first = Future()
    chain = [shared.submit(len, first)]
    while len(chain) < 1_000:
        chain.append(shared.submit(len, chain[-1]))
    settle(first)
    assert wait(chain, timeout=60).not_done == set()
    kinds = {type(future.exception()) for future in chain}
    assert kinds == {CancelledError if first.cancelled() else KeyError}
    assert shared.submit(pow, 2, 3).result(60) == 8


def ends(thread):
    thread.join(60)
    return not thread.is_alive()


def test_a_shutdown_that_cancels_waits_for_no_future_of_others():
    executor = hq.Executor(1, local=True)
    first = Future()
    chain = [executor.submit(len, first)]
    chain.append(executor.program(["echo", chain[0]]))
    chain.append(executor.submit(len, chain[1]))
    ending = threading.Thread(target=executor.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    ending.start()
    assert ends(ending)
    assert all(future.cancelled() for future in chain)
    first.set_result("abc")


def test_an_interrupt_at_the_end_of_a_job_cancels_it(monkeypatch):
    def interrupt(job):
        raise KeyboardInterrupt

    monkeypatch.setattr(hq.Job, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        with hq.Job(max_workers=1, local=True) as job:
            dependent = job.function(len, Future())
    assert dependent.cancelled()


# Failures of the process that submits calls.


def test_a_finalizer_may_run_on_a_thread_that_holds_the_lock():
    executor = hq.Executor(1, local=True)
    state, sending = executor._state, executor._thread

    def collect():
        with state.lock:
            executor._finalizer()

    collecting = threading.Thread(target=collect, daemon=True)
    collecting.start()
    assert ends(collecting) and ends(sending)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(pow, 2, 3)


def test_the_thread_that_reads_never_writes(shared, tmp_path, monkeypatch):
    bridge, state = shared._bridge, shared._state
    send, written = bridge.send, []

    def watched(message, blob=b""):
        written.append((message["op"], threading.current_thread().name))
        send(message, blob)

    monkeypatch.setattr(bridge, "send", watched)
    (held,), _ = begin(shared, tmp_path, 1)
    said = shared.program(["echo", held], stdout="said")
    state.on_event({"ev": "again", "job": shared.job}, memoryview(b""))
    wait_for(lambda: "settle" in dict(written), "it is asked what ended")
    (tmp_path / "go").touch()
    assert said.result(60).read() == "done\n"
    assert set(dict(written)) - {"release"} == {"calls", "settle", "template"}
    assert {thread for _, thread in written} == {"hq-executor"}


def test_what_a_program_reads_fails_only_itself(shared):
    wrong = shared.program(["cat"], stdin=7)
    with pytest.raises(TypeError):
        wrong.result(60)
    assert shared.submit(pow, 2, 3).result(60) == 8


def test_a_child_does_not_wait_for_the_locks_of_its_parent(shared):
    bridge = shared._bridge
    with bridge._lock, bridge._write_lock:
        pid = os.fork()
        if pid == 0:
            try:
                bridge.ask({"what": "workers"})
            except BrokenExecutor:
                os._exit(17)
            finally:
                os._exit(2)
        ended = wait_for(lambda: os.waitpid(pid, os.WNOHANG)[1], "the child ends")
    assert os.waitstatus_to_exitcode(ended) == 17


def test_a_callback_cannot_wait_for_the_thread_that_it_is_on(shared):
    found = []

    def ask(_):
        try:
            shared.options(priority=77)
        except RuntimeError as error:
            found.append(str(error))

    future = shared.submit(eval, "__import__('time').sleep(0.2)")
    future.add_done_callback(ask)
    future.result(60)
    wait_for(lambda: found, "the callback says why not")
    assert "callback" in found[0]
    assert shared.submit(pow, 2, 3).result(60) == 8


def test_a_callback_can_shut_its_executor_down(cluster):
    ended = threading.Event()
    with hq.Executor(server_dir=cluster.dir) as executor:

        def end(_):
            executor.shutdown()
            ended.set()

        future = executor.submit(eval, "__import__('time').sleep(0.2)")
        future.add_done_callback(end)
        if not ended.wait(60):
            os.kill(executor._bridge.pid, signal.SIGKILL)
        assert ended.is_set(), "the callback waits for itself"
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(pow, 2, 3)


def test_a_child_of_a_fork_does_not_hold_up_the_end():
    with hq.Executor(1, local=True) as executor:
        assert executor.submit(pow, 2, 3).result(60) == 8
        go_on, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(told)
            os.read(go_on, 1)
            os._exit(0)
        os.close(go_on)
        bridge = executor._bridge._process
        try:
            executor.shutdown()
            # The bridge was killed if it did not notice that its parent has ended.
            assert bridge.returncode == 0
        finally:
            os.close(told)
            os.waitpid(pid, 0)


def test_a_callback_that_exits_does_not_end_the_others(shared):
    def leave(_):
        raise SystemExit(3)

    first = shared.submit(pow, 2, 3)
    first.add_done_callback(leave)
    assert first.result(60) == 8
    assert shared.submit(pow, 2, 4).result(60) == 16


def test_a_job_goes_on_when_the_bridge_of_its_executor_is_killed(cluster, tmp_path):
    executor = hq.Executor(server_dir=cluster.dir)
    first = executor.submit(pow, 2, 3)
    assert first.result(60) == 8
    held, _ = begin(executor, tmp_path, 2)
    os.kill(executor._bridge.pid, signal.SIGKILL)
    for future in held:
        with pytest.raises(BrokenExecutor):
            future.result(60)
    with pytest.raises(BrokenExecutor):
        executor.submit(pow, 2, 3)
    executor.shutdown()
    (tmp_path / "go").touch()
    with hq.Executor.attach(executor.job, server_dir=cluster.dir) as other:
        found = [other.futures[number].result(60) for number in range(3)]
        assert found == [8, "done", "done"]
        assert other.submit(pow, 2, 4).result(60) == 16


def test_long_arguments_are_kept_when_the_bridge_is_killed(cluster, tmp_path):
    executor = hq.Executor(server_dir=cluster.dir)
    text = b"x" * (2 << 20)
    held, _ = begin(executor, tmp_path, 2)
    long = executor.submit(bytes, text)
    question = {"what": "info", "job": executor.job}
    wait_for(lambda: executor._bridge.ask(question)["total"] == 3, "the server has it")
    os.kill(executor._bridge.pid, signal.SIGKILL)
    with pytest.raises(BrokenExecutor):
        long.result(60)
    executor.shutdown()
    (tmp_path / "go").touch()
    with hq.Executor.attach(executor.job, server_dir=cluster.dir) as other:
        assert other.futures[2].result(60) == text


def test_programs_that_had_ended_are_not_dead(cluster):
    with hq.Executor(server_dir=cluster.dir) as executor:
        executor.program(["true"]).result(60)
    with hq.Executor.attach(executor.job, server_dir=cluster.dir) as other:
        assert other.futures[0].result(60) is None


def test_executors_of_one_bridge_leave_nothing_behind(cluster):
    bridge = Bridge(server_dir=cluster.dir)
    try:
        for _ in range(3):
            with hq.Executor(bridge=bridge) as executor:
                assert executor.submit(pow, 2, 3).result(60) == 8
        assert (bridge._listeners, bridge._on_gone, bridge._answers, bridge._progress) == ({}, [], {}, {})
    finally:
        bridge.close()


def test_the_same_options_have_one_template(shared):
    fast, same = shared.options(priority=3), shared.options(priority=3)
    assert fast._template == same._template != shared._template
    assert fast.submit(pow, 2, 3).result(60) == 8


# Calls that break their interpreter.


class Explodes:
    def __reduce__(self):
        return exec, ("raise ValueError('poison')",)


class ExplodesHere:
    """Can be sent, but not read in this process."""

    def __init__(self, pid):
        self.pid = pid

    def __reduce__(self):
        return eval, (f"{{}}[1] if __import__('os').getpid() == {self.pid} else 5",)


class Hermit(Exception):
    """Refuses to be pickled."""

    def __reduce__(self):
        raise TypeError("not me")


class Picky(Exception):
    """Can be sent, but cannot be recreated from its arguments."""

    def __init__(self, first, second):
        super().__init__(first)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class RaisesHere(Exception):
    """Can be read on the worker, but not in this process."""

    def __init__(self, pid):
        super().__init__(pid)
        self.pid = pid

    def __reduce__(self):
        return eval, (f"{{}}[1] if __import__('os').getpid() == {self.pid} else Exception()",)


def fail(kind, *args):
    raise kind(*args)


def deep(limit):
    """Exhausts the stack of Python, or that of the thread."""
    import sys

    sys.setrecursionlimit(limit)

    def down(level):
        return max([level], key=lambda level: down(level + 1))

    return down(0)


class Endless:
    """Its pickle has no end."""

    def __reduce__(self):
        return list, ((Endless(),),)


def close_streams():
    import sys

    sys.stdout.close()
    sys.stderr.close()
    os.close(1)
    os.close(2)
    return "closed"


def nest(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "function, args, kind, words",
    [
        (len, ([threading.Lock()],), hq.NotPicklable, "argument 1"),
        (len, (nest(100_000),), hq.NotPicklable, "cannot be pickled"),
        (len, (Explodes(),), ValueError, "poison"),
        (nest, (100_000,), hq.NotPicklable, "cannot be pickled"),
        (Explodes, (), hq.HqError, "poison"),
        (ExplodesHere, (os.getpid(),), hq.HqError, "KeyError"),
        (eval, ("(_ for _ in ()).throw(KeyboardInterrupt)",), hq.CallDied, "exit code 130"),
        (eval, ("(_ for _ in ()).throw(GeneratorExit)",), GeneratorExit, ""),
        (eval, ("exec('raise type(chr(66), (Exception,), {chr(95)*2 + chr(114): 1})')",), Exception, ""),
        (os.abort, (), hq.CallKilled, "SIGABRT"),
        (os.kill, (0, signal.SIGKILL), hq.CallKilled, "SIGKILL"),
        (os.closerange, (0, 1_000), hq.CallDied, ""),
        (os._exit, (0,), hq.CallDied, "exit code 0"),
        (sys.exit, (3,), SystemExit, "3"),
        (fail, (Hermit, "alone"), Hermit, "alone"),
        (fail, (Picky, 1, 2), Picky, "1"),
        (fail, (Mute,), Mute, ""),
        (fail, (RaisesHere, os.getpid()), hq.HqError, "KeyError"),
        (deep, (1_000,), RecursionError, ""),
        (Endless, (), hq.NotPicklable, "recursion"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_poison_fails_its_own_call(shared, function, args, kind, words):
    others = [shared.submit(pow, 2, number) for number in range(10)]
    with pytest.raises(kind) as caught:
        shared.submit(function, *args).result(60)
    # One of the errors has no text.
    assert words in (str(caught.value) if words else "")
    assert [other.result(60) for other in others] == [2**number for number in range(10)]


def test_a_call_that_closes_its_streams_has_a_result(shared):
    assert shared.submit(close_streams).result(60) == "closed"
    assert shared.submit(pow, 2, 3).result(60) == 8


def test_a_stack_that_overflows_ends_one_call():
    with hq.Executor(1, local=True) as executor:
        with pytest.raises((hq.CallDied, RecursionError, MemoryError)):
            executor.submit(deep, 10_000_000).result(60)
        assert executor.submit(pow, 2, 3).result(60) == 8


def bomb(children):
    """Creates child processes until that fails. The children do the same."""
    import os
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    os.setuid(65534)
    made = []
    try:
        while len(made) < children:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            made.append(pid)
    finally:
        for pid in made:
            os.waitpid(pid, 0)
    return len(made)


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed, whose processes can be limited")
def test_a_fork_bomb_is_an_error_where_processes_are_limited():
    with hq.Executor(1, local=True, max_tasks_per_child=1) as executor:
        future = executor.submit(bomb, 100)
        with pytest.raises(BlockingIOError):
            future.result(60)
        assert executor.submit(pow, 2, 3).result(60) == 8


def test_children_that_outlive_a_fork_answer_nothing(shared):
    def fork():
        import os

        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        return os.getpid(), pid

    parent, child = shared.submit(fork).result(60)
    assert child and parent != child
    assert shared.submit(pow, 2, 3).result(60) == 8


# Limits.


def test_an_interpreter_that_has_grown_is_replaced():
    def grow(size):
        import builtins
        import os

        builtins.kept = bytearray(b"x") * size
        return os.getpid()

    with hq.Executor(1, local=True, max_memory_per_child="200MiB") as executor:
        small = {executor.submit(grow, 1_000).result(60) for _ in range(3)}
        assert len(small) == 1
        assert {executor.submit(grow, 250 << 20).result(60)} == small
        assert executor.submit(grow, 1_000).result(60) not in small
    with pytest.raises(ValueError, match="2GiB"):
        hq.Executor(1, local=True, max_memory_per_child="much")


def test_each_limit_has_an_exception_of_its_own(shared):
    limited = shared.options(time_limit=0.3)
    with pytest.raises(hq.TimeLimitReached):
        limited.submit(time.sleep, 600).result(60)
    assert issubclass(hq.CallKilled, hq.CallDied) and issubclass(hq.OutOfMemory, MemoryError)


def test_no_more_calls_run_than_limits_allow(cluster, tmp_path):
    def alone(path):
        import os
        import time

        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        time.sleep(0.02)
        os.unlink(path)

    assert cluster.ask("limit", "set", "db", "1").returncode == 0
    for options in ({"limits": ["db"]}, {"max_running": 1, "max_rate": "100/s"}):
        with hq.Executor(server_dir=cluster.dir, **options) as executor:
            list(executor.map(alone, [str(tmp_path / "lock")] * 20))
            command = "mkdir lock && sleep 0.02 && rmdir lock"
            programs = [executor.program(["sh", "-c", command]) for _ in range(5)]
            for program in programs:
                program.result(60)
    with hq.Executor(2, local=True, max_running=1) as executor:
        list(executor.map(alone, [str(tmp_path / "lock")] * 20))
        with pytest.raises(ValueError, match="max_running"):
            executor.options(limits="db")
    with hq.Executor(server_dir=cluster.dir) as executor:
        with pytest.raises(hq.HqError, match='no limit "no"'):
            executor.options(limits="no").submit(pow, 2, 3).result(60)
        assert executor.options(limits="db=1").submit(pow, 2, 3).result(60) == 8
    for bad in ({"max_running": 0}, {"max_rate": "fast"}, {"limits": ["a b"]}):
        with pytest.raises(hq.HqError):
            hq.Executor(server_dir=cluster.dir, **bad)


def test_a_worker_that_is_lost_too_often_is_named(cluster, tmp_path):
    with hq.Executor(server_dir=cluster.dir, crash_limit=1) as executor:
        (future,), _ = begin(executor, tmp_path, 1)
        cluster.processes[1].kill()
        with pytest.raises(hq.WorkerLost):
            future.result(60)


def test_results_as_they_come_are_all_there(shared):
    futures = [shared.submit(pow, number, 2) for number in range(500)]
    assert sorted(future.result() for future in as_completed(futures, timeout=60)) == [n * n for n in range(500)]


def test_our_exceptions_can_be_sent():
    for error in (hq.OutOfMemory("a"), hq.WorkerLost("b"), hq.RemoteError("T", "text", "traceback"), hq.CallKilled("c")):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error) and str(copy) == str(error)


def test_calls_see_what_init_has_loaded():
    script = (
        "import hq, os\n"
        "MODEL = {}\n"
        "name = None\n"
        "def load(word):\n"
        "    global name\n"
        "    MODEL['word'] = name = word\n"
        "def show(number):\n"
        "    return MODEL['word'], name, number\n"
        "with hq.Executor(1, local=True, init=load, initargs=('loaded',)) as executor:\n"
        "    print(executor.submit(show, 3).result(60), MODEL)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert ran.stdout == "('loaded', 'loaded', 3) {}\n", ran.stderr


@pytest.mark.parametrize("with_cloudpickle", [True, False])
def test_calls_see_what_init_has_made(with_cloudpickle):
    if with_cloudpickle:
        pytest.importorskip("cloudpickle")
    script = (
        "import hq, hq._pickle\n"
        f"if not {with_cloudpickle}: hq._pickle._cloudpickle = lambda: None\n"
        "def prepare(word):\n"
        "    global model\n"
        "    model = word\n"
        "def load(word):\n"
        "    prepare(word)\n"
        "def name():\n"
        "    return model\n"
        "def show(number):\n"
        "    return model, name(), number\n"
        "with hq.Executor(1, local=True, init=load, initargs=('loaded',)) as executor:\n"
        "    print(executor.submit(show, 3).result(60), 'model' in globals())\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert ran.stdout == "('loaded', 'loaded', 3) False\n", ran.stderr


@pytest.mark.parametrize("with_cloudpickle", [True, False])
def test_what_init_has_only_read_is_what_it_is_where_the_call_is_made(with_cloudpickle):
    if with_cloudpickle:
        pytest.importorskip("cloudpickle")
    # This is like a notebook, where a cell is corrected and run again.
    script = (
        "import hq, hq._pickle\n"
        f"if not {with_cloudpickle}: hq._pickle._cloudpickle = lambda: None\n"
        "scale = 2\n"
        "def helper():\n"
        "    return 'old'\n"
        "def load():\n"
        "    global made\n"
        "    made = helper() * scale\n"
        "def show():\n"
        "    return helper(), scale, made\n"
        "with hq.Executor(1, local=True, init=load) as executor:\n"
        "    print(executor.submit(show).result(60))\n"
        "    scale = 3\n"
        "    def helper():\n"
        "        return 'new'\n"
        "    print(executor.submit(show).result(60))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert ran.stdout == "('old', 2, 'oldold')\n('new', 3, 'oldold')\n", ran.stderr


def test_an_attribute_is_not_taken_for_a_variable(shared, monkeypatch):
    monkeypatch.setattr("hq._pickle._cloudpickle", lambda: None)
    # `real` is an attribute in one function and a variable in the other.
    names = {"real": threading.Lock(), "__name__": "__main__"}
    exec("def part(number): return number.real\ndef lock(): return real", names)
    assert shared.submit(names["part"], 3).result(60) == 3
    with pytest.raises(hq.NotPicklable, match="lock"):
        shared.submit(names["lock"]).result(60)


def test_what_belongs_to_its_process_is_named(shared):
    pytest.importorskip("cloudpickle")
    future = shared.submit(abs, -1)
    with pytest.raises(hq.NotPicklable, match=r"an executor belongs .* hq\.Executor\(\) in a call"):
        shared.submit(lambda: shared.submit(abs, -1)).result(60)
    with pytest.raises(hq.NotPicklable, match="among the arguments of a call, but not among the variables"):
        shared.submit(lambda: future.result()).result(60)
    with pytest.raises(TypeError, match="integer"):
        hq.Executor.attach("1")


def test_a_server_without_workers_is_told_of(tmp_path):
    made = Cluster(tmp_path)
    made.start_server()
    try:
        with pytest.warns(UserWarning, match="neither workers nor allocation queues: calls wait.*hq worker start"):
            executor = hq.Executor(server_dir=made.dir)
        executor.shutdown()
        with pytest.raises(hq.HqError, match=f"job {executor.job} is closed"):
            # The hint is not repeated for a server with workers.
            made.start_worker()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                attached = hq.Executor.attach(executor.job, server_dir=made.dir)
            attached.submit(abs, -1).result(60)
        attached.shutdown()
    finally:
        made.end()


def test_a_call_that_was_out_of_memory_says_how_python_asks_for_more(tmp_path):
    made = Cluster(tmp_path)
    made.start_server()
    try:
        made.start("worker", "start", "--cpus", "1", "--enforce-memory")
        with hq.Executor(server_dir=made.dir, resources={"mem": "100M"}) as executor:
            with pytest.raises(hq.OutOfMemory, match=r'used .* of 100 MiB\. Ask for more with resources=\{"mem": "4G"\}'):
                executor.submit(fill, 300 << 20).result(60)
    finally:
        made.end()


def fill(size):
    filled = bytearray(size)
    for at in range(0, size, 4096):
        filled[at] = 1
    time.sleep(600)


def test_a_local_server_has_no_rows_and_says_so(shared):
    with pytest.raises(hq.HqError, match="ends with it and keeps nothing .*hq server start"):
        hq.jobs(shared)


def test_a_call_that_was_settled_before_it_is_sent_breaks_nothing(shared):
    for settle in (lambda future: future.set_exception(KeyError("early")), lambda future: future.cancel()):
        early = CallFuture(shared._state)
        settle(early)
        shared._state.add(Call(early, b"", shared._template))
        assert shared.submit(pow, 2, 3).result(60) == 8
