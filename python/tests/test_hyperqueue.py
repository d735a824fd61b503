"""Tests the drop-in package as scripts use HyperQueue's own package."""

import datetime
import logging

import pytest

from hyperqueue import Client, Job, LocalCluster, get_version
from hyperqueue.client import FailedJobsException, FailedTaskContext
from hyperqueue.cluster import WorkerConfig
from hyperqueue.ffi.protocol import ResourceRequest
from hyperqueue.output import Output, StdioDef, default_stderr, default_stdout
from hyperqueue.task.function import PythonEnv
from hyperqueue.validation import ValidationException
from hyperqueue.visualization import visualize_job

cloudpickle = pytest.importorskip("cloudpickle")


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    import os
    import sys

    # Tells tasks where to find the package.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    with LocalCluster(worker_config=WorkerConfig(cores=2)) as cluster:
        yield cluster


@pytest.fixture
def client(local):
    import sys

    made = local.client(python_env=PythonEnv(sys.executable))
    yield made
    made.connection.close()


def test_programs_with_dependencies(client, tmp_path, caplog):
    job = Job(name="chain", default_env={"A": "1", "B": "2"})
    first = job.program(["bash", "-c", "echo $A$B > first"], env={"B": "3"})
    second = job.program(["bash", "-c", "cat first; cat"], stdin="from above\n", deps=[first, first], name="second")
    assert (first.label, second.label) == ("0", "second")
    assert job.task_by_id(1) is second and job.task_by_id(2) is None
    with caplog.at_level(logging.INFO):
        submitted = client.submit(job)
    assert f"Submitted job {submitted.id} with 2 tasks" in caplog.text
    assert client.wait_for_jobs([submitted]) is True
    assert (tmp_path / "1.stdout").read_text() == "13\nfrom above\n"
    assert client.get_failed_tasks(submitted) == {}
    client.forget(submitted)
    with pytest.raises(Exception, match=f"Cannot forget job {submitted.id}"):
        client.forget(submitted.id)
    with pytest.raises(ValueError):
        client.forget("1")


def test_an_exception_of_a_callback_is_the_caller_s(client):
    job = Job()
    job.program(["sleep", "1"])
    submitted = client.submit(job)

    def told(jobs):
        raise LookupError("of the script")

    with pytest.raises(LookupError, match="of the script"):
        client.connection.wait_for_jobs([submitted.id], told)
    assert client.wait_for_jobs([submitted]) is True


def test_functions_of_a_script_are_loaded_without_the_modules_that_made_the_pickle(client, tmp_path):
    def modules(path):
        import sys

        with open(path, "w") as file:
            file.write(" ".join(sorted(sys.modules)))

    class Named:
        def __init__(self, path):
            self.path = path

        def write(self):
            modules(self.path)

    job = Job()
    job.function(modules, args=("function",))
    # Sending a class requires cloudpickle.
    job.function(Named("class").write)
    assert client.wait_for_jobs([client.submit(job)])
    alone, whole = ((tmp_path / name).read_text().split() for name in ("function", "class"))
    assert not {"cloudpickle", "pickle"} & set(alone) and "cloudpickle" in whole


def test_a_function_is_loaded_as_cloudpickle_does():
    import functools
    import os.path

    from hyperqueue.task.function._load import load

    depth = 3

    def outer(first, second=(1,), *rest, third: int = 4, **more):
        """What it does."""

        def inner(left):
            return 0 if left == 0 else depth + inner(left - 1)

        return first, second, rest, third, more, inner(2), os.path.join("a", "b")

    outer.mark = "kept"

    def early():
        return late

    cases = [outer, functools.partial(outer, 5, third=6), lambda x: x * depth, early, len, os.path.join]
    content = cloudpickle.dumps(cases)
    ours, theirs = load(content), cloudpickle.loads(content)
    for loaded in (ours, theirs):
        function, partial, doubled, unbound, *by_name = loaded
        assert function(1, 2, 3, third=5, x=6) == (1, 2, (3,), 5, {"x": 6}, 6, "a/b")
        assert partial() == (5, (1,), (), 6, {}, 6, "a/b") and doubled(2) == 6
        with pytest.raises(NameError):
            unbound()
        assert by_name == [len, os.path.join] and function.mark == "kept"
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__annotations__"):
        assert getattr(ours[0], name) == getattr(theirs[0], name) == getattr(outer, name)
    late = 1
    assert early() == late


def test_what_another_cloudpickle_hands_over_is_loaded_by_that(monkeypatch):
    from hyperqueue.task.function import _load

    def of_another_release(code, names, name):
        raise AssertionError("it takes other arguments")

    monkeypatch.setitem(_load._KNOWN, "_make_function", of_another_release)
    double = 2
    assert _load.load(cloudpickle.dumps(lambda x: x * double))(4) == 8
    with pytest.raises(EOFError):
        _load.load(b"")


def test_functions_and_their_failures(client, tmp_path):
    def write(path, text="default"):
        with open(path, "w") as file:
            file.write(text)

    def fail():
        raise ValueError("from far away")

    job = Job(max_fails=None)
    job.function(write, args=("a",), kwargs={"text": "x"})
    failing = job.function(fail)
    assert failing.label == "fail/1"
    submitted = client.submit(job)
    assert client.wait_for_jobs([submitted], raise_on_error=False) is False
    assert (tmp_path / "a").read_text() == "x"
    failed = client.get_failed_tasks(submitted)
    assert list(failed) == [1]
    assert isinstance(failed[1], FailedTaskContext) and "from far away" in failed[1].error
    with pytest.raises(FailedJobsException) as caught:
        client.wait_for_jobs([submitted])
    text = str(caught.value)
    assert f"The following tasks of job `{submitted.id}` have failed:" in text
    assert "Task fail/1 (id=1):" in text and "from far away" in text
    assert f"Stderr: {tmp_path}/1.stderr" in text and "Working directory: " in text
    assert caught.value.failed_tasks[submitted.id] == failed


