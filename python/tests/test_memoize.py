"""Memoized calls: equal calls run once, also after the script has died."""

import os
import subprocess
import sys

import pytest

import hq


def count(path, *args, fail=False):
    with open(path, "a") as file:
        file.write("x")
    if fail:
        raise KeyError("failed")
    return [*args]


def runs(path):
    return os.path.getsize(path)


def test_equal_calls_run_once(tmp_path):
    path = str(tmp_path / "runs")
    with hq.Executor(2, local=True, memoize=True) as executor:
        first = executor.submit(count, path, 1, {"a": [2.5]})
        assert executor.submit(count, path, 1, {"a": [2.5]}) is first and first.result(60) == [1, {"a": [2.5]}]
        assert executor.submit(count, path, 1, {"a": [2.5]}).result(60) == first.result() and runs(path) == 1
        assert executor.submit(count, path, 1, {"a": [3.5]}).result(60) == [1, {"a": [3.5]}] and runs(path) == 2
        # A future counts as the call that it is from.
        assert [executor.submit(count, path, first).result(60) for _ in range(2)] == [[[1, {"a": [2.5]}]]] * 2 and runs(path) == 3
        assert list(executor.map(count, [path] * 3, [4] * 3)) == [[4]] * 3 and runs(path) == 4
        # Failed calls run again, and so do those of other options.
        for _ in range(2):
            with pytest.raises(KeyError):
                executor.submit(count, path, fail=True).result(60)
        assert runs(path) == 6
        plain = executor.options(memoize=False)
        assert [plain.submit(count, path, 4).result(60) for _ in range(2)] == [[4]] * 2 and runs(path) == 8


def test_the_source_of_a_function_counts(tmp_path):
    def made(offset):
        return lambda x: count(path, x + offset)

    path = str(tmp_path / "runs")
    with hq.Executor(2, local=True, memoize=True) as executor:
        assert [executor.submit(made(offset), 1).result(60) for offset in (1, 2, 1)] == [[2], [3], [2]] and runs(path) == 2
        assert executor.submit(lambda x: count(path, x - 1), 1).result(60) == [0] and runs(path) == 3


SCRIPT = """
import os, sys
import hq

def work(number):
    with open("runs", "a") as file:
        file.write("x")
    return bytes(number)

server, job, values = sys.argv[1:]
options = {"server_dir": server, "memoize": True, "values": values or None}
executor = hq.Executor.attach(int(job), **options) if job else hq.Executor(**options)
print(executor.job, [len(executor.submit(work, number).result()) for number in (1, 2, 100_000)], flush=True)
if not job:
    os._exit(0)
executor.shutdown()
"""


@pytest.mark.parametrize("values, missed", [("", 1), ("values", 0)])
def test_calls_of_a_script_that_died_do_not_run_again(cluster, tmp_path, values, missed):
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(job):
        command = [sys.executable, "script.py", cluster.dir, job, values and str(tmp_path)]
        return subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, timeout=120).stdout

    shown = run("")
    assert shown == "1 [1, 2, 100000]\n" and runs(tmp_path / "runs") == 3
    # A result that its worker holds has no key.
    assert run("1") == shown and runs(tmp_path / "runs") == 3 + missed
