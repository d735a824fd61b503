"""Interpreters end when nothing needs them: with their job, or when a task needs the GPU or the memory that they hold."""

import os

import pytest
from conftest import Cluster, wait_for

import hq


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def leave_a_thread(path):
    import threading
    import time

    def write():
        time.sleep(1)
        with open(path, "w") as file:
            file.write("done")

    threading.Thread(target=write).start()


def test_threads_of_an_ended_job_have_time_to_end(cluster, tmp_path):
    with hq.Executor(server_dir=cluster.dir) as executor:
        executor.submit(leave_a_thread, str(tmp_path / "written")).result()
    wait_for((tmp_path / "written").exists, "the thread ends", 10)


def test_interpreters_end_with_their_job(cluster):
    with hq.Executor(server_dir=cluster.dir, name="other") as other:
        stays = other.options(env={"A": "B"}).submit(os.getpid).result()
        with hq.Executor(server_dir=cluster.dir) as executor:
            pids = {executor.options(env={"A": str(number)}).submit(os.getpid).result() for number in range(2)}
            assert len(pids) == 2 and all(map(is_alive, pids))
        wait_for(lambda: not any(map(is_alive, pids)), "the interpreters of the job end", 30)
        assert is_alive(stays), "its job is open"


@pytest.mark.parametrize("wanted", ["gpus/nvidia=1", "mem=1000000000"])
def test_an_idle_interpreter_makes_room_for_tasks(tmp_path, wanted):
    cluster = Cluster(tmp_path)
    cluster.start_server()
    resources = ["--resource", "gpus/nvidia=[7]", "--resource", "mem=sum(1000000000)"]
    cluster.start_worker(2, *resources)
    try:
        with hq.Executor(server_dir=cluster.dir, resources={"gpus/nvidia": 1}) as executor:
            pid = executor.submit(os.getpid).result()
            assert cluster.ask("submit", "--wait", "true").returncode == 0
            assert executor.submit(os.getpid).result() == pid, "no other task needs its memory or GPU"
            submitted = cluster.ask("submit", "--wait", "--resource", wanted, "true")
            assert submitted.returncode == 0, submitted.stderr
            wait_for(lambda: not is_alive(pid), "the idle interpreter ends", 30)
            assert executor.submit(os.getpid).result() != pid
    finally:
        cluster.end()


def call_inside(server_dir):
    with hq.Executor(server_dir=server_dir) as inner:
        return inner.submit(abs, -3).result()


def test_a_call_that_waits_for_a_call_keeps_its_cpus(cluster):
    """Documented: with another cpu, both go on."""
    with hq.Executor(server_dir=cluster.dir, resources={"cpus": 2}) as executor:
        future = executor.submit(call_inside, cluster.dir)
        wait_for(lambda: "ready to run" in cluster.ask("task", "explain", "2.0").stdout, "the inner call waits")
        assert not future.done()
        cluster.start_worker(1)
        assert future.result(60) == 3
