"""PSI/J with the executor of `integrations/psij`."""

import sys
from pathlib import Path

import pytest
from conftest import ROOT, processes_with, restart_when

pytest.importorskip("psij")


SCRIPT = """
import datetime, pathlib, psij, sys, time

here = pathlib.Path.cwd()
config = psij.executors.batch.batch_scheduler_executor.BatchSchedulerExecutorConfig(
    work_directory=here / "psij", queue_polling_interval=1, initial_queue_polling_delay=1, queue_polling_error_threshold=20)
executor = psij.JobExecutor.get_instance("hq", config=config)
jobs = []
for x in range(20):
    spec = psij.JobSpec(
        executable="/bin/sh",
        arguments=["-c", f"echo {x} >> runs; echo $A_NAME; wc -l < $PSIJ_NODEFILE; "
                   + ("exit 3" if x == 7 else "sleep 1000" if x in (9, 10) else "sleep 0.5")],
        directory=here, name=f"job {x}", environment={"A_NAME": "a 'value'"}, stdout_path=here / f"{x}.out",
        resources=psij.ResourceSpecV1(process_count=2 if x == 3 else 1, memory=100 << 20),
        attributes=psij.JobAttributes(duration=datetime.timedelta(seconds=2 if x == 9 else 600), custom_attributes={"hq.priority": "3"}),
        launcher="single")
    jobs.append(psij.Job(spec))
    executor.submit(jobs[-1])
(here / "submitted").touch()
runs = here / "runs"
while not runs.exists() or "10" not in runs.read_text().split():
    time.sleep(0.05)
while True:
    try:
        jobs[10].cancel()
        break
    except psij.SubmitException:
        # There is currently no server.
        time.sleep(0.5)
for job in jobs:
    job.wait()
print("STATES", {n: job.status.state.name for n, job in enumerate(jobs) if job.status.state != psij.JobState.COMPLETED})
print("CODE", jobs[7].status.exit_code)
"""


def test_failures_a_time_limit_a_cancel_and_a_killed_server(engine):
    engine.env["PYTHONPATH"] = str(ROOT / "integrations/psij")
    Path("script.py").write_text(SCRIPT)
    runs = Path("runs")
    # A submit without a server fails.
    restarted = restart_when(engine, Path("submitted").exists)
    ended = engine.run([sys.executable, "script.py"])
    restarted.join()
    assert ended.returncode == 0, ended.stdout
    assert "STATES {7: 'FAILED', 9: 'FAILED', 10: 'CANCELED'}" in ended.stdout and "CODE 3" in ended.stdout, ended.stdout
    assert sorted(int(x) for x in runs.read_text().split()) == list(range(20))
    assert Path("1.out").read_text() == "a 'value'\n1\n" and Path("3.out").read_text() == "a 'value'\n2\n"
    asked = engine.ask_json("job", "info", "4")[0]["submits"][0]["array"]
    entries = {entry["resource"]: entry["request"]["Compact"] for entry in asked["resources"][0]["resources"]}
    assert entries == {"cpus": 20_000, "mem": 1_000_000} and asked["priority"] == 3
    assert not processes_with(engine, "sleep\x001000")
