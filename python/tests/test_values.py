"""Long values stay with the workers that made them until they are needed."""

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import pickle
import socket
import sqlite3
import subprocess
import threading
import time
import types
from concurrent.futures import wait

import pytest
from conftest import Cluster, wait_for

import hq
from hq import _pickle
from hq._bridge import Bridge
from hq._held import Held
from hq._spool import Spool

LONG = 1 << 20


def make(size=LONG):
    return bytearray(range(256)) * (size // 256)


def length(value):
    return len(value), type(value).__name__


def repeat(value):
    return value * 3


def of_pair(first, second):
    return len(first) + len(second["deep"][0])


def files(path, kind):
    return [file for file in path.rglob(f"{kind}-*") if file.is_file()]


def kill(cluster, worker):
    """Kills the only worker, and waits until none of its processes is left."""
    worker.kill()
    worker.wait()
    wait_for(lambda: not cluster.ask("--output-mode", "quiet", "worker", "list").stdout, "the worker is gone")


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    made.start_server()
    yield made
    made.end()


@pytest.fixture
def no_shortcut(monkeypatch):
    """Pretends that this process is on a different machine than all workers."""
    monkeypatch.setattr("hq._held.this_machine", lambda: "another machine")


def test_a_long_value_is_read_when_somebody_asks(cluster):
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir) as executor:
        future = executor.submit(make)
        wait([future])
        assert type(future._result) is Held and not future._result.is_here
        value = future.result()
        assert value == make() and future.result() is value
        # The value is mutable, but changing it does not affect other readers.
        value[0] = 7
        assert executor.submit(length, future).result() == (LONG, "bytearray")


def test_a_value_comes_from_its_worker_over_the_network(cluster, no_shortcut):
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir) as executor:
        futures = [executor.submit(make) for _ in range(3)]
        assert all(future.result() == make() for future in futures)
        # Callbacks may read the value on the reporting thread.
        told = []
        future = executor.submit(make)
        future.add_done_callback(lambda done: told.append(len(done.result())))
        wait_for(lambda: told == [LONG], "the callback has the value")

        async def ask():
            return len(await asyncio.wrap_future(executor.submit(make)))

        assert asyncio.run(ask()) == LONG


def test_what_was_not_read_is_there_after_the_end(cluster, no_shortcut, tmp_path):
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir) as executor:
        future = executor.submit(make)
    assert future.result() == make()
    with hq.Executor(2, local=True) as executor:
        alone = executor.submit(make)
    assert alone.result() == make()


def test_a_value_that_nobody_can_ask_for_is_deleted(cluster, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    cluster.start("worker", "start", "--cpus", "2", "--work-dir", str(place))
    with hq.Executor(server_dir=cluster.dir) as executor:
        future = executor.submit(make)
        wait([future])
        assert len(files(place, "value")) == 1
        user = executor.submit(length, future)
        del future
        assert user.result()[0] == LONG
        gc.collect()
        wait_for(lambda: not files(place, "value"), "the value is deleted")
        other = executor.submit(make)
        wait([other])
        assert len(files(place, "value")) == 1
    wait_for(lambda: not files(place, "value"), "the value is deleted")
    assert other.result() == make()


def test_the_server_keeps_only_arguments_of_calls_that_may_run_again(tmp_path):
    made, journal, size = Cluster(tmp_path), tmp_path / "journal", 50_000
    made.start_server("--journal", str(journal))
    made.start_worker()

    def stored():
        with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
            return db.execute("SELECT sum(length(spec)) FROM submit_data").fetchone()[0]

    try:
        with hq.Executor(server_dir=made.dir) as executor:
            held = executor.submit(repeat, bytes(size))
            wait([held])
            assert list(executor.map(len, [bytes(size)] * 20)) == [size] * 20
            wait_for(lambda: stored() < 2 * size, "the server has the arguments of one call")
            assert stored() > size, "the call may run again"
            del held
            wait_for(lambda: stored() < size, "the server has no arguments")
            executor.submit(len, bytes(size)).result()
            job = executor.job
        wait_for(lambda: stored() < size, "the job is completed")
        again = made.ask("job", "resubmit", str(job))
        assert "its arguments were dropped" in again.stdout + again.stderr
    finally:
        made.end()


def test_a_lost_value_is_made_again(cluster, tmp_path, no_shortcut):
    first = cluster.start_worker()
    path = tmp_path / "runs"
    with hq.Executor(server_dir=cluster.dir) as executor:

        def note(path, size):
            with open(path, "a") as file:
                file.write("x")
            return bytearray(size)

        def add(value):
            return value + b"more"

        made = executor.submit(note, str(path), LONG)
        then = executor.submit(add, made)
        unread = executor.submit(note, str(path), LONG)
        wait([made, then, unread])
        assert path.read_text() == "xx"
        kill(cluster, first)
        cluster.start_worker()
        # These calls need the value, and there is a reader. One call also needs another lost value.
        assert executor.submit(length, then).result()[0] == LONG + 4
        assert path.read_text() == "xxx"
        assert unread.result() == bytearray(LONG)
        assert path.read_text() == "xxxx"
        assert made.result() == bytearray(LONG)
        assert path.read_text() == "xxxx"


def start_apart(cluster, place, *options):
    """Starts a worker that acts as if it were on another machine. Its calls request the resource with its name."""
    place.mkdir()
    name = place.name
    start = cluster.hq("worker", "start", "--cpus", "2", "--resource", f"{name}=sum(9)", "--work-dir", str(place), *options)
    apart = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name, *start]
    cluster.processes.append(subprocess.Popen(apart, stdout=cluster.log, stderr=cluster.log))


