"""Ctrl-C in a block of an executor."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import wait_for

import hq

SCRIPT = """
import os, signal, sys, time
import hq

# A shell may have started the tests with this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def hold(number):
    open(f"begun-{number}", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.02)

options = {"server_dir": sys.argv[2]} if sys.argv[2:] else {"local": True}
with hq.Executor(2, **options) as executor:
    futures = [executor.submit(hold, number) for number in range(20)]
    open("submitted", "w").close()
    if sys.argv[1] == "inside":
        # As if it was pressed while the script waits for a result.
        futures[0].result()
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    made = []

    def start(*args):
        command = [sys.executable, "script.py", *map(str, args)]
        made.append(subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True))
        wait_for(lambda: len(list(tmp_path.glob("begun-*"))) == 2 and (tmp_path / "submitted").exists(), "two calls run")
        return made[0]

    yield start
    for process in made:
        process.kill()
        process.wait()


def job(cluster):
    (found,) = hq.jobs(cluster.dir)
    return found


def interrupt(process):
    process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("where", ["inside", "at the end"])
def test_an_interrupt_cancels_calls_that_have_not_begun(cluster, script, tmp_path, where):
    process = script(where, cluster.dir)
    interrupt(process)
    wait_for(lambda: job(cluster)["canceled"] == 18, "the others were canceled")
    assert process.poll() is None, "it waits for the running calls"
    (tmp_path / "go").touch()
    _, text = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and text.endswith("KeyboardInterrupt\n") and "goes on" not in text
    wait_for(lambda: job(cluster)["state"] == "canceled", "the job is closed")


def test_a_second_interrupt_says_what_goes_on(cluster, script, tmp_path):
    process = script("inside", cluster.dir)
    interrupt(process)
    wait_for(lambda: job(cluster)["canceled"] == 18, "the others were canceled")
    interrupt(process)
    _, text = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "hq: job 1 goes on with 2 running calls." in text
    assert f"`hq --server-dir {cluster.dir} job cancel 1`" in text and "hq.Executor.attach(1)" in text
    assert job(cluster)["running"] == 2
    (tmp_path / "go").touch()
    wait_for(lambda: job(cluster)["state"] == "canceled", "the job is closed, and ends with its calls")


def test_a_second_interrupt_ends_the_own_server(script):
    process = script("inside")
    # The number of interrupts depends on when they arrive.
    wait_for(lambda: process.poll() is not None or interrupt(process), "the script ends")
    _, text = process.communicate(timeout=60)
    assert process.returncode != 0 and "KeyboardInterrupt" in text and "goes on" not in text
