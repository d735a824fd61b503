"""What works with `ProcessPoolExecutor` works with `hq.Executor`."""

import errno
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import types
import urllib.error

import pytest

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
    with pytest.raises(PermissionError, match="values="):
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
