"""Tests files with long arguments and values that killed processes have left behind."""

import glob
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from concurrent import futures

import pytest
from conftest import wait_for

import hq
from hq import _sender, _spool
from hq._interpreter import NEW, own_dir, own_file

LONG = 2 << 20

#: Makes a call with a long argument that runs until a file exists, and reports when the call was handed over.
CLIENT = """
import os, sys, time, hq
def wait_for(long, gate):
    while not os.path.exists(gate):
        time.sleep(0.02)
    return len(long)
executor = {made}({where})
future = executor.submit(wait_for, bytes({size}), {gate!r})
executor.submit(abs, 1)
while future.task is None or executor._state.unconfirmed:
    time.sleep(0.02)
print(executor.job, flush=True)
time.sleep(600)
"""
#: One who comes next.
NEXT = """
import hq, threading
with hq.Executor(1, {where}):
    for thread in threading.enumerate():
        if thread.name == "hq-sweep":
            thread.join()
"""


@pytest.fixture
def gate(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    path = [os.path.dirname(os.path.dirname(hq.__file__)), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    return tmp_path / "gate"


def client(gate, where, made="hq.Executor"):
    text = CLIENT.format(gate=str(gate), size=LONG, where=where, made=made)
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def come_next(where):
    subprocess.run([sys.executable, "-c", NEXT.format(where=where)], check=True)


def size_after(value, path):
    while not os.path.exists(path):
        time.sleep(0.02)
    return len(value)


def left(place):
    return sorted(glob.glob(str(place / ".hq-values-*" / "call-*")))


def test_arguments_of_a_killed_process_stay_while_its_calls_need_them(cluster, gate, tmp_path):
    where = f"server_dir={str(cluster.dir)!r}"
    process, job = client(gate, where)
    come_next(where)
    assert len(left(tmp_path)) == 1, "its owner lives"
    kill(process)
    come_next(where)
    assert len(left(tmp_path)) == 1, "the call runs"
    gate.touch()
    wait_for(lambda: "FINISHED" in cluster.ask("task", "list", job, "--tasks", "0").stdout, "the call ends")
    come_next(where)
    assert len(left(tmp_path)) == 1, "who attaches may have it made again"
    with hq.Executor.attach(int(job), server_dir=cluster.dir) as executor:
        assert executor.futures[0].result(60) == LONG
        wait_for(lambda: not list(tmp_path.glob(".hq-values-*")), "its calls have ended")


def test_arguments_of_later_calls_stay_when_the_calls_before_attach_have_ended(cluster, gate, tmp_path):
    where = f"server_dir={str(cluster.dir)!r}"
    process, job = client(gate, where)
    kill(process)
    with hq.Executor.attach(int(job), server_dir=cluster.dir) as executor:
        other, _ = client(tmp_path / "later", f"{job}, {where}", "hq.Executor.attach")
        kill(other)
        assert len(left(tmp_path)) == 2
        gate.touch()
        assert executor.futures[0].result(60) == LONG
        wait_for(lambda: len(left(tmp_path)) < 2, "the first call has ended")
        assert len(left(tmp_path)) == 1
        (tmp_path / "later").touch()


def test_files_of_arguments_go_with_their_calls(gate, tmp_path):
    with hq.Executor(2, local=True) as executor:
        first, second = executor.submit(size_after, bytes(LONG), str(gate)), executor.submit(len, bytes(LONG))
        assert second.result() == LONG
        wait_for(lambda: len(left(tmp_path / "tmp")) == 1, "the second call has ended")
        gate.touch()
        assert first.result() == LONG and not left(tmp_path / "tmp")
        cancelled = executor.submit(size_after, bytes(LONG), str(tmp_path / "never"))
        with pytest.raises(TypeError):
            executor.submit(len, 1, bytes(LONG)).result()
        wait_for(lambda: cancelled.task is not None, "it was handed over")
        assert cancelled.cancel()
        wait_for(lambda: not left(tmp_path / "tmp"), "no call is left")


def test_a_lost_value_is_made_again_from_long_arguments(cluster, gate, tmp_path):
    worker = cluster.processes[-1]
    with hq.Executor(server_dir=cluster.dir) as executor:
        future = executor.submit(bytes.upper, bytes(LONG))
        futures.wait([future])
        assert len(left(tmp_path)) == 1, "the call may run again"
        worker.kill()
        worker.wait()
        cluster.start_worker()
        assert future.result() == bytes(LONG)
        assert len(left(tmp_path)) == 1
        del future
        wait_for(lambda: not left(tmp_path), "nobody can ask for the value")


def test_arguments_of_the_first_calls_are_released_soon(cluster, gate):
    with hq.Executor(server_dir=cluster.dir) as executor:
        state = executor._state
        state.released_at = time.monotonic() + 1
        assert executor.submit(abs, -1).result() == 1
        wait_for(lambda: state.released_at < time.monotonic() and not state.spent, "the release", 10)


def test_arguments_of_a_call_go_when_a_value_that_it_needs_is_lost(cluster, gate, tmp_path):
    with hq.Executor(server_dir=cluster.dir, crash_limit="never-restart") as executor:
        lost = executor.submit(bytes, LONG)
        futures.wait([lost])
        os.unlink(lost._result.reference["path"])
        call = executor.submit(max, bytes(LONG), lost)
        with pytest.raises(hq.WorkerLost):
            call.result()
        wait_for(lambda: not left(tmp_path), "the call has failed")


def test_results_of_a_killed_process_stay_until_its_job_is_forgotten(cluster, gate, tmp_path):
    where = f"server_dir={str(cluster.dir)!r}, values='.'"
    process, job = client(gate, where)
    kill(process)
    [directory] = tmp_path.glob(".hq-values-*")
    (directory / "value-1-0-0123456789ab").touch()
    gate.touch()
    assert cluster.ask("job", "close", job).returncode == 0
    assert cluster.ask("job", "wait", job).returncode == 0
    come_next(where)
    assert sorted(os.listdir(directory)) == ["owner", "value-1-0-0123456789ab"]
    assert cluster.ask("job", "forget", job).returncode == 0
    come_next(where)
    assert not directory.exists()


def test_what_a_local_executor_has_left_goes_at_once(gate, tmp_path):
    process, _ = client(gate, "local=True")
    come_next("local=True")
    assert len(left(tmp_path / "tmp")) == 1, "its owner lives"
    kill(process)
    come_next("local=True")
    assert not os.listdir(tmp_path / "tmp")


def test_what_is_known_of_an_owner(tmp_path):
    path = tmp_path / NAME
    path.mkdir()
    lock = _spool.claim(str(path), {"server": "s", "job": 1, "is_local": False})
    named = path / "owner"
    owner = json.loads(named.read_text())

    def judge(**changes):
        with open(named, "rb") as file:
            return _spool._is_gone({**owner, **changes}, file.fileno())

    assert judge() is False
    assert judge(start=owner["start"] - 1) is False, "its number may be another one in the /proc that is mounted here"
    # In a container, which has numbers of its own, and on another machine the lock is all there is.
    assert judge(pids="other", pid=1) is False
    assert judge(machine="other") is False
    os.close(lock)
    # As on a file system without locks.
    assert judge() is False
    assert judge(start=owner["start"] - 1) is True, "another process has its number"
    assert judge(pids="other", pid=1) is True
    assert judge(machine="other") is None

    def sweep(info):
        named.write_text(json.dumps({**owner, "machine": "other"}))
        os.utime(named, (time.time() - age,) * 2)
        _spool.sweep(str(tmp_path), "s", lambda job: info)
        return not path.exists()

    age = 86_400
    assert not sweep(None)
    age *= 31
    assert not sweep({"is_open": True, "running": 0, "waiting": 1}), "a call has waited for very long"
    assert sweep(None)


def test_long_arguments_find_a_place_after_a_cleaner_has_removed_it(gate, tmp_path):
    with hq.Executor(1, local=True, values=tmp_path) as executor:
        assert executor.submit(len, bytes(LONG)).result(60) == LONG
        [directory] = tmp_path.glob(".hq-values-*")
        shutil.rmtree(directory)
        assert executor.submit(len, bytes(LONG)).result(60) == LONG
        come_next(f"local=True, values={str(tmp_path)!r}")
        assert (directory / "owner").exists(), "its owner lives"
    assert not list(tmp_path.glob(".hq-values-*"))


def test_who_only_waits_gives_signs_of_life(gate, tmp_path, monkeypatch):
    monkeypatch.setattr(_spool, "_SIGN", 0.2)
    monkeypatch.setattr(_sender, "_LOOK_AGAIN", 0.05)
    with hq.Executor(1, local=True, values=tmp_path):
        [owner] = tmp_path.glob(".hq-values-*/owner")
        os.utime(owner, (0, 0))
        wait_for(lambda: owner.stat().st_mtime > 0, "a sign of life")


NAME = ".hq-values-0123456789ab"
ARGUMENT = "call-" + 32 * "0"
RESULT = "value-1-0-0123456789ab"


def old_directory(path, *names):
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        (path / name).touch()
    os.utime(path, (time.time() - 31 * 86_400,) * 2)
    return path


def test_directories_that_only_look_like_ours_are_left_alone(gate, tmp_path):
    users = [
        old_directory(tmp_path / "hq-values-2024", "precious"),
        old_directory(tmp_path / "hq-values-abcdefgh", "precious"),
        old_directory(tmp_path / ".hq-values-notes", ARGUMENT),
        old_directory(tmp_path / NAME, ARGUMENT, "precious"),
        old_directory(tmp_path / "tmp" / "hq-values-abcdefgh", "1", "precious"),
        old_directory(tmp_path / "tmp" / "hq-values-experiment", "1"),
    ]
    old_directory(users[0] / "deep", "precious")
    old_directory(tmp_path / ".hq-values-0123456789ac" / ARGUMENT, "precious")
    users.append(old_directory(tmp_path / ".hq-values-0123456789ac"))
    before = [sorted(os.listdir(path)) for path in users]
    ours = [
        old_directory(tmp_path / ".hq-values-ba9876543210", ARGUMENT, RESULT, "owner"),
        old_directory(tmp_path / ".hq-values-ba9876543211"),
        old_directory(tmp_path / "tmp" / "hq-values-abc_1234", "1", 32 * "a"),
    ]
    _spool.sweep(str(tmp_path), "s", lambda job: None)
    assert [sorted(os.listdir(path)) for path in users] == before
    assert (users[-1] / ARGUMENT / "precious").exists()
    assert not any(path.exists() for path in ours)


def test_what_somebody_has_put_into_our_directory_stays(gate, tmp_path):
    with hq.Executor(1, local=True, values=tmp_path) as executor:
        assert executor.submit(len, bytes(LONG)).result(60) == LONG
        [directory] = tmp_path.glob(".hq-values-*")
        (directory / "notes").mkdir()
        (directory / "notes" / "precious").touch()
    assert sorted(os.listdir(directory)) == ["notes", "owner"]
    come_next(f"local=True, values={str(tmp_path)!r}")
    assert (directory / "notes" / "precious").exists()


def test_no_file_is_removed_while_it_is_open(gate, tmp_path, monkeypatch):
    unlink = os.unlink

    def as_on_nfs(path, *, dir_fd=None):
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        if os.path.realpath(path) in opened:
            os.rename(path, os.path.join(os.path.dirname(path), ".nfs0"))
        else:
            unlink(path)

    monkeypatch.setattr(os, "unlink", as_on_nfs)
    spool = _spool.Spool(str(tmp_path / NAME), "s", 1, False, 1 << 20)
    spool.make()
    (tmp_path / NAME / ARGUMENT).touch()
    spool.remove()
    assert not list(tmp_path.glob(".hq-values-*"))


def test_a_file_is_not_found_while_it_is_removed(gate, tmp_path, monkeypatch):
    spool, drop, others = _spool.Spool(str(tmp_path / NAME), "s", 1, False, 1 << 20), _spool.Spool.drop, []

    def store_and_drop(spool, path):
        monkeypatch.undo()
        others.append(spool.store(bytes(LONG)))
        drop(spool, path)

    monkeypatch.setattr(_spool.Spool, "drop", store_and_drop)
    spool.store(bytes(LONG))
    [other] = others
    assert os.path.exists(other.path)
    spool.remove()


#: Makes a call with a long result in a file, which is there when there is a file.
MAKER = """
import os, time, hq
def make(gate):
    while not os.path.exists(gate):
        time.sleep(0.02)
    return bytes({size})
executor = hq.Executor(1, {where})
future = executor.submit(make, {gate!r})
while future.task is None or executor._state.unconfirmed:
    time.sleep(0.02)
print(executor.job, flush=True)
time.sleep(600)
"""


def test_results_can_be_had_each_time_that_their_job_is_attached_to(cluster, gate, tmp_path):
    where = f"server_dir={str(cluster.dir)!r}, values='.'"
    text = MAKER.format(gate=str(gate), size=LONG, where=where)
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    job = int(process.stdout.readline())
    kill(process)
    gate.touch()
    for _ in range(2):
        # The result of the first call is never requested.
        seen = hq.Executor.attach(job, server_dir=cluster.dir)
        wait_for(lambda: seen.futures[0].done(), "the call ends")  # noqa: B023
        with hq.Executor.attach(job, server_dir=cluster.dir) as executor:
            assert executor.futures[0].result(60) == bytes(LONG)
        seen.shutdown()
    [path] = tmp_path.glob(".hq-values-*/value-*")
    path.unlink()
    with hq.Executor.attach(job, server_dir=cluster.dir) as executor:
        with pytest.raises(hq.HqError, match=rf"result of call 0 of job {job} was in .*{path.name}, which is gone"):
            executor.futures[0].result(60)
    assert cluster.ask("job", "forget", str(job)).returncode == 0
    come_next(where)
    assert not list(tmp_path.glob(".hq-values-*"))


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_directories_and_files_are_private_and_those_of_others_are_not_used(tmp_path, umask):
    before = os.umask(umask)
    try:
        own_dir(tmp_path / "dir")
        with own_file(tmp_path / "dir/file", NEW) as file:
            file.write(b"x")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("dir", "dir/file")]
    assert modes == [0o700, 0o600]
    os.chmod(tmp_path / "dir", 0o777)
    own_dir(tmp_path / "dir")
    assert stat.S_IMODE(os.stat(tmp_path / "dir").st_mode) == 0o700
    os.symlink("file", tmp_path / "dir/link")
    with pytest.raises(OSError):
        own_file(tmp_path / "dir/link")
    if os.geteuid() == 0:
        for name, use in (("dir/file", own_file), ("dir", own_dir)):
            os.chown(tmp_path / name, 65_533, -1)
            with pytest.raises(PermissionError, match="belongs to user 65533"):
                use(tmp_path / name)
