"""What works with `ProcessPoolExecutor` works with `hq.Executor`."""

import concurrent.futures
import errno
import functools
import multiprocessing.util
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import types
import urllib.error

import pytest
from conftest import wait_for

import hq


@pytest.fixture
def local():
    with hq.Executor(2, local=True) as executor:
        yield executor


@pytest.fixture(params=["cloudpickle", "code"])
def by_value(request, monkeypatch):
    """Functions are sent by value, with and without cloudpickle."""
    if request.param == "code":
        monkeypatch.setattr("hq._pickle._cloudpickle", lambda: None)
    else:
        pytest.importorskip("cloudpickle")


class WithCode(Exception):
    def __init__(self, text, code):
        super().__init__(text)
        self.code = code


class WithLock(Exception):
    """Cannot be pickled, and has a text of its own."""

    def __init__(self, first, second):
        self.lock = threading.Lock()

    def __str__(self):
        return f"locked {self.lock.locked()}"


def fail(kind, *args):
    raise kind(*args)


def test_functions_keep_their_defaults_and_attributes(local, by_value):
    def scaled(number, *, factor=2):
        "Scales."
        return number * factor, scale.unit, scale.__doc__, scale.__qualname__

    def scale(number):
        "Has a unit."

    scale.unit = "m"
    assert local.submit(scaled, 3).result(60) == (6, "m", "Has a unit.", scale.__qualname__)


def test_tracebacks_name_the_file_of_a_function_sent_by_value(local, by_value):
    def boom():
        return {}["missing"]

    error = local.submit(boom).exception(60)
    assert f'File "{__file__}", line' in str(error.__cause__)
    # This is what the standard library calls it.
    assert error.__cause__.tb == error.__cause__.traceback


def test_tracebacks_name_the_file_whatever_cloudpickle_does(local, monkeypatch):
    cloudpickle = pytest.importorskip("cloudpickle.cloudpickle")
    # As of 3.1.3.
    reduce = cloudpickle._code_reduce
    table = cloudpickle.Pickler._dispatch_table
    monkeypatch.setitem(table, types.CodeType, lambda code: reduce(code.replace(co_filename="<dynamic-code>")))
    error = local.submit(lambda: {}["missing"]).exception(60)
    assert f'File "{__file__}", line' in str(error.__cause__)


def test_an_exception_with_other_arguments_than_its_constructor_arrives(local):
    with pytest.raises(WithCode, match="wrong") as caught:
        local.submit(fail, WithCode, "wrong", 3).result(60)
    assert type(caught.value) is WithCode and caught.value.code == 3
    with pytest.raises(urllib.error.HTTPError, match="404"):
        local.submit(fail, urllib.error.HTTPError, "http://x", 404, "no", {}, None).result(60)


def test_an_exception_that_cannot_be_pickled_is_caught_by_its_class(local):
    with pytest.raises(WithLock) as caught:
        local.submit(fail, WithLock, 1, 2).result(60)
    assert isinstance(caught.value, hq.RemoteError) and str(caught.value) == "WithLock: locked False"
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, WithLock) and str(again) == str(caught.value)


def test_arguments_of_the_pool_s_constructor(tmp_path):
    with hq.Executor(1, None, os.chdir, (tmp_path,), local=True) as executor:
        assert executor.submit(abs, -1).result(60) == 1
    with pytest.raises(ValueError, match="mp_context has no meaning"):
        hq.Executor(1, mp_context="spawn")
    with pytest.raises(TypeError, match="integer"):
        hq.Executor(1.5)


def test_a_directory_that_cannot_be_written_names_the_option(local, monkeypatch):
    def own_dir(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("hq._spool.own_dir", own_dir)
    with pytest.raises(OSError, match="values=.*Permission denied"):
        local.submit(len, bytes(2_000_000)).result(60)


def test_the_program_runs_as_a_module():
    ran = subprocess.run([sys.executable, "-m", "hq", "--version"], capture_output=True, text=True, env=env())
    assert ran.stdout.split() == ["hq", hq.__version__]


def env(**changes):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **changes}


