"""Behaviour of `hq.Executor` beyond the tests of the standard library."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, as_completed

import pytest
from conftest import wait_for

import hq


@pytest.fixture
def local():
    with hq.Executor(2, local=True) as executor:
        yield executor


def fails(future, kind, *words):
    with pytest.raises(kind) as caught:
        future.result(60)
    for word in words:
        assert word in str(caught.value)
    return caught.value


def test_functions_without_a_name_are_sent_as_they_are(local):
    offset = 3

    def add(number):
        return number + offset

    assert local.submit(add, 4).result(60) == 7
    assert list(local.map(lambda x, y: x * y, [1, 2], [3, 4])) == [3, 8]
    assert list(local.map(lambda x: os.path.basename(x), ["/a/b"])) == ["b"], "modules are imported there"


def test_without_cloudpickle_functions_go_by_their_code(local, monkeypatch):
    monkeypatch.setattr("hq._pickle._cloudpickle", lambda: None)

    def twice(number):
        return [os.path.join("a", str(number)) for _ in range(factor)]

    factor = 2
    assert local.submit(twice, 1).result(60) == ["a/1", "a/1"]

    def countdown(number):
        return countdown(number - 1) if number else "done"

    fails(local.submit(countdown, 3), hq.NotPicklable, "countdown", "cloudpickle")


def test_an_exception_comes_back_as_itself_with_its_traceback(local):
    def outer():
        inner = {}
        return inner["missing"]

    error = fails(local.submit(outer), KeyError, "missing")
    assert "in outer" in str(error.__cause__)


class Poison(Exception):
    def __init__(self, first, second):
        super().__init__(first)


def test_an_exception_that_cannot_be_sent_is_described(local):
    def poisonous():
        import threading

        raise RuntimeError(threading.Lock())

    error = fails(local.submit(poisonous), hq.RemoteError, "RuntimeError")
    assert error.type_name == "RuntimeError"
    assert "poisonous" in error.traceback


@pytest.mark.parametrize(
    "function, args, kind, words",
    [
        (len, (threading.Lock(),), hq.NotPicklable, ["argument 1", "lock"]),
        (eval, ("__import__('threading').Lock()",), hq.NotPicklable, ["result", "lock"]),
        (sys.exit, (3,), SystemExit, ["3"]),
        (os._exit, (3,), hq.CallDied, ["exit code 3"]),
        (os._exit, (0,), hq.CallDied, ["exit code 0"]),
        (os.kill, (0, signal.SIGKILL), hq.CallDied, ["SIGKILL"]),
        (eval, ("(lambda f: f(f))(lambda f: f(f))",), RecursionError, []),
    ],
)
def test_what_goes_wrong_fails_one_call(local, function, args, kind, words):
    others = [local.submit(pow, 2, number) for number in range(20)]
    fails(local.submit(function, *args), kind, *words)
    assert [other.result(60) for other in others] == [2**number for number in range(20)]
    assert local.submit(pow, 2, 3).result(60) == 8


def test_a_closed_output_hurts_nobody(local):
    assert local.submit(os.close, 1).result(60) is None
    assert local.submit(os.close, 2).result(60) is None
    assert list(local.map(abs, range(10))) == list(range(10))


def test_long_values_and_arguments_come_whole(local):
    long = os.urandom(3_000_000)
    assert local.submit(len, long).result(60) == len(long)
    assert local.submit(bytes, 2_000_000).result(60) == bytes(2_000_000)
    middle = os.urandom(100_000)
    assert local.submit(bytes.__add__, middle, b"x").result(60) == middle + b"x"


def test_what_a_call_prints_is_in_files_of_its_task(local, tmp_path):
    def say(word):
        print(word)
        os.system(f"echo {word} of a child >&2")

    for future in [local.submit(say, word) for word in ("first", "second")]:
        future.result(60)
    files = tmp_path / f"job-{local.job}"
    found = sorted(path.read_text() for path in files.glob("*.stdout"))
    assert found == ["first\n", "second\n"]
    assert sorted(path.read_text() for path in files.glob("*.stderr")) == ["first of a child\n", "second of a child\n"]


def test_interpreters_stay_and_init_runs_once_in_each():
    def init(path):
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\n")

    with hq.Executor(1, local=True, init=init, initargs=("begun",)) as executor:
        pids = set(executor.map(lambda _: os.getpid(), range(50)))
        assert len(pids) == 1
        with open("begun") as file:
            assert [int(line) for line in file] == list(pids)
    with hq.Executor(1, local=True, max_tasks_per_child=1) as executor:
        pids = list(executor.map(lambda _: os.getpid(), range(4)))
        assert len(set(pids)) == 4


def test_an_init_that_fails_breaks_the_executor():
    def init():
        raise ValueError("no model")

    with hq.Executor(1, local=True, init=init) as executor:
        futures = [executor.submit(pow, 2, 3) for _ in range(3)]
        for future in futures:
            fails(future, hq.InitFailed, "no model")
        with pytest.raises(BrokenExecutor):
            executor.submit(pow, 2, 3)


def test_a_time_limit_ends_the_call_and_no_other(local):
    limited = local.options(time_limit=0.5)
    fails(limited.submit(time.sleep, 600), hq.TimeLimitReached, "ime limit")
    assert local.submit(pow, 2, 3).result(60) == 8


def test_a_python_that_is_not_there_fails_the_call(local):
    fails(local.options(python="/nonexistent/python").submit(pow, 2, 3), hq.CallError, "/nonexistent/python")
    fails(local.options(prologue="exit 7").submit(pow, 2, 3), hq.CallError, "exit code 7")
    prologue = local.options(prologue="export GREETING='hello there'")
    assert prologue.submit(os.getenv, "GREETING").result(60) == "hello there"


def test_calls_get_their_resources(local):
    def where():
        return os.environ["HQ_CPUS"], os.environ["HQ_TASK_ID"], sorted(os.sched_getaffinity(0))

    cpus, _, bound = local.options(resources={"cpus": 2}, pin=True).submit(where).result(60)
    assert [int(cpu) for cpu in cpus.split(",")] == bound
    ids = {task for _, task, _ in local.map(lambda _: where(), range(5))}
    assert len(ids) == 5
    with pytest.raises(hq.HqError, match="unknown|nvalid"):
        local.options(resources={"cpus": "many"})


def test_nothing_is_accepted_after_shutdown(local):
    future = local.submit(pow, 2, 3)
    local.shutdown(wait=False)
    with pytest.raises(RuntimeError):
        local.submit(pow, 2, 3)
    with pytest.raises(RuntimeError):
        local.map(pow, [1], [2])
    assert future.result(60) == 8


def test_what_waits_can_be_cancelled(local):
    running = [local.submit(time.sleep, 1) for _ in range(20)]
    local.shutdown(wait=True, cancel_futures=True)
    cancelled = [future for future in running if future.cancelled()]
    assert len(cancelled) >= 10
    assert all(future.done() for future in running)


def test_nothing_survives():
    with hq.Executor(2, local=True) as executor:
        pids = set(executor.map(lambda _: os.getpid(), range(20)))
        pids.add(executor._bridge.pid)
    for pid in pids:
        wait_for(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), f"process {pid} ends")


def test_a_killed_python_leaves_nothing():
    script = (
        "import hq, os, time\n"
        "executor = hq.Executor(1, local=True)\n"
        "print(executor.submit(os.getpid).result(), executor._bridge.pid, flush=True)\n"
        "executor.submit(time.sleep, 600)\n"
        "time.sleep(600)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env)
    pids = [int(pid) for pid in child.stdout.readline().split()]
    assert len(pids) == 2
    child.kill()
    child.wait()
    child.stdout.close()
    for pid in pids:
        wait_for(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), f"process {pid} ends")


def test_a_killed_bridge_settles_every_future(local):
    futures = [local.submit(time.sleep, 600) for _ in range(10)]
    os.kill(local._bridge.pid, signal.SIGKILL)
    for future in futures:
        fails(future, hq.ServerGone)
    with pytest.raises(hq.ServerGone):
        local.submit(pow, 2, 3)


def test_an_executor_from_before_a_fork_is_refused_in_the_child(local):
    assert local.submit(pow, 2, 3).result(60) == 8
    pid = os.fork()
    if pid == 0:
        try:
            local.submit(pow, 2, 3)
        except BrokenExecutor as error:
            os._exit(17 if "fork" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
    assert local.submit(pow, 2, 4).result(60) == 16


def test_asyncio_waits_for_calls(local):
    import asyncio

    async def main():
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(local, pow, 2, 5)

    assert asyncio.run(main()) == 32


def test_a_future_as_argument_is_a_dependency(local):
    first = local.submit(time.sleep, 0.3)
    number = local.submit(eval, "__import__('time').sleep(0.3) or 20")
    total = local.submit(lambda x, _, y: x + y, number, first, y=local.submit(pow, 2, 1))
    failing = local.submit(pow, local.submit(divmod, 1, 0), 2)
    local.shutdown(wait=False)
    assert total.result(60) == 22
    fails(failing, ZeroDivisionError)


# Tests with a separate server.


def test_a_server_that_is_restarted_loses_no_call(cluster):
    with hq.Executor(server_dir=cluster.dir) as executor:
        before = [executor.submit(pow, number, 2) for number in range(10)]
        slow = [executor.submit(eval, "__import__('time').sleep(2) or 'slow'") for _ in range(2)]
        assert [future.result(60) for future in before] == [number**2 for number in range(10)]
        server = cluster.processes[0]
        server.kill()
        server.wait()
        during = [executor.submit(pow, number, 3) for number in range(10)]
        cluster.start_server("--resume")
        assert [future.result(120) for future in slow] == ["slow", "slow"]
        assert [future.result(120) for future in during] == [number**3 for number in range(10)]


def test_a_killed_worker_loses_no_call(cluster):
    with hq.Executor(server_dir=cluster.dir) as executor:
        futures = [executor.submit(eval, "__import__('time').sleep(0.3) or 1") for _ in range(10)]
        wait_for(lambda: any(future.done() for future in futures), "one has ended")
        worker = cluster.processes[1]
        worker.kill()
        worker.wait()
        cluster.start_worker()
        assert sum(future.result(120) for future in as_completed(futures)) == 10


def test_calls_are_tasks_of_a_job(cluster):
    with hq.Executor(server_dir=cluster.dir, name="scan") as executor:
        executor.submit(pow, 2, 3).result(60)
        with pytest.raises(ZeroDivisionError):
            executor.submit(divmod, 1, 0).result(60)
        job = executor.job
    shown = cluster.ask("job", "info", str(job)).stdout
    assert "scan" in shown
    assert "ZeroDivisionError: integer division or modulo by zero" in shown
    stats = cluster.ask("job", "list", "--all").stdout
    assert "FAILED" in stats


def test_results_outlive_the_process_that_asked_for_them(cluster, tmp_path):
    script = (
        "import hq, os, time\n"
        f"executor = hq.Executor(server_dir={str(cluster.dir)!r})\n"
        "first = executor.submit(pow, 2, 3)\n"
        "failing = executor.submit(divmod, 1, 0)\n"
        "slow = executor.submit(eval, \"__import__('time').sleep(2) or 'slow'\")\n"
        "first.result()\n"
        "failing.exception()\n"
        "print(executor.job, flush=True)\n"
        "time.sleep(600)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env)
    job = int(child.stdout.readline())
    child.kill()
    child.wait()
    child.stdout.close()
    with hq.Executor.attach(job, server_dir=cluster.dir) as executor:
        assert executor.futures[0].result(60) == 8
        fails(executor.futures[1], ZeroDivisionError)
        assert executor.futures[2].result(60) == "slow"
        assert executor.submit(pow, 2, 4).result(60) == 16
    with pytest.raises(hq.HqError, match="does not exist"):
        hq.Executor.attach(1000, server_dir=cluster.dir)


def test_every_future_settles_while_interpreters_are_killed(local):
    import random

    def work(number):
        import time

        time.sleep(0.002)
        return os.getpid(), number

    random.seed(7)
    pids = set()
    futures = [local.submit(work, number) for number in range(600)]
    killed = 0
    for future in as_completed(futures, timeout=120):
        try:
            pid, _ = future.result()
        except hq.CallDied:
            continue
        pids.add(pid)
        if random.random() < 0.03:
            victim = random.choice(sorted(pids))
            pids.discard(victim)
            try:
                os.kill(victim, signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                pass
    died = [future for future in futures if future.exception() is not None]
    assert killed and len(died) <= killed, "one interpreter has one call"
    found = [future.result()[1] for future in futures if future.exception() is None]
    assert found == sorted(set(found)), "each result is that of its call"
