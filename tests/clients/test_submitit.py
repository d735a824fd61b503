"""submitit with the executor of `integrations/submitit`, and Hydra's launcher on top of it."""

import sys
import textwrap
from pathlib import Path

import pytest
from conftest import ROOT, Cluster, processes_with, restart_when, wait_for

pytest.importorskip("submitit")
PLUGIN = ROOT / "integrations/submitit"

# The entry points that the wheel of a package would have. The package is not installed.
ENTRY_POINTS = """[submitit]
executor = submitit_hq:HqExecutor
job_environment = submitit_hq:HqJobEnvironment
"""


@pytest.fixture
def python(engine):
    metadata = Path("packages/submitit_hq-0.1.0.dist-info")
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: submitit-hq\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    engine.env["PYTHONPATH"] = f"{PLUGIN}:{Path('packages').resolve()}"
    engine.env["A_VARIABLE_OF_MINE"] = "its value"

    def run(text, *args, code=0):
        Path("script.py").write_text(textwrap.dedent(text))
        ended = engine.run([sys.executable, "script.py", *args])
        assert ended.returncode == code, ended.stdout
        return ended.stdout

    return run


def begun():
    return sorted(int(path.name.split("-")[1]) for path in Path(".").glob("begun-*"))


def test_failures_a_time_limit_a_cancel_and_a_killed_server(engine, python):
    restarted = restart_when(engine, Path("canceled").exists)
    said = python("""
        import glob, os, subprocess, time
        import submitit

        def work(x):
            open(f"begun-{x}-{os.getpid()}", "w").close()
            if x in (9, 10):
                subprocess.run(["sleep", "1000"])
            time.sleep(0.5)
            if x == 7:
                raise ValueError("an unlucky number")
            print("said by", x)
            return x * x, os.environ["A_VARIABLE_OF_MINE"], os.environ["HQ_CPUS"].count(",") + 1

        executor = submitit.AutoExecutor("logs of mine/%j", cluster="hq")
        executor.update_parameters(name="squares", timeout_min=10, cpus_per_task=2, mem_gb=0.25, hq_options={"priority": 3},
                                   hq_setup=["export A_LINE=1"])
        jobs = executor.map_array(work, range(20))
        limited = submitit.AutoExecutor("limited", cluster="hq")
        limited.update_parameters(timeout_min=5, hq_signal_delay_s=294)
        limited = limited.submit(work, 9)
        while not (glob.glob("begun-9-*") and glob.glob("begun-10-*")):
            time.sleep(0.1)
        for job in (jobs[9], jobs[10]):
            job.cancel()
        open("canceled", "w").close()
        good = [job.result() for n, job in enumerate(jobs) if n not in (7, 9, 10)]
        print("sum:", sum(x for x, _, _ in good), set(good_of[1:] for good_of in good))
        print("failed:", "an unlucky number" in str(jobs[7].exception()), "an unlucky number" in jobs[7].stderr())
        print("log:", "said by 3" in jobs[3].stdout())
        for job in (jobs[9], jobs[10]):
            job.wait()
            print("state:", job.state)
        print("limited:", "timed-out and not checkpointable" in str(limited.exception()))
    """)
    restarted.join()
    assert f"sum: {sum(x * x for x in range(20) if x not in (7, 9, 10))} {{('its value', 2)}}" in said, said
    assert "failed: True True" in said and "log: True" in said, said
    assert said.count("state: CANCELLED") == 2 and "limited: True" in said, said
    # Each once, in spite of the server that was killed. 9 was submitted twice, and told to end maybe before it began.
    assert [x for x in begun() if x != 9] == [x for x in range(20) if x != 9]
    job = engine.ask_json("job", "info", "4")[0]
    asked = job["submits"][0]["array"]
    entries = {entry["resource"]: entry["request"]["Compact"] for entry in asked["resources"][0]["resources"]}
    assert job["info"]["name"] == "squares" and asked["priority"] == 3 and asked["time_limit"] == 600
    assert entries == {"cpus": 20_000, "mem": 256 * 10_000}
    wait_for(lambda: not processes_with(engine, "sleep\x001000"), "nothing is left")
    assert not list(Path("logs of mine").glob("*.pkl"))


