"""Usage of calls: CPU time and memory, in total and over time, in an interpreter that has already run other calls."""

import os
import resource
import signal
import subprocess
import sys
import time

import pytest
from conftest import wait_for

import hq

pytestmark = pytest.mark.parametrize("mode", ["direct", "fork"])

MIB = 1 << 20


def busy(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def fill(mib):
    filled = bytearray(mib * MIB)
    for at in range(0, len(filled), 4096):
        filled[at] = 1
    return filled


def in_child(function, amount):
    """Does the same in a separate program."""
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_usage; test_usage.{function}({amount})"
    subprocess.run([sys.executable, "-c", code], check=True)


def busy_child(seconds):
    in_child("busy", seconds)


def fill_child(mib):
    in_child("fill", mib)
    return None


def fill_and_free(mib):
    fill(mib)


def spent():
    """Returns the CPU time of this process and of the children that it has waited for, in ms."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return 1_000 * sum(usage.ru_utime + usage.ru_stime for usage in both)


def measured(path, function, *args):
    """Calls a function, and writes the CPU time that this process measured."""
    before = spent()
    function(*args)
    path.write_text(str(spent() - before))


def die(path, seconds, mib):
    measured(path, busy, seconds)
    filled = fill(mib)
    os.kill(os.getpid(), signal.SIGKILL)
    return filled


def hold(seconds, mib):
    filled = fill(mib)
    busy(0.5)
    time.sleep(seconds)
    return len(filled)


def used(executor, function, *args):
    """Returns the CPU time in ms and the peak memory in MiB of a call."""
    future = executor.submit(function, *args)
    failure = future.exception(60)
    assert failure is None or isinstance(failure, hq.CallDied), failure
    (row,) = (row for row in hq.tasks(executor.job, executor) if row["task"] == future.task)
    return row["user_ms"] + row["system_ms"], row["max_rss_kib"] / 1024


# The CPU time of a call outside its function, in ms: arguments, imports, page faults. It is less than the time of
# every other call in these tests, so that a sum that includes another call fails, and far more than a slow machine
# needs.
OVERHEAD = 1_500


def test_a_call_has_its_own_cpu_time_and_that_of_its_children(cluster, mode, tmp_path):
    with hq.Executor(server_dir=cluster.dir, mode=mode) as executor:
        assert used(executor, abs, -1)[0] < OVERHEAD
        for function in (busy, busy_child):
            cpu = used(executor, measured, tmp_path / "spent", function, 2)[0]
            own = float((tmp_path / "spent").read_text())
            assert own - 50 <= cpu < own + OVERHEAD
        assert used(executor, abs, -1)[0] < OVERHEAD


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the kernel keeps the peak")
def test_the_peak_of_memory_is_that_of_the_call(cluster, mode):
    with hq.Executor(server_dir=cluster.dir, mode=mode) as executor:
        # Import the module first, because it stays in the interpreter.
        least = used(executor, fill_and_free, 1)[1]
        assert 5 < least < 100
        for function in (fill_and_free, fill_child):
            assert 200 <= used(executor, function, 200)[1] < 300
            assert used(executor, abs, -1)[1] < least + 10
        assert 90 <= used(executor, fill_and_free, 90)[1] < 190


def test_a_call_that_dies_has_used_something_too(cluster, mode, tmp_path):
    with hq.Executor(server_dir=cluster.dir, mode=mode) as executor:
        used(executor, busy, 2)
        cpu, memory = used(executor, die, tmp_path / "spent", 0.3, 120)
        own = float((tmp_path / "spent").read_text())
        assert own - 50 <= cpu < own + OVERHEAD
        assert 120 <= memory < 220


def test_memory_and_cpus_over_time_are_those_of_the_call(cluster, mode):
    with hq.Executor(server_dir=cluster.dir, mode=mode) as executor:
        used(executor, busy, 3)

        def curve():
            # On a busy machine, the worker does not sample each call often enough.
            future = executor.submit(hold, 6, 60)
            future.result(60)
            sql = f"SELECT memory_mib, cpus, cpus_asked FROM usage WHERE job = {executor.job} AND task = {future.task}"
            return list(hq.query(sql, executor))

        rows = wait_for(curve, "a call has a curve", 120)
        assert 60 <= max(row["memory_mib"] for row in rows) < 150
        # The usage includes half a second of this call, and nothing of the previous three.
        assert 0.4 <= 2 * sum(row["cpus"] for row in rows) < 2
        assert {row["cpus_asked"] for row in rows} == {1}
