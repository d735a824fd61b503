"""Calls that no machine can run are refused, or a warning says so."""

import warnings

import pytest
from conftest import wait_for

import hq


@pytest.mark.parametrize(
    "resources, words",
    [
        ({"cpus": 64}, "a call with 64 cpus can never run: this machine has 2 cpus"),
        ({"gpus/nvidia": 1}, "a call with 1 gpus/nvidia can never run: this machine has 0 gpus/nvidia (2 cpus, "),
        ({"mem": "1000T"}, "a call with 1000T mem can never run: this machine has "),
        ({"nodes": 2}, "a call with 2 nodes can never run: this machine has 1 nodes"),
    ],
)
def test_an_own_server_refuses_what_its_machine_can_never_run(resources, words):
    with pytest.raises(hq.HqError) as caught:
        hq.Executor(2, local=True, resources=resources)
    assert words in str(caught.value)
    with hq.Executor(2, local=True) as executor:
        with pytest.raises(hq.HqError):
            executor.options(resources=resources).submit(abs, -1)
        with pytest.raises(hq.HqError):
            executor.program(["true"], resources=resources)
        fitting = executor.options(resources={"cpus": "all", "mem": "10M"})
        assert fitting.submit(abs, -1).result(60) == 1


def test_a_server_warns_of_calls_that_no_worker_can_run(cluster):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with hq.Executor(server_dir=cluster.dir) as executor:
            future = executor.options(resources={"gpus/nvidia": 1}).submit(abs, -1)
            wait_for(lambda: caught, "a warning", 60)
            assert executor.submit(abs, -2).result(60) == 2
            future.cancel()
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("call 0 of job 1 waits. There is no worker where the task can run.\n") and "| gpus/nvidia | 0 " in text
