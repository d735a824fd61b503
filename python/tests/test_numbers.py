"""Tests the numbers of calls in a job to which other clients also add tasks."""

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import wait

import pytest
from conftest import wait_for

import hq
from hq._calls import Call
from hq._future import CallFuture
from hq._spool import Spool
from hq._state import State

LONG = 1 << 20


def add_task(cluster, job, *command):
    added = cluster.ask("submit", "--job", str(job), "--", *command)
    assert added.returncode == 0, added.stderr


def test_a_call_gets_another_number_if_its_own_is_a_task_s(cluster):
    with hq.Executor(server_dir=cluster.dir) as executor:
        first = executor.submit(pow, 2, 3)
        assert first.result(60) == 8
        add_task(cluster, executor.job, "false")
        second, third = executor.submit(pow, 2, 4), executor.submit(pow, 2, 5)
        assert (second.result(60), third.result(60)) == (16, 32)
        assert first.task == 0 and 1 < second.task < third.task
        add_task(cluster, executor.job, "true")
        made = executor.program(["echo", "made"], stdout="made-%{TASK_ID}")
        assert made.result(60).read() == "made\n"
        found = cluster.ask("task", "list", str(executor.job), "--tasks", str(made.task), "--output-mode", "json")
        assert '"finished"' in found.stdout


