"""Toil with the batch system of `integrations/toil`."""

import json
import sys
from pathlib import Path

import pytest
from conftest import ROOT, processes_with, restart_when, wait_for

pytest.importorskip("toil")

WORKFLOW = """
import os, subprocess, time
from toil.common import Toil
from toil.job import Job

HERE = os.getcwd()

def one(job, x):
    with open(f"{HERE}/runs", "a") as runs:
        runs.write(f"{x}\\n")
    if x == 9:
        subprocess.run(["sleep", "1000"])
    time.sleep(0.5)
    if x == 7 and not os.path.exists(f"{HERE}/lucky"):
        raise ValueError("an unlucky number")
    return x * x, os.environ.get("HQ_CPUS", "").count(",") + 1 if "HQ_JOB_ID" in os.environ else 0

def total(job, results):
    return sum(x for x, _ in results), sorted({cpus for _, cpus in results})

def root(job, count):
    ones = [job.addChildJobFn(one, x, cores=2 if x == 3 else 1, memory="100M", disk="10M",
                              walltime=3 if x == 9 else None) for x in range(count) if x != 9 or os.path.exists(f"{HERE}/nine")]
    return job.addFollowOnJobFn(total, [x.rv() for x in ones], memory="100M", disk="10M").rv()

if __name__ == "__main__":
    parser = Job.Runner.getDefaultArgumentParser()
    options = parser.parse_args()
    with Toil(options) as toil:
        if options.restart:
            print("RESULT", toil.restart())
        else:
            print("RESULT", toil.start(Job.wrapJobFn(root, 20, memory="100M", disk="10M")))
"""


@pytest.fixture
def toil(engine):
    engine.env["PYTHONPATH"] = str(ROOT / "integrations/toil")
    # Its workers are a program next to its interpreter.
    engine.env["PATH"] = f"{Path(sys.executable).parent}:{engine.env['PATH']}"
    Path("workflow.py").write_text(WORKFLOW)

    def command(*args):
        return [
            sys.executable, "workflow.py", "store", "--batchSystem", "hq", "--maxCores", "8", "--statePollingTimeout", "120",
            "--retryCount", "0", "--maxLocalJobs", "0", *args,
        ]  # fmt: skip

    return command


def runs():
    path = Path("runs")
    return sorted(int(x) for x in path.read_text().split()) if path.exists() else []


def test_failures_a_restart_and_a_killed_server(engine, toil):
    restarted = restart_when(engine, lambda: len(runs()) > 4)
    ended = engine.run(toil())
    restarted.join()
    assert ended.returncode == 1 and "an unlucky number" in ended.stdout, ended.stdout
    assert runs() == [x for x in range(20) if x != 9]
    jobs = engine.ask_json("job", "info", "1-20")
    asked = [job["submits"][0]["array"] for job in jobs if job]
    entries = [{e["resource"]: e["request"]["Compact"] for e in one["resources"][0]["resources"]} for one in asked]
    assert {"cpus": 20_000, "mem": 96 * 10_000} in entries and {"cpus": 10_000, "mem": 96 * 10_000} in entries, entries
    # A restart does the remaining work; the rest is not repeated.
    Path("lucky").touch()
    ended = engine.run(toil("--restart"))
    assert ended.returncode == 0, ended.stdout
    assert f"RESULT ({sum(x * x for x in range(20) if x != 9)}, [1, 2])" in ended.stdout, ended.stdout
    assert runs() == sorted([x for x in range(20) if x != 9] + [7])


def test_a_submit_whose_answer_is_lost_is_not_repeated(engine, toil):
    """The program ends in the same way as when the server is killed after a submit."""
    (engine.bin / "hq").rename(engine.bin / "real")
    (engine.bin / "hq").write_text(
        "#!/bin/sh\n"
        f'[ "$1" != submit ] || [ -e {Path.cwd()}/lost ] || {{ "{engine.bin}/real" "$@"; touch {Path.cwd()}/lost; '
        'echo "The server closed the connection" >&2; exit 1; } >/dev/null\n'
        f'exec "{engine.bin}/real" "$@"\n'
    )
    (engine.bin / "hq").chmod(0o755)
    Path("lucky").touch()
    ended = engine.run(toil())
    assert ended.returncode == 0 and Path("lost").exists(), ended.stdout
    jobs = [job for job in engine.ask_json("job", "list", "--all") if "toil" in job["name"]]
    assert len({job["name"] for job in jobs}) == len(jobs) and runs() == [x for x in range(20) if x != 9]
    submits = [job["name"].split()[1] for job in jobs]
    assert len(set(submits)) == len(submits), submits


def test_a_time_limit_and_an_interrupt(engine, toil):
    Path("nine").touch()
    Path("lucky").touch()
    ended = engine.run(toil())
    assert ended.returncode == 1 and "TIMELIMIT" in ended.stdout, ended.stdout
    wait_for(lambda: not processes_with(engine, "sleep\x001000"), "nothing is left of the job that ran too long")


def test_a_question_is_about_no_more_jobs_than_are_answered(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "integrations/toil")
    system = pytest.importorskip("toil_batch_system_hq._batch_system")

    def answer(*args):
        asked = args[-1].partition(" IN (")[2].rstrip(")").split(",")
        # Like `hq query`, return only a limited number of rows.
        return json.dumps([{"job": int(job)} for job in asked[:10_000]])

    monkeypatch.setattr(system, "_hq", answer)
    jobs = [str(number) for number in range(1, 25_001)]
    assert list(system._tasks(jobs)) == jobs