def test_checkpoints_tasks_and_refusals(engine, python):
    said = python("""
        import time
        import submitit

        class Counter:
            # Ends in its second attempt, which continues where the first was stopped.

            def __init__(self, attempt=1):
                self.attempt = attempt

            def __call__(self):
                while self.attempt == 1:
                    time.sleep(0.1)
                return self.attempt

            def checkpoint(self):
                return submitit.helpers.DelayedSubmission(Counter(self.attempt + 1))

        def rank():
            environment = submitit.JobEnvironment()
            print("rank", environment.global_rank)
            return environment.global_rank, environment.num_tasks

        executor = submitit.AutoExecutor("logs", cluster="hq")
        executor.update_parameters(timeout_min=5, hq_signal_delay_s=297)
        job = executor.submit(Counter())
        executor.update_parameters(tasks_per_node=3, timeout_min=5, hq_signal_delay_s=90)
        ranks = executor.submit(rank)
        print("ranks:", ranks.results(), [ranks.task(n).stdout().count(f"rank {n}") for n in range(3)])
        print("attempt:", job.result())
        for parameters in ({"nodes": 2}, {"hq_options": {"no_such_option": 1}}):
            try:
                executor.update_parameters(**parameters)
                executor.submit(rank)
            except Exception as error:
                print("refused:", type(error).__name__, error)
    """)
    assert "ranks: [(0, 3), (1, 3), (2, 3)] [1, 1, 1]" in said, said
    assert "attempt: 2" in said, said
    assert "refused: ValueError expected nodes=1, found nodes=2" in said, said
    assert "refused: FailedSubmissionError" in said and "--no-such-option" in said, said


def test_jobs_of_two_servers_and_very_many_jobs(engine, python, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    second = Cluster(other)
    try:
        second.start_server()
        second.start_worker(1)
        said = python(f"""
            import os, pickle, subprocess, sys, time
            import submitit
            from submitit_hq import _executor

            def wait(x):
                while not os.path.exists("go"):
                    time.sleep(0.1)
                return x

            first = submitit.AutoExecutor("first", cluster="hq")
            second = submitit.AutoExecutor("second", cluster="hq", hq_server_dir={str(second.dir)!r})
            ours = first.submit(wait, 1)
            jobs = second.map_array(wait, range(3))
            print("states:", ours.state in ("PENDING", "RUNNING"), {{job.state in ("PENDING", "RUNNING") for job in jobs}})
            # It has the same id as ours.
            again = pickle.loads(pickle.dumps(jobs[0]))
            again.cancel()
            again.wait()
            print("canceled:", again.state, ours.done())
            open("go", "w").close()
            print("results:", ours.result(), [job.result() for job in jobs[1:]])

            def answer(command, **_):
                # As much as `hq query` gives.
                asked = command[-1].partition(" IN (")[2].rstrip(")").split(",")[:10_000]
                return str([dict(job=int(job), state="running", message="") for job in asked]).replace("'", '"').encode()

            subprocess.check_output = answer
            watcher = _executor.HqInfoWatcher(None)
            for number in range(1, 25_001):
                watcher.register_job(str(number))
            watcher.update()
            print("many:", {{watcher.get_state(str(number), mode="cache") for number in range(1, 25_001)}})
        """)
    finally:
        second.end()
    assert "states: True {True}" in said and "canceled: CANCELLED False" in said, said
    assert "results: 1 [1, 2]" in said and "many: {'RUNNING'}" in said, said


def test_hydra_sweeps(engine, python):
    pytest.importorskip("hydra")
    Path("conf").mkdir()
    Path("conf/config.yaml").write_text(
        "defaults:\n  - override hydra/launcher: submitit_hq\n"
        "hydra:\n  launcher:\n    timeout_min: 5\n    cpus_per_task: 2\n    options: {priority: 4}\n"
        "x: 0\nlr: 0.1\n"
    )
    said = python(
        """
        import hydra

        @hydra.main(version_base=None, config_path="conf", config_name="config")
        def main(config):
            open("here", "w").write(f"{config.x * config.lr}")
            if config.x == 3:
                raise ValueError("an unlucky number")
            return config.x

        main()
        """,
        "-m", "x=1,2,3", "lr=0.5,2", "hydra.job.chdir=true", "hydra.sweep.dir=sweep", code=1,
    )  # fmt: skip
    assert "an unlucky number" in said, said
    assert {path.read_text() for path in Path("sweep").glob("*/here")} == {"0.5", "2", "1.0", "4", "1.5", "6"}, said
    jobs = engine.ask_json("job", "info", "1-6")
    assert [job["submits"][0]["array"]["priority"] for job in jobs] == [4] * 6