def length_in_time(*values):
    time.sleep(0.2)
    return [len(value) for value in values]


@pytest.mark.skipif(os.geteuid() != 0, reason="a host name of its own needs root")
def test_calls_wait_for_room_for_what_they_read(cluster, tmp_path):
    start_apart(cluster, tmp_path / "one")
    start_apart(cluster, tmp_path / "other", "--values-limit", "2500K")
    with hq.Executor(server_dir=cluster.dir) as executor:
        made = [executor.options(resources={"one": 1}).submit(make) for _ in range(6)]
        there = executor.options(resources={"other": 1})
        # There is room for two values at a time, and each of these calls needs all of it.
        pairs = [there.submit(length_in_time, made[at], made[at - 1]) for at in range(6)]
        assert [pair.result() for pair in pairs] == [[LONG, LONG]] * 6
        with pytest.raises(hq.CallError, match="no space .*--values-limit"):
            there.submit(length_in_time, *made[:3]).result()


@pytest.mark.skipif(os.geteuid() != 0, reason="a host name of its own needs root")
def test_a_value_goes_from_worker_to_worker_once(cluster, tmp_path):
    places = {}
    for name in ("one", "other"):
        places[name] = tmp_path / name
        start_apart(cluster, places[name])
    with hq.Executor(server_dir=cluster.dir) as executor:
        made = executor.options(resources={"one": 1}).submit(make)
        readers = [executor.options(resources={"other": 1}).submit(length, made) for _ in range(5)]
        assert [reader.result() for reader in readers] == [(LONG, "bytearray")] * 5
        assert len(files(places["one"], "value")) == 1 and not files(places["one"], "copy")
        assert len(files(places["other"], "copy")) == 1
        assert not made._result.is_here, "it went through this process"
        # A value that is gone is recomputed.
        os.unlink(files(places["one"], "value")[0])
        again = executor.options(resources={"one": 1}).submit(length, made)
        assert again.result() == (LONG, "bytearray")
        assert len(files(places["one"], "value")) == 1


def test_a_value_that_is_lost_too_often_is_named(cluster, no_shortcut):
    first = cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir, crash_limit=1) as executor:
        made = executor.submit(make)
        wait([made])
        made._result.runs = 1
        kill(cluster, first)
        with pytest.raises(hq.WorkerLost, match="lost 2 times"):
            made.result()


def test_a_worker_that_runs_but_cannot_be_reached_is_named(cluster, no_shortcut, monkeypatch):
    monkeypatch.setattr("hq._values._PATIENCE", 0.5)
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir) as executor:
        future = executor.submit(make)
        wait([future])
        # No process listens on this port.
        future._result.reference["at"] = [["127.0.0.1", 1]]
        with pytest.raises(hq.ValueUnreachable, match="127.0.0.1:1: .*refused.*Worker 1 runs; with values=DIRECTORY"):
            future.result()


