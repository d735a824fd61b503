"""Programs in addition to functions, and queries of the server."""

import io
import os
import pathlib
import sys

import pytest
from conftest import wait_for

import hq
from hq._program import read_output


@pytest.fixture
def executor(cluster):
    with hq.Executor(server_dir=cluster.dir, name="programs") as made:
        yield made


def test_programs_and_functions_need_each_other(executor, tmp_path):
    numbers = executor.program(["seq", 3], stdout="numbers")
    backwards = executor.program(["tac", numbers], stdout="backwards")
    assert executor.submit(lambda done: open(done.stdout).read(), backwards).result(60) == "3\n2\n1\n"
    assert backwards.result(60).read() == "3\n2\n1\n"
    assert backwards.result().stdout == hq.File(tmp_path / "backwards")
    lines = executor.submit(lambda path: len(path.read_text().split()), hq.File("numbers"))
    assert executor.program(["echo", "lines:", lines, 1.5]).result(60).read() == "lines: 3 1.5\n"
    late = executor.program(["cat"], stdin="from above", deps=[lines])
    assert late.result(60).read() == "from above"
    assert executor.program(["sh", "-c", "echo $A$B; pwd"], env={"A": "1"}, cwd="/").result(60).read() == "1\n/\n"


def test_what_is_no_text_fails_one_program_and_not_all(executor):
    name = b"caf\xe9.txt".decode(errors="surrogateescape")
    other = executor.program(["sh", "-c", "sleep 0.5; echo done"])
    with pytest.raises(ValueError, match=r"UTF-8, found .*caf"):
        executor.program(["cat", name]).result(60)
    with pytest.raises(ValueError, match="UTF-8"):
        executor.options(env={"NAME": name})
    assert other.result(60).read() == "done\n"
    assert executor.program(["echo", "caf\xe9 \U0001f600"]).result(60).read() == "caf\xe9 \U0001f600\n"


def test_a_program_that_fails_says_why(executor):
    failing = executor.program(["sh", "-c", "echo it is broken >&2; exit 3"])
    with pytest.raises(hq.ProgramFailed, match="(?s)exit code 3.*it is broken"):
        failing.result(60)
    dependent = executor.program(["cat", failing])
    with pytest.raises(hq.ProgramFailed):
        dependent.result(60)
    with pytest.raises(hq.ProgramFailed, match="no-such-program"):
        executor.program(["no-such-program"]).result(60)
    with pytest.raises(hq.HqError, match="request"):
        executor.program(["true"], resources={"cpus": "many"}).result(60)
    with pytest.raises(TypeError, match="list of words"):
        executor.program("echo a")
    with pytest.raises(TypeError, match="dict"):
        executor.program(["echo", {}]).result(60)
    with pytest.raises(hq.TimeLimitReached):
        executor.program(["sleep", 600], time_limit=0.3).result(60)


def test_a_program_that_runs_is_cancelled(executor, tmp_path):
    begun = tmp_path / "begun"
    future = executor.program(["sh", "-c", f"echo $$ > {begun}; exec sleep 600"])
    pid = wait_for(lambda: begun.exists() and begun.read_text().strip(), "it runs")
    assert future.cancel()
    wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "it ends")


def test_jobs_are_records(executor, cluster):
    executor.submit(pow, 2, 3).result(60)
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 1, 0).result(60)
    (job,) = hq.jobs(cluster.dir)
    assert (job["name"], job["task_count"]) == ("programs", 2)
    found = hq.tasks(executor.job, executor)
    assert [task["state"] for task in found] == ["finished", "failed"]
    assert found[1]["message"] == "ZeroDivisionError: integer division or modulo by zero"
    assert "<td>failed</td>" in found._repr_html_() and len(found) == 2
    try:
        frame = found.frame()
        assert list(frame["state"]) == ["finished", "failed"]
    except hq.HqError as error:
        assert "pandas" in str(error)
    with pytest.raises(hq.HqError, match="no such table"):
        hq.query("SELECT * FROM no_such_view", executor)


def test_a_job_raises_what_failed_and_shows_how_it_is(monkeypatch, executor):
    with hq.Job(executor=executor) as job:
        job.program(["true"])
        assert job.function(pow, 2, 3).result(60) == 8
    assert job.wait() == [job.futures[0].result(), 8]
    assert "<td>finished</td><td>2</td>" in job._repr_html_() and "2 of 2" in repr(job)
    assert "has finished" in job.futures[1]._repr_html_()
    with pytest.raises(ZeroDivisionError):
        with hq.Job(executor=executor) as failing:
            failing.function(divmod, 1, 0)
    assert "<td>failed</td><td>1</td>" in failing._repr_html_()


def test_programs_run_without_anything_else(cluster, monkeypatch):
    monkeypatch.setenv("HQ_SERVER_DIR", str(cluster.dir))
    assert hq.run(["echo", "one"]).read() == "one\n"
    assert hq.submit(["echo", "two"]).result(60).read() == "two\n"
    hq._jobs._executor().shutdown()
    assert [job["name"] for job in hq.jobs()] == ["programs"]


def test_a_bar_shows_how_far_calls_are(executor, monkeypatch):
    futures = [executor.submit(pow, 2, number) for number in range(10)]
    shown = io.StringIO()
    assert sum(future.result() for future in hq.progress(futures, "powers", shown)) == 1023
    assert "10/10" in shown.getvalue() and "powers" in shown.getvalue()
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    plain = io.StringIO()
    assert len(list(hq.progress(futures, file=plain))) == 10
    assert "] 10/10" in plain.getvalue()


def test_joblib_uses_an_executor(executor):
    joblib = pytest.importorskip("joblib")
    import hq.joblib

    with hq.joblib.backend(executor):
        found = joblib.Parallel()(joblib.delayed(pow)(2, number) for number in range(20))
    assert found == [2**number for number in range(20)]


def test_dask_has_an_executor_as_its_scheduler(executor):
    dask = pytest.importorskip("dask")
    total = dask.delayed(sum)([dask.delayed(pow)(2, number) for number in range(10)])
    assert total.compute(scheduler=executor) == 1023


def test_emcee_has_an_executor_as_its_pool(executor):
    emcee = pytest.importorskip("emcee")
    numpy = pytest.importorskip("numpy")

    def probability(place):
        return -0.5 * float((place**2).sum())

    sampler = emcee.EnsembleSampler(8, 2, probability, pool=executor)
    sampler.run_mcmc(numpy.random.default_rng(1).normal(size=(8, 2)), 5)
    assert sampler.get_chain().shape == (5, 8, 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for a second user")
def test_outputs_are_not_read_through_links_of_others(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/out").write_text("secret")
    for link, target, path in (("link", "own/out", "link"), ("dir", "own", "dir/out")):
        (tmp_path / link).symlink_to(target)
        assert read_output(hq.File(tmp_path / path)) == "secret"
        os.lchown(tmp_path / link, 65533, 65533)
        with pytest.raises(PermissionError, match="a link of another user"):
            read_output(hq.File(tmp_path / path))
    os.chown(tmp_path / "own/out", 65533, 65533)
    with pytest.raises(PermissionError, match="another user may have put"):
        read_output(hq.File(tmp_path / "own/out"))