def submit_to_own_job(hq_binary, server_dir, number):
    job = os.environ["HQ_JOB_ID"]
    command = [hq_binary, "--server-dir", server_dir, "submit", "--job", job, "--", "false"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return number


def test_calls_that_submit_to_their_job_cost_no_other_call(cluster):
    cluster.start_worker()
    with hq.Executor(server_dir=cluster.dir) as executor:
        adding = [executor.submit(submit_to_own_job, os.environ["HQ_BINARY"], str(cluster.dir), n) for n in range(10)]
        others = []
        while not all(future.done() for future in adding):
            others.append(executor.submit(abs, -len(others)))
            wait(others[-1:])
        assert [future.result() for future in adding] == list(range(10))
        assert [future.result() for future in others] == list(range(len(others)))


def test_executors_of_one_job_get_each_their_own_results(cluster):
    with hq.Executor(server_dir=cluster.dir) as executor:
        first = executor.submit(abs, -1)
        assert first.result(60) == 1
        other = hq.Executor.attach(executor.job, server_dir=cluster.dir)
        assert other.futures[0].result(60) == 1
        kept = []
        for number in range(10, 40):
            ours, theirs = executor.submit(abs, -number), other.submit(str, number)
            # The value is longer than what the server keeps. The worker deletes it when its future is gone.
            kept.append(other.submit(bytearray, LONG + number))
            assert (ours.result(60), theirs.result(60)) == (number, str(number))
        assert [len(future.result(60)) for future in kept] == [LONG + number for number in range(10, 40)]
        with hq.Executor.attach(executor.job, server_dir=cluster.dir) as again:
            assert len(again.futures) == 91
            values = [future.result(60) for future in again.futures.values()]
            assert values.count("39") == values.count(39) == 1
        # When any of them ends, the job ends.
        with pytest.raises(hq.HqError, match="refused"):
            executor.submit(abs, 1).result(60)
        other.shutdown()


def attach_to_own_job(server_dir):
    executor = hq.Executor.attach(int(os.environ["HQ_JOB_ID"]), server_dir=server_dir)
    return executor.submit(abs, -1).result()


def test_a_call_cannot_attach_to_its_own_job(cluster):
    with hq.Executor(server_dir=cluster.dir) as executor:
        with pytest.raises(hq.HqError, match=r"cannot attach to its own job.*hq\.Executor\(\)"):
            executor.submit(attach_to_own_job, str(cluster.dir)).result(60)
        assert executor.submit(abs, -1).result(60) == 1


class Recorder:
    """A bridge that records the messages sent to it."""

    is_local = False
    is_reading_here = False

    def __init__(self):
        self.sent = []

    def send(self, message, blob=b""):
        self.sent.append(message)

    def of(self, op):
        return [message for message in self.sent if message["op"] == op]

    def ask(self, question):
        pass

    def forget(self, job, then):
        pass


def test_the_task_that_has_the_number_of_a_call_is_not_cancelled_in_its_place(tmp_path):
    bridge = Recorder()
    state = State(bridge, False, 1, None, Spool(str(tmp_path / "spool"), "", 1, False, 1 << 20))
    futures = [CallFuture(state) for _ in range(3)]
    for future in futures:
        state.add(Call(future, b"x", 7))
    sender = threading.Thread(target=state.send_calls, daemon=True)
    sender.start()
    wait_for(lambda: len(bridge.of("calls")) > 0, "calls are sent")
    wait_for(lambda: not state.waiting, "all calls are sent")
    assert futures[0].cancel()
    # Another client's task with the numbers of the calls has ended.
    state.on_event({"ev": "ended", "ids": [1], "states": [2], "lens": [-1], "errors": {}}, memoryview(b""))
    assert not futures[1].done()
    state.on_event({"ev": "taken", "first": 0, "count": 3, "free": 5}, memoryview(b""))
    wait_for(lambda: [call["first"] for call in bridge.of("calls")][-1] >= 5, "they are sent again")
    assert (futures[1].task, futures[2].task) == (5, 6)
    assert futures[1].cancel()
    state.on_event({"ev": "accepted", "first": 5, "count": 2}, memoryview(b""))
    wait_for(lambda: bridge.of("cancel"), "the other one is cancelled")
    assert [message["tasks"] for message in bridge.of("cancel")] == [[[5, 1]]]
    state.fail_all(hq.ServerGone("over"))
    state.is_over = True
    sender.join()


def a_state(tmp_path, count):
    """Creates a state with waiting calls and without a sending thread."""
    bridge = Recorder()
    state = State(bridge, False, 1, None, Spool(str(tmp_path / "spool"), "", 1, False, 1 << 20))
    futures = [CallFuture(state) for _ in range(count)]
    for future in futures:
        state.add(Call(future, b"x", 7))
    return bridge, state, futures


@pytest.fixture
def sending():
    """Runs a sending thread until the test is over."""
    started = []

    def start(state):
        sender = threading.Thread(target=state.send_calls, daemon=True)
        started.append((state, sender))
        sender.start()

    yield start
    for state, sender in started:
        state.fail_all(hq.ServerGone("over"))
        state.is_over = True
        sender.join()


def test_calls_get_numbers_though_another_one_goes_on_adding_tasks(tmp_path):
    _, state, futures = a_state(tmp_path, 3_000)
    free = 0
    for attempts in range(100):
        _, first, _ = state._take_batch()
        # These are the tasks that the other client adds until the calls arrive.
        free += 90
        if first >= free:
            assert attempts < 12
            break
        state._on_taken(range(first, first + len(futures)), free)
    else:
        pytest.fail("they are refused again and again")
    state._on_accepted(range(first, first + len(futures)))
    assert state.margin.size < 128


def test_cancelled_calls_whose_numbers_are_taken_are_not_made_again(tmp_path, sending):
    bridge, state, futures = a_state(tmp_path, 4)
    sending(state)
    wait_for(lambda: bridge.of("calls") and not state.waiting, "calls are sent")
    # The result of this call is no longer wanted.
    state.cancel_waiting(futures[:1])
    wait_for(lambda: state.late_cancels, "it must be cancelled once the server has it")
    state.on_event({"ev": "taken", "first": 0, "count": 4, "free": 4}, memoryview(b""))
    assert futures[0].cancelled() and not futures[1].done()
    wait_for(lambda: len(bridge.of("calls")) == 2, "the others are sent again")
    state.shut(True)
    wait_for(lambda: len(state.late_cancels) == 3, "they must be cancelled as well")
    state.on_event({"ev": "taken", "first": 4, "count": 3, "free": 7}, memoryview(b""))
    assert all(future.cancelled() for future in futures)
    assert not state.waiting and not state.pending and not bridge.of("cancel")


def test_calls_that_wait_for_other_numbers_can_be_abandoned(tmp_path):
    _, state, futures = a_state(tmp_path, 2)
    state._take_batch()
    state._on_taken(range(2), 9)
    state.cancel_waiting(futures[:1])
    assert futures[0].cancelled() and not futures[1].done()
    assert [call.future for call in state.waiting] == futures[1:]


def test_the_task_that_has_the_number_of_a_refused_call_is_not_cancelled(tmp_path, sending):
    bridge, state, futures = a_state(tmp_path, 2)
    state._take_batch()
    state.shut(True)
    state.on_event({"ev": "refused", "first": 0, "count": 2, "text": "no"}, memoryview(b""))
    assert all(future.cancelled() for future in futures)
    assert not state.cancels_waiting and not state.late_cancels


def test_only_calls_under_way_are_asked_for_however_far_their_numbers_are_from_each_other(tmp_path, sending):
    bridge, state, futures = a_state(tmp_path, 3)
    state._take_batch()
    state._on_accepted(range(3))
    for number, future in zip((5, 6, 4_000_000_000), futures):
        state.pending[number] = future
        del state.pending[futures.index(future)]
    sending(state)
    state.on_event({"ev": "again"}, memoryview(b""))
    wait_for(lambda: bridge.of("settle"), "it is asked what ended")
    assert [message["tasks"] for message in bridge.of("settle")] == [[[5, 2], [4_000_000_000, 1]]]


def test_calls_for_which_the_job_has_no_numbers_left_fail(tmp_path, sending):
    bridge, state, futures = a_state(tmp_path, 3)
    state.next_id = (1 << 32) - 2
    sending(state)
    with pytest.raises(hq.HqError, match="task ids of job 1 are used up"):
        futures[2].result(60)
    assert [(message["first"], len(message["lens"])) for message in bridge.of("calls")] == [((1 << 32) - 2, 2)]
    with pytest.raises(hq.HqError, match="used up"):
        state.add(Call(CallFuture(state), b"x", 7))
    # Another client has these numbers.
    state.on_event({"ev": "taken", "first": (1 << 32) - 2, "count": 2, "free": (1 << 32) - 1}, memoryview(b""))
    with pytest.raises(hq.HqError, match="used up"):
        futures[1].result(60)


def test_a_job_with_tasks_up_to_the_highest_id_can_be_attached_to(cluster):
    job = cluster.ask("--output-mode", "quiet", "job", "open").stdout.strip()
    added = cluster.ask("submit", "--job", job, "--array", "5,1000000005,2000000005,4294967295", "--", "true")
    assert added.returncode == 0, added.stderr
    with hq.Executor.attach(int(job), server_dir=cluster.dir) as executor:
        assert sorted(executor.futures) == [5, 1_000_000_005, 2_000_000_005, (1 << 32) - 1]
        assert [future.result(60) for future in executor.futures.values()] == [None] * 4
        with pytest.raises(hq.HqError, match="used up"):
            executor.submit(abs, -1)


def test_the_bridge_refuses_calls_that_it_cannot_read(cluster):
    told = []
    with hq.Executor(server_dir=cluster.dir) as executor:
        bridge = executor._bridge
        job = bridge.ask({"what": "open", "name": "x"})
        bridge.follow(job, lambda message, blob: told.append(message))
        bridge.send({"op": "calls", "job": job, "t": 1, "first": 1 << 32, "lens": [1, 1]}, b"xx")
        wait_for(lambda: told, "somebody is told")
        assert told[0]["ev"] == "refused" and (told[0]["first"], told[0]["count"]) == (1 << 32, 2)
        assert "4294967296" in told[0]["text"]


def draw():
    return os.urandom(8)


def suspend(pid):
    """Stops a process, and waits until none of its threads is running anymore."""
    os.kill(pid, signal.SIGSTOP)

    def states():
        stats = [open(f"/proc/{pid}/task/{thread}/stat").read() for thread in os.listdir(f"/proc/{pid}/task")]
        return {stat.rpartition(")")[2].split()[0] for stat in stats}

    wait_for(lambda: states() == {"T"}, "all threads are stopped")


@pytest.mark.parametrize("kind", ["call", "program"])
def test_a_call_whose_connection_was_lost_does_not_take_an_equal_one_of_another_executor_for_its_own(cluster, kind, tmp_path):
    program = ["sh", "-c", f"echo run >> {tmp_path / 'runs'}"]

    def make(one):
        return one.submit(draw) if kind == "call" else one.program(program, stdout="out-%{TASK_ID}")

    with hq.Executor(server_dir=cluster.dir) as executor:
        assert executor.submit(abs, -1).result(60) == 1
        other = hq.Executor.attach(executor.job, server_dir=cluster.dir)
        server, bridge = cluster.processes[0], executor._bridge.pid
        # The server no longer learns about the call, and the client notices the new server too late.
        suspend(server.pid)
        ours = make(executor)
        wait_for(lambda: ours.task is not None, "the call is handed over")
        time.sleep(0.5)
        os.kill(bridge, signal.SIGSTOP)
        try:
            server.kill()
            server.wait()
            cluster.start_server("--resume")
            theirs = make(other)
            value = theirs.result(60)
        finally:
            os.kill(bridge, signal.SIGCONT)
        assert ours.result(60) != value
        assert ours.task != theirs.task == 1
        assert kind == "call" or (tmp_path / "runs").read_text() == "run\nrun\n"
        other.shutdown()