def test_at_the_end_only_so_much_is_fetched(cluster, no_shortcut, monkeypatch):
    monkeypatch.setattr("hq._values._HOME_MAX", 3 * LONG)
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir) as executor:
        # This value alone is too long, and that does not affect the others.
        long = executor.submit(make, 4 * LONG)
        futures = [executor.submit(make) for _ in range(5)]
    with pytest.raises(hq.ValueTooLarge):
        long.result()
    ends = []
    for future in futures:
        try:
            ends.append(len(future.result()))
        except hq.ValueTooLarge as error:
            assert "was not read before its executor was shut down" in str(error)
            ends.append(None)
    assert ends.count(LONG) == 2 and len(ends) == 5


def test_a_result_that_does_not_come_in_time_can_be_asked_for_again(cluster, no_shortcut):
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir) as executor:
        future = executor.submit(make)
        wait([future])
        held = future._result
        # The client connects, and waits for an answer that never comes.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            real, held.reference["at"] = held.reference["at"], [["127.0.0.1", silent.getsockname()[1]]]
            began = time.monotonic()
            with pytest.raises(concurrent.futures.TimeoutError):
                future.result(timeout=0.2)
            assert time.monotonic() - began < 5
            held.reference["at"] = real
        assert future.result(timeout=60) == make()


def test_who_has_no_key_keeps_nobody_away(cluster, no_shortcut):
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir) as executor:
        future = executor.submit(make)
        wait([future])
        [[host, port], *_] = future._result.reference["at"]
        strangers = [socket.create_connection((host, port)) for _ in range(150)]
        assert future.result(timeout=60) == make()
        assert strangers.pop()


def test_more_values_than_fit_into_a_call_are_told(cluster):
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir) as executor:
        future = executor.submit(make)
        wait([future])
        future._result.reference["path"] += "/" * (2 << 20)
        with pytest.raises(hq.ValueTooLarge, match="1 long values of other calls, .* let some calls combine"):
            executor.submit(length, future).result()


def test_results_of_a_notebook_that_died_are_there(cluster, no_shortcut):
    cluster.start_worker()
    executor = hq.Executor(server_dir=cluster.dir)
    wait([executor.submit(make)])
    os.kill(executor._bridge.pid, 9)
    executor.shutdown(wait=False)
    with hq.Executor.attach(executor.job, server_dir=cluster.dir) as other:
        assert other.futures[0].result() == make()
        assert other.submit(length, other.futures[0]).result()[0] == LONG


def make_when_there(path):
    while not os.path.exists(path):
        time.sleep(0.02)
    return make(2 * LONG)