def test_where_output_goes(client, tmp_path):
    assert default_stdout == default_stdout() and default_stderr().endswith(".stderr")
    job = Job(default_workdir="work")
    job.program(["bash", "-c", "echo here"])
    job.program(["bash", "-c", "echo named"], stdout="named", stderr=None)
    job.program(["bash", "-c", "echo gone"], stdout=StdioDef.remove_if_finished("gone"))
    job.program(["bash", "-c", "echo path"], stdout=StdioDef.from_path(tmp_path / "path"), cwd=tmp_path)
    assert client.wait_for_jobs([client.submit(job)])
    assert (tmp_path / "work/0.stdout").read_text() == "here\n"
    assert (tmp_path / "work/named").read_text() == "named\n"
    assert not (tmp_path / "work/gone").exists()
    assert (tmp_path / "path").read_text() == "path\n"
    with pytest.raises(ValidationException):
        job.program(["a"], stdout=3)


def test_resources_and_variants(client):
    minute = datetime.timedelta(minutes=1)
    request = ResourceRequest(cpus="1 compact!", resources={"mem": 1}, min_time=minute)
    assert request.resources["cpus"] == "1 compact!"
    job = Job()
    job.program(["bash", "-c", "test $HQ_CPUS"], resources=[ResourceRequest(cpus=64), ResourceRequest(cpus=2)])
    job.program("true", resources=ResourceRequest(cpus=0.5))
    assert client.wait_for_jobs([client.submit(job)])


def test_mistakes_are_named(client):
    job = Job()
    with pytest.raises(Exception, match="Submitted job must have at least a single task"):
        client.submit(job)
    with pytest.raises(ValidationException, match="Each program argument must either be a string"):
        job.program(["a", 1])
    with pytest.raises(Exception, match="stdin has to be str, bytes, or None"):
        job.program("a", stdin=3)
    with pytest.raises(ValidationException):
        Output("a", filepath="b", extension="c")
    with pytest.raises(ValidationException):
        job.program(["a", Output("x"), Output("x")])
    task = job.program(["a", Output("x", extension="txt")])
    assert task["x"].name == "x"
    with pytest.raises(Exception, match="Output `y` not found in"):
        task["y"]


def test_a_prologue_runs_ahead(client):
    import os
    import sys

    def check():
        assert os.environ["FROM_PROLOGUE"] == "yes"

    other = Client(client.connection._bridge_dir, PythonEnv(sys.executable, prologue="export FROM_PROLOGUE=yes"))
    job = Job()
    job.function(check)
    assert other.wait_for_jobs([other.submit(job)])
    other.connection.close()


def test_the_current_instance_names_its_server(local):
    client = Client(local.server_dir / "hq-current")
    job = Job()
    job.program("true")
    assert client.wait_for_jobs([client.submit(job)])
    client.connection.close()


def test_a_cluster_that_was_stopped():
    cluster = LocalCluster()
    assert (cluster.cluster.server_dir / "hq-current").exists() and cluster.server_dir == cluster.cluster.server_dir
    cluster.stop()
    with pytest.raises(Exception, match="Attempting to add worker to a stopped server"):
        cluster.start_worker()
    with pytest.raises(Exception, match="Attempting to stop an already stopped server"):
        cluster.stop()


def test_pictures(tmp_path):
    job = Job()
    first = job.program("a", name="first")
    second = job.program("b", name='a "second": one', deps=[first])
    job.program("c", name="first", deps=[second])
    try:
        import pydot  # noqa: F401
    except ImportError:
        with pytest.raises(BaseException, match="You have to install the `pydot` package"):
            visualize_job(job, tmp_path / "a.dot")
        return
    visualize_job(job, tmp_path / "a.dot")
    text = (tmp_path / "a.dot").read_text()
    lines = [line.strip(" ;") for line in text.split("\n")[1:-2]]
    # Each node stands before its edges, in one walk.
    assert lines == ["first", quoted := '"a \\"second\\": one"', f"first -> {quoted}", '"first (2)"', f'{quoted} -> "first (2)"']
    assert 'first -> "a \\"second\\": one"' in text and '"a \\"second\\": one" -> "first (2)"' in text


def test_names_that_scripts_import():
    from hyperqueue.client import SubmittedJob
    from hyperqueue.ffi import JobId, TaskId, cluster
    from hyperqueue.job import SubmittedJob as SameJob
    from hyperqueue.task.function import cloud_wrap

    assert SameJob is SubmittedJob and JobId is TaskId is int and cluster.Cluster
    assert cloud_wrap(len) is len
    job = Job()
    assert job.task_by_id(id=0) is None and job.function(cloud_wrap(len), args=("a",)) is job.task_by_id(id=0)


def test_the_version_is_that_of_the_program():
    import subprocess

    from hq._bridge import find_hq

    shown = subprocess.run([find_hq(), "--version"], capture_output=True, text=True).stdout
    assert get_version() in shown