def run_script(path, text, *args):
    """Runs a script of a user, and returns its output."""
    path.write_text(textwrap.dedent(text))
    ran = subprocess.run([sys.executable, path, *args], capture_output=True, text=True, env=env(), timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


#: Sends functions that are found by name only, as for `ProcessPoolExecutor`.
SCRIPT = """
    import functools, multiprocessing, sys, threading
    import hq
    if sys.argv[1] == "code":
        import hq._pickle
        hq._pickle._cloudpickle = lambda: None

    lock = threading.Lock()
    print("imported as", __name__, file=sys.stderr)

    class Point:
        def __init__(self, x):
            self.x = x

    class TooFar(Exception):
        pass

    def locked(point):
        with lock:
            return Point(point.x + 1)

    def refuse(point):
        with lock:
            raise TooFar(point.x)

    @functools.lru_cache(maxsize=7)
    def cached(number):
        return number * 2

    @functools.singledispatch
    def dispatched(value):
        return "anything"

    @dispatched.register
    def _(value: int):
        return "a number"

    def countdown(number):
        with lock:
            pass
        return countdown(number - 1) if number else "done"

    def prepare():
        global prepared
        with lock:
            prepared = "prepared"

    def is_prepared():
        with lock:
            return prepared

    if __name__ == "__main__":
        with hq.Executor(1, local=True, init=prepare) as executor:
            result = executor.submit(locked, Point(3)).result()
            print(type(result) is Point, result.x)
            print(type(executor.submit(refuse, Point(3)).exception()) is TooFar)
            print(executor.submit(cached, 3).result(), executor.submit(dispatched, 3).result())
            print(executor.submit(countdown, 3).result(), executor.submit(is_prepared).result())
            print(list(executor.map(locked, [Point(1)], chunksize=2))[0].x)
"""


@pytest.mark.parametrize("how", ["cloudpickle", "code"])
def test_what_cannot_be_sent_by_value_is_found_in_the_script(tmp_path, how):
    expected = ["True 4", "True", "6 a number", "done prepared", "2", ""]
    assert run_script(tmp_path / "script.py", SCRIPT, how).split("\n") == expected
    # As a module, from a directory that the script alone does not have in its path.
    (tmp_path / "package").mkdir()
    (tmp_path / "script.py").rename(tmp_path / "package/script.py")
    command = [sys.executable, "-m", "package.script", how]
    assert subprocess.run(command, capture_output=True, text=True, env=env(), timeout=120).stdout.split("\n") == expected


def test_a_script_without_a_guard_names_the_remedy(tmp_path):
    script = """
        import hq, threading
        lock = threading.Lock()
        def locked():
            with lock:
                pass
        executor = hq.Executor(1, local=True)
        print(executor.submit(locked).exception())
    """
    assert "if __name__ == '__main__':" in run_script(tmp_path / "script.py", script)


def test_a_cached_function_stays_cached(local, by_value):
    @functools.cache
    def pid_of(number):
        return os.getpid(), time.monotonic_ns()

    with hq.Executor(1, local=True) as executor:
        first, second = executor.submit(pid_of, 1).result(60), executor.submit(pid_of, 1).result(60)
        assert first == second != executor.submit(pid_of, 2).result(60)


def report(queue, shared, number):
    shared[number] = queue
    queue.put(number)
    # A proxy that comes from the manager has its key as well.
    shared[number].put(number)


def test_proxies_of_a_manager_are_arguments(local, by_value):
    with multiprocessing.Manager() as manager:
        queue, shared = manager.Queue(), manager.dict()
        local.submit(report, queue, shared, 3).result(60)
        local.submit(lambda: queue.put(4)).result(60)
        assert [queue.get(timeout=60) for _ in range(3)] == [3, 3, 4]
        with hq.Executor(1, local=True, init=queue.put, initargs=(5,)) as executor:
            assert executor.submit(abs, -1).result(60) == 1
        assert queue.get(timeout=60) == 5


def say(word):
    print("out", word, flush=True)
    os.system(f"echo child {word} >&2")


def test_what_calls_print_is_shown_and_kept(local, capsys, monkeypatch, tmp_path):
    assert [*local.map(say, "ab")] == [None, None]
    shown = capsys.readouterr()
    assert sorted(shown.out.split("\n")) == ["", "out a", "out b"] and sorted(shown.err.split("\n")) == ["", "child a", "child b"]
    assert sorted(path.read_text() for path in tmp_path.glob(f"job-{local.job}/*.stdout")) == ["out a\n", "out b\n"]
    local.program(["echo", "of a program"]).result(60)
    local.options(output=None).submit(say, "c").result(60)
    # Files of an earlier server, whose first job has the same number, are not shown.
    (tmp_path / "elsewhere").mkdir()
    for number in range(9):
        (tmp_path / f"elsewhere/{number}.stdout").write_text("from before\n")
    elsewhere = local.options(output="elsewhere")
    assert elsewhere.submit(abs, -1).result(60) == 1
    elsewhere.submit(say, "d").result(60)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("out d\n", "child d\n")
    monkeypatch.setattr("sys.stdout", None)
    local.submit(say, "e").result(60)


def test_what_calls_on_a_server_print_is_in_files_only(cluster, capsys, tmp_path):
    with hq.Executor(server_dir=cluster.dir) as executor:
        executor.submit(say, "a").result(60)
    assert capsys.readouterr().out == "" and (tmp_path / f"job-{executor.job}/0.stdout").read_text() == "out a\n"


def leave_behind(gate, path):
    def late():
        while not os.path.exists(gate):
            time.sleep(0.02)
        path.with_suffix(".thread").touch()

    threading.Thread(target=late).start()
    # An idle thread of it ends with the interpreter.
    concurrent.futures.ThreadPoolExecutor(1).submit(abs, -1).result()
    multiprocessing.util.Finalize(None, path.with_suffix(".finalizer").touch, exitpriority=1)


def test_threads_that_outlive_their_call_end_before_the_interpreter(tmp_path):
    with hq.Executor(1, local=True, max_tasks_per_child=1) as executor:
        executor.submit(leave_behind, tmp_path / "gate", tmp_path / "end").result(60)
        (tmp_path / "gate").touch()
        wait_for(lambda: (tmp_path / "end.thread").exists() and (tmp_path / "end.finalizer").exists(), "the end", 20)