def test_calls_of_another_executor_have_values_after_its_end(cluster, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    cluster.start("worker", "start", "--cpus", "1", "--work-dir", str(place))
    with hq.Executor(server_dir=cluster.dir) as other:
        with hq.Executor(server_dir=cluster.dir) as executor:
            made = executor.submit(make)
            wait([made])
            gate = other.submit(make_when_there, str(tmp_path / "gate"))
            user = other.submit(length, made)
            wait_for(lambda: user.running(), "the call was handed over")
        (tmp_path / "gate").touch()
        assert (len(gate.result()), user.result()[0]) == (2 * LONG, LONG)
        del gate, made
    wait_for(lambda: not files(place, "value"), "the value is deleted")


def test_a_lost_value_is_not_made_of_another_job_s_call(cluster, tmp_path, no_shortcut):
    place = tmp_path / "place"
    place.mkdir()
    cluster.start("worker", "start", "--cpus", "1", "--work-dir", str(place))
    executor, other = hq.Executor(server_dir=cluster.dir), hq.Executor(server_dir=cluster.dir)
    made = executor.submit(make)
    wait([made])
    # This call has the number of the call that produced the value.
    gate = other.submit(make_when_there, str(tmp_path / "gate"))
    user = other.submit(length, made)
    wait_for(lambda: gate.running() and user.running(), "both were handed over")
    job = str(other.job)
    wait_for(lambda: len(cluster.ask("task", "list", job).stdout) > 0, "the server has both")
    for one in (other, executor):
        os.kill(one._bridge.pid, 9)
        one.shutdown()
    [held] = files(place, "value")
    held.unlink()
    (tmp_path / "gate").touch()
    with hq.Executor.attach(other.job, server_dir=cluster.dir) as attached:
        with pytest.raises(hq.HqError, match="cannot make it again"):
            attached.futures[1].result(60)


@pytest.fixture
def place(cluster, tmp_path):
    """Returns the working directory of a worker that has room for a little more than two values."""
    made = tmp_path / "place"
    made.mkdir()
    limits = ["--values-limit", "2500K", "--heartbeat", "1s"]
    cluster.start("worker", "start", "--cpus", "2", "--work-dir", str(made), *limits)
    return made


def note(path, size):
    """Records that it is running."""
    with open(path, "a") as file:
        file.write("x")
    return bytearray(size)


def test_values_that_can_be_made_again_go_when_there_is_no_room(cluster, place, tmp_path):
    path = tmp_path / "runs"
    with hq.Executor(server_dir=cluster.dir) as executor:
        futures = [executor.submit(note, str(path), LONG + number) for number in range(4)]
        wait(futures)
        wait_for(lambda: len(files(place, "value")) == 2, "two are left")
        # A reader of a lost value waits until it is recomputed.
        assert executor.submit(length, futures[0]).result() == (LONG, "bytearray")
        assert [len(future.result()) for future in futures] == [LONG + number for number in range(4)]
        assert 6 <= len(path.read_text()) <= 9
        with pytest.raises(hq.ValueTooLarge, match=r"3\d{6} bytes, and its worker keeps at most 2560000"):
            executor.submit(make, 3 * LONG).result()


def test_values_that_cannot_be_made_again_stay(cluster, place, tmp_path):
    path = tmp_path / "runs"
    with hq.Executor(server_dir=cluster.dir, crash_limit="never-restart") as executor:
        kept = [executor.submit(note, str(path), LONG) for _ in range(2)]
        wait(kept)
        with pytest.raises(hq.ValueTooLarge, match=r"no space for its 10\d+ bytes: .*--values-limit.* 20\d+ of them are needed"):
            executor.submit(note, str(path), LONG).result()
        assert [len(future.result()) for future in kept] == [LONG, LONG]
        del kept[0]
        gc.collect()
        wait_for(lambda: len(files(place, "value")) == 1, "nobody can ask for it")
        assert len(executor.submit(note, str(path), LONG).result()) == LONG
        os.unlink(files(place, "value")[0])
        assert len(path.read_text()) == 4
    lost = hq.Executor(server_dir=cluster.dir, crash_limit="never-restart")
    once = lost.submit(note, str(path), LONG)
    wait([once])
    os.unlink(files(place, "value")[0])
    with pytest.raises(hq.WorkerLost, match="never-restart"):
        once.result()
    lost.shutdown()


def test_workers_hear_of_what_is_released_last(cluster, place):
    with hq.Executor(server_dir=cluster.dir) as executor:
        made = executor.submit(make)
        wait([made])
        assert "state=finished returned <a value of 10" in repr(made)
        bridge = Bridge(server_dir=cluster.dir)
        bridge.send({"op": "release", "refs": [made._result.reference]})
        bridge.close()
        wait_for(lambda: not files(place, "value"), "the value is deleted")
        del made


def make_of(*values):
    return bytearray(max(map(len, values)))


def test_what_a_call_has_read_does_not_take_the_room_of_its_result(cluster, place, tmp_path):
    with hq.Executor(server_dir=cluster.dir) as executor:
        read = [executor.submit(make), executor.submit(make)]
        assert executor.submit(make_of, *read).result(60) == bytearray(LONG)
        # Values in use are kept and reported.
        reading = executor.submit(read_until, str(tmp_path / "gate"), *read)
        wait_for(lambda: (tmp_path / "gate.begun").exists(), "it reads")
        with pytest.raises(hq.ValueTooLarge, match="20[0-9]+ by running calls"):
            executor.submit(make).result(60)
        (tmp_path / "gate").touch()
        assert reading.result(60) == LONG
        assert executor.submit(make).result(60) == make()


def read_until(path, *values):
    open(f"{path}.begun", "w").close()
    while not os.path.exists(path):
        time.sleep(0.02)
    return len(values[0])


def test_a_worker_that_knows_no_values_is_told_of_them(tmp_path):
    payload = _pickle.with_needs(b"\0", [types.SimpleNamespace(reference={"name": "a"})])
    # If there are no references, workers of all releases find a kind, a length and the function.
    size = int.from_bytes(payload[1:5], "little")
    with pytest.raises(RuntimeError, match="older release than the client: start workers of the same release"):
        pickle.loads(payload[5 : 5 + size])
    spool = Spool(str(tmp_path / "spool"), "s", 1, False, 1 << 10)
    with pytest.raises(RuntimeError, match="files with arguments, so it is of an older release than the client"):
        pickle.loads(_pickle.Needs(spool).shorten(bytes(1 << 20)))
    spool.remove()


def test_what_a_killed_process_has_left_is_there_until_its_job_is_forgotten(cluster, place):
    executor = hq.Executor(server_dir=cluster.dir)
    wait([executor.submit(make)])
    os.kill(executor._bridge.pid, 9)
    executor.shutdown(wait=False)
    job = str(executor.job)
    with hq.Executor.attach(executor.job, server_dir=cluster.dir) as other:
        assert other.futures[0].result() == make()
        other.submit(make).result()
    # The value of the first process still exists for others.
    wait_for(lambda: len(files(place, "value")) == 1, "the second process has cleaned up")
    with hq.Executor.attach(executor.job, server_dir=cluster.dir) as other:
        assert other.futures[0].result() == make()
    assert len(files(place, "value")) == 1
    assert cluster.ask("job", "forget", job).returncode == 0
    wait_for(lambda: not files(place, "value"), "the value is deleted")


def test_values_may_be_anywhere_among_arguments(cluster):
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir) as executor:
        one, other = executor.submit(make), executor.submit(make)
        assert executor.submit(of_pair, one, {"deep": [other]}).result() == 2 * LONG
        # The references are among arguments that are themselves long, and in chunks.
        assert executor.submit(of_pair, one, {"deep": [make(3 * LONG)]}).result() == 4 * LONG
        assert list(executor.map(length, [one, other], chunksize=2)) == [(LONG, "bytearray")] * 2


