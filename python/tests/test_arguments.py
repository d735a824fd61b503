"""Long arguments are values in files: shared by calls that get equal ones, mapped by interpreters."""

import errno
import gc
import glob
import os
import pickle
import re
import time
import warnings

import pytest
from conftest import wait_for

import hq

SIZE = 3 << 20


class Array(bytearray):
    """Is to a pickler what an array is. It arrives as a view of its file."""

    def __reduce_ex__(self, protocol):
        return memoryview, (pickle.PickleBuffer(self),)


class Node:
    nbytes = SIZE


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    path = [os.path.dirname(os.path.dirname(hq.__file__)), os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    return tmp_path


def files(place):
    return glob.glob(str(place / "tmp" / ".hq-values-*" / "call-*"))


def size_after(path, *values):
    while not os.path.exists(path):
        time.sleep(0.02)
    return sum(map(len, values))


def change(first, second):
    """Changes a value, and says whether the other one is the same object."""
    before, first[0] = first[0], 7
    return before, second[0]


def test_calls_share_equal_values(place):
    gate, array = place / "gate", Array(bytearray(SIZE))
    with hq.Executor(2, local=True) as executor:
        futures = [executor.submit(size_after, str(gate), array, number * b"x") for number in range(4)]
        futures.append(executor.submit(size_after, str(gate), [{"deep": 1}, Array(bytearray(SIZE))][1]))
        assert len(files(place)) == 1
        # A value that was changed meanwhile is another one, although the object is the same.
        array[SIZE // 3] = 1
        futures.append(executor.submit(size_after, str(gate), array))
        futures.append(executor.submit(lambda: size_after(str(gate), array)))
        assert len(files(place)) == 2
        gate.touch()
        sizes = [future.result() for future in futures]
        assert sizes == [SIZE, SIZE + 1, SIZE + 2, SIZE + 3, SIZE, SIZE, SIZE]
        wait_for(lambda: not files(place), "all calls have ended")


def test_a_call_may_change_its_values_without_others_seeing_it(place):
    array = Array(bytearray(SIZE))
    with hq.Executor(2, local=True) as executor:
        # The same object twice is one object there as well.
        assert executor.submit(change, array, array).result() == (0, 7)
        put = executor.put(array)
        assert [executor.submit(change, put, put).result() for _ in range(3)] == [(0, 7)] * 3
        assert array[0] == 0


def test_equal_values_in_a_call_are_as_many_objects_as_in_the_program(place):
    first, second, data = Array(bytearray(SIZE)), Array(bytearray(SIZE)), bytearray(SIZE)
    with hq.Executor(2, local=True) as executor:
        puts = executor.put(first), executor.put(second)
        for one, other in [(first, second), puts, (puts[0], first)]:
            assert executor.submit(change, one, other).result() == (0, 0)
            assert executor.submit(change, one, one).result() == (0, 7)
            assert list(executor.map(change, [one, other], [one, other], chunksize=2)) == [(0, 7)] * 2
        assert executor.submit(lambda one: change(first, one), first).result() == (0, 0), "a variable of the function"
        assert executor.submit(change, data, bytearray(SIZE)).result() == (0, 0)
        assert executor.submit(change, data, data).result() == (0, 7)


def test_a_value_that_was_put_is_one_file_until_its_handle_is_gone(place):
    with hq.Executor(2, local=True) as executor:
        text = executor.put("x" * SIZE)
        assert text.result() == "x" * SIZE and len(files(place)) == 1
        assert executor.submit(len, text).result() == SIZE
        assert list(executor.map(len, [text] * 5, chunksize=2)) == [SIZE] * 5
        assert executor.submit(len, [text, {"deep": text}]).result() == 2
        assert len(files(place)) == 1
        del text
        wait_for(lambda: not files(place), "nobody can send it")
        short = executor.options(priority=1).put(7)
        [path] = files(place)
        os.unlink(path)
        assert executor.submit(abs, short).result() == 7, "stored again after a cleaner"
        pid = os.fork()
        if not pid:
            try:
                executor.put(7)
            except hq.ServerGone:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0 and len(files(place)) == 1
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.put(7)
    assert not list((place / "tmp").glob(".hq-values-*"))


@pytest.mark.parametrize("value", [b"x" * 100_000, bytearray(100_000), "ä" * 70_000, list(range(20_000)), {"k": b"x" * 100_000}])
def test_long_arguments_of_any_type_arrive(place, value):
    with hq.Executor(1, local=True) as executor:
        arrived = executor.submit(pickle.dumps, value, protocol=5).result()
        assert pickle.loads(arrived) == value and type(pickle.loads(arrived)) is type(value)
        assert executor.submit(lambda: len(value)).result() == len(value), "as a variable of a function"
        assert [*executor.map(len, [value] * 3, chunksize=3)] == [len(value)] * 3
        wait_for(lambda: not files(place), "the calls have ended")


def test_a_function_and_its_arguments_are_together_within_the_limit(cluster, place):
    def make(data):
        return lambda other: len(data) + len(other)

    with hq.Executor(server_dir=cluster.dir) as executor:
        for size, other in [(1_020_000, 1_020_000), (1_020_000, 10), (1_100_000, 1_100_000)]:
            assert executor.submit(make(bytes(size)), bytes(other)).result() == size + other
            assert list(executor.map(make(bytes(size)), [bytes(other)], chunksize=2)) == [size + other]


def is_cycle(root):
    return root["node"].root is root and len(root["bytes"])


def test_only_long_buffers_have_files_of_their_own(place):
    gate, node, arrays = place / "gate", Node(), [Array(100_000) for _ in range(30)]
    node.root = {"node": node, "bytes": bytes(100_000)}
    with hq.Executor(2, local=True) as executor:
        assert executor.submit(is_cycle, node.root).result() == 100_000
        many = executor.submit(size_after, str(gate), arrays)
        assert len(files(place)) == 1
        two = executor.submit(size_after, str(gate), arrays, Array(SIZE))
        assert len(files(place)) == 3
        gate.touch()
        assert (many.result(), two.result()) == (30, 30 + SIZE)


def test_an_interpreter_that_forks_keeps_no_values_of_calls(place):
    array = Array(bytearray(SIZE))
    with hq.Executor(1, local=True, mode="fork") as executor:
        interpreter, size = executor.submit(lambda: (os.getppid(), len(array))).result()
        assert size == SIZE
        maps = place.joinpath("/proc", str(interpreter), "maps")
        wait_for(lambda: "/call-" not in maps.read_text(), "the interpreter waits for a call")


def test_arguments_without_a_file_go_to_the_server_if_they_are_short(place, monkeypatch):
    def write_value(path, pickled, buffers):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with hq.Executor(1, local=True) as executor:
        monkeypatch.setattr("hq._spool.write_value", write_value)
        assert executor.submit(len, bytes(1_000_000)).result() == 1_000_000
        assert executor.submit(len, [Array(bytes(100_000))] * 2).result() == 2
        for value in (bytes(SIZE), Array(SIZE), [bytes(SIZE)]):
            with pytest.raises(OSError, match=r"cannot be put into .*hq-values-.* \(values= names.*No space left"):
                executor.submit(len, value).result()
        assert not files(place)


def test_a_fork_leaves_the_arguments_of_waiting_calls(place):
    gate = place / "gate"
    with hq.Executor(1, local=True) as executor:
        futures = [executor.submit(size_after, str(gate), number * b"x" + bytes(SIZE)) for number in range(9)]
        wait_for(lambda: futures[0].task is not None, "the first call was handed over")
        pid = os.fork()
        if not pid:
            gc.collect()
            os._exit(0)
        os.waitpid(pid, 0)
        gate.touch()
        assert [future.result() for future in futures] == [SIZE + number for number in range(9)]


def size_with(value, *others):
    return len(value)


def test_a_long_value_that_is_sent_three_times_gets_a_warning_about_put(place):
    value, equal, pair = bytes(10 << 20), bytes(10 << 20), [Array(bytes(10 << 20)) for _ in range(2)]
    with hq.Executor(1, local=True) as executor, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        puts = [executor.put(value) for _ in range(4)]
        assert [executor.submit(len, put).result() for put in puts] == [len(value)] * 4
        assert executor.submit(size_with, *pair, *pair, lambda: 0).result() == len(value)
        for number, one in enumerate([value, equal]):
            assert executor.submit(size_with, one, lambda: number).result() == len(value)  # noqa: B023
        assert not caught
        executor.options(priority=1).submit(len, value).result()
        executor.submit(len, value).result()
    text = "a value of N bytes was sent for the third time; `value = executor.put(value)` stores it once for all calls"
    assert [(re.sub(r"\d+", "N", str(one.message)), one.filename) for one in caught] == [(text, __file__)]