def test_a_value_that_is_too_large_is_named_with_its_size(cluster, tmp_path):
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir, max_value="512KiB") as executor:
        with pytest.raises(hq.ValueTooLarge, match=r"bytearray, has 10\d+ bytes, and at most 524288 are allowed"):
            executor.submit(make).result()
        assert executor.submit(make, LONG // 4).result() == make(LONG // 4)


def test_with_a_shared_directory_values_are_files_there(cluster, tmp_path):
    cluster.start_worker()
    shared = tmp_path / "shared"
    shared.mkdir()
    with hq.Executor(server_dir=cluster.dir, values=shared) as executor:
        future = executor.submit(make)
        assert future.result() == make()
        assert executor.submit(length, future).result()[0] == LONG


def test_an_array_of_a_call_is_not_copied_by_its_readers(cluster):
    numpy = pytest.importorskip("numpy")
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir) as executor:
        made = executor.submit(numpy.arange, 1_000_000)

        def change(array):
            before = int(array.sum())
            array[:] = 0
            return before, int(array.sum())

        first, second = executor.submit(change, made), executor.submit(change, made)
        assert first.result() == second.result() == (499999500000, 0)
        assert made.result()[-1] == 999_999


def test_threads_that_ask_for_a_value_get_the_same(cluster, no_shortcut):
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir) as executor:
        future = executor.submit(make)
        found = []
        threads = [threading.Thread(target=lambda: found.append(id(future.result()))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 1 and len(found) == 8


FORK_STATE = []


def remember(value):
    FORK_STATE.append(value)
    return len(FORK_STATE)


def end_now(how):
    if how == "exit":
        os._exit(0)
    os.kill(os.getpid(), 9)


def test_calls_of_forks_see_nothing_of_each_other():
    pytest.importorskip("cloudpickle")
    with hq.Executor(1, local=True, mode="fork", max_tasks_per_child=50) as executor:
        assert list(executor.map(remember, range(3))) == [1, 1, 1]
        assert executor.submit(make).result() == make()
        parents = {executor.submit(os.getppid).result() for _ in range(5)}
        assert len(parents) == 1
        with pytest.raises(hq.CallDied, match="ended with exit code 0 during the call"):
            executor.submit(end_now, "exit").result()
        with pytest.raises(hq.CallKilled, match="received signal 9"):
            executor.submit(end_now, "kill").result()
        with pytest.raises(ZeroDivisionError):
            executor.submit(divmod, 1, 0).result()
        # The interpreter is still the same.
        assert executor.submit(os.getppid).result() in parents
