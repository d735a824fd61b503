"""Snakemake with the executor plugin of `integrations/snakemake`, and with `cluster-generic`. Run with an interpreter that has
Snakemake and pytest."""

import os
import signal
import sys
import time
import uuid
from pathlib import Path

import pytest
from conftest import ROOT, Engine, processes_with, restart_when, wait_for

pytest.importorskip("snakemake")
PLUGIN = ROOT / "integrations/snakemake"
sys.path.insert(0, str(PLUGIN))

import snakemake.common.tests  # noqa: E402

SNAKEMAKE = [sys.executable, "-m", "snakemake"]
HQ_EXECUTOR = ["--executor", "hq", "--jobs", "100"]
GENERIC = [
    "--executor", "cluster-generic", "--jobs", "100",
    "--cluster-generic-submit-cmd", "hq --output-mode quiet submit --cpus {threads} --name {rule}",
    "--cluster-generic-cancel-cmd", "hq-cancel",
]  # fmt: skip


@pytest.fixture
def engine(engine):
    engine.env["PYTHONPATH"] = f"{ROOT / 'python'}:{PLUGIN}"
    cancel = engine.bin / "hq-cancel"
    cancel.write_text('#!/bin/sh\nfor job; do hq job cancel "$job"; done\n')
    cancel.chmod(0o755)
    return engine


def write(text):
    Path("Snakefile").write_text(text)


def snakemake_command(*args, executor=HQ_EXECUTOR):
    return [*SNAKEMAKE, *executor, *args]


class Official:
    """Tests that every executor plugin has to pass."""

    __test__ = False
    _cold = False

    @pytest.fixture(autouse=True)
    def server(self, tmp_path, monkeypatch):
        made = Engine(tmp_path)
        made.start_server()
        # The rules request 5 MB, which Snakemake itself exceeds.
        made.start_worker(4, "--enforce-memory=no")
        self._server_dir = str(made.dir)
        for path in (ROOT / "python", PLUGIN):
            monkeypatch.syspath_prepend(str(path))
        monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'python'}:{PLUGIN}")
        yield
        made.end()

    def get_executor(self):
        return "hq"

    def get_executor_settings(self):
        from snakemake_executor_plugin_hq import ExecutorSettings

        return ExecutorSettings(server_dir=self._server_dir, cold=self._cold)


class TestOfficial(Official, snakemake.common.tests.TestWorkflowsLocalStorageBase):
    __test__ = True


class TestOfficialCold(Official, snakemake.common.tests.TestWorkflowsLocalStorageBase):
    __test__ = True
    _cold = True


COUNTED = """
rule all:
    input: expand("out/{i}.txt", i=range(%d))
rule one:
    output: "out/{i}.txt"
    shell: "echo {wildcards.i} >> runs; sleep %s; echo {wildcards.i} > {output}"
"""


def runs():
    path = Path("runs")
    return sorted(int(line) for line in path.read_text().split()) if path.exists() else []


@pytest.mark.parametrize("executor", [HQ_EXECUTOR, GENERIC], ids=["hq", "cluster-generic"])
def test_failures_restarts_and_a_killed_server(engine, executor):
    write("""
from pathlib import Path
rule all:
    input: expand("out/{i}.txt", i=range(20))
rule one:
    output: "out/{i}.txt"
    resources: number=lambda wildcards, attempt: attempt
    shell:
        "echo {wildcards.i} >> runs; sleep 0.5; "
        "if [ {wildcards.i} = 7 ]; then echo a word to find; exit 3; fi; "
        "if [ {wildcards.i} = 8 ] && [ {resources.number} = 1 ]; then exit 4; fi; "
        "echo {wildcards.i} > {output}"
""")
    restarted = restart_when(engine, lambda: len(runs()) > 3)
    ended = engine.run(snakemake_command("--keep-going", "--retries", "1", "--show-failed-logs", executor=executor))
    restarted.join()
    assert ended.returncode == 1, ended.stdout
    assert "a word to find" in ended.stdout
    made = sorted(int(path.stem) for path in Path("out").glob("*.txt"))
    assert made == [i for i in range(20) if i != 7]
    assert runs() == sorted([*range(20), 7, 8])
    # Going on is possible: only what failed is missing.
    ended = engine.run(snakemake_command("--dry-run", executor=["--jobs", "1"]))
    assert "one          1" in ended.stdout, ended.stdout


def test_jobs_ask_for_what_their_rules_say(engine):
    write("""
rule all:
    input: "a", "b", "c"
rule small:
    output: "a"
    resources: mem_mb=100, runtime=7
    priority: 5
    shell: "env > {output}"
rule other:
    output: "b"
    threads: 3
    resources: hq_resources="licence=2"
    shell: "echo {threads} > {output}"
rule both:
    input: "a", "b"
    output: "c"
    resources: nodes=2
    shell: "cat $HQ_NODE_FILE > {output}"
""")
    engine.start("worker", "start", "--cpus", "3", "--resource", "licence=sum(2)")
    engine.env["A_VARIABLE_OF_MINE"] = "its value"
    ended = engine.run(snakemake_command("--hq-keep-successful-logs"))
    assert ended.returncode == 0, ended.stdout
    assert "A_VARIABLE_OF_MINE=its value" in Path("a").read_text()
    job = engine.ask_json("job", "info", "1")[0]
    asked = [submit["array"] for submit in job["submits"]]
    assert len(Path("c").read_text().split()) == 2
    asked = {array["priority"] or "licence" in str(array): array for array in asked}
    small = {entry["resource"]: entry["request"]["Compact"] for entry in asked[5]["resources"][0]["resources"]}
    # 100 MB, rounded up to whole steps of MiB.
    assert small == {"cpus": 10_000, "mem": 960_000} and asked[5]["time_limit"] == 7 * 60
    other = {entry["resource"]: entry["request"]["Compact"] for entry in asked[True]["resources"][0]["resources"]}
    assert other == {"cpus": 30_000, "licence": 20_000}
    logs = list(Path(".snakemake/hq_logs").rglob("*.log"))
    assert sorted(path.parts[2] for path in logs) == ["rule_both", "rule_other", "rule_small"]


def test_a_group_is_one_task_and_keeps_to_its_cpus(engine):
    write("""
rule all:
    input: expand("b/{i}", i=range(3))
rule a:
    output: "a/{i}"
    group: "pair"
    shell: "nproc > {output}"
rule b:
    input: "a/{i}"
    output: "b/{i}"
    group: "pair"
    script: "b.py"
""")
    Path("b.py").write_text("open(snakemake.output[0], 'w').write(open(snakemake.input[0]).read())")
    ended = engine.run(snakemake_command())
    assert ended.returncode == 0, ended.stdout
    assert len(list(Path("b").iterdir())) == 3
    assert engine.ask_json("job", "info", "1")[0]["info"]["task_stats"]["finished"] == 3


def test_a_killed_snakemake_goes_on_with_its_tasks(engine):
    # Until Snakemake has been started again; nothing is written before.
    write("""
rule all:
    input: expand("out/{i}.txt", i=range(12))
rule one:
    output: "out/{i}.txt"
    shell: "echo {wildcards.i} >> runs; until [ -e go ]; do sleep 0.1; done; echo {wildcards.i} > {output}"
""")
    first = engine.begin(snakemake_command())
    wait_for(lambda: len(runs()) == 8, "jobs run on all cpus")
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    engine.run([*SNAKEMAKE, "--unlock", "--jobs", "1"])
    second = engine.begin(snakemake_command())
    wait_for(lambda: engine.said(second).count("goes on as task 1.") == 12, "the tasks are found")
    Path("go").touch()
    code, said = engine.ends(second)
    assert code == 0, said
    assert runs() == list(range(12))


def test_rerun_incomplete_ends_what_an_earlier_snakemake_left_running(engine):
    write("""
rule one:
    output: "out.txt"
    shell: "echo part > {output}; echo 1 >> runs; test -e second || sleep 1000; echo whole > {output}"
""")
    first = engine.begin(snakemake_command())
    wait_for(lambda: runs() == [1], "the job runs")
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    Path("second").touch()
    engine.run([*SNAKEMAKE, "--unlock", "--jobs", "1"])
    ended = engine.run(snakemake_command("--rerun-incomplete"))
    assert ended.returncode == 0, ended.stdout
    assert Path("out.txt").read_text() == "whole\n" and runs() == [1, 1]
    assert engine.ask_json("job", "info", "1")[0]["info"]["task_stats"]["canceled"] == 1


def test_an_interrupt_cancels_and_leaves_nothing_behind(engine):
    word = f"word{uuid.uuid4().hex}"
    write("""
rule all:
    input: expand("out/{i}.txt", i=range(20))
rule one:
    output: "out/{i}.txt"
    shell: "echo {wildcards.i} >> runs; exec -a %s sleep 1000"
""".replace("%s", word))
    process = engine.begin(snakemake_command())
    wait_for(lambda: len(runs()) >= 8, "jobs run")
    os.kill(process.pid, signal.SIGINT)
    code, said = engine.ends(process)
    assert code != 0
    wait_for(lambda: not processes_with(engine, word), "nothing is left")
    stats = engine.ask_json("job", "info", "1")[0]["info"]["task_stats"]
    assert stats["running"] == stats["waiting"] == 0 and stats["canceled"] == 20, (stats, said)


def test_what_is_canceled_is_told(engine):
    write("""
rule one:
    output: "a"
    shell: "echo 1 >> runs; sleep 1000"
""")
    process = engine.begin(snakemake_command())
    wait_for(lambda: runs() == [1], "the job runs")
    engine.ask("job", "cancel", "1")
    code, said = engine.ends(process)
    assert code == 1 and "of hq was canceled" in said, said


def test_a_rule_that_runs_too_long_fails(engine):
    write("""
rule one:
    output: "a"
    resources: runtime=1
    shell: "sleep 1000"
""")
    ended = engine.run(snakemake_command())
    assert ended.returncode == 1 and "ime limit" in ended.stdout, ended.stdout


def test_without_a_server_it_is_told_what_to_do(tmp_path):
    write(COUNTED % (1, 0))
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{PLUGIN}", "HQ_SERVER_DIR": str(tmp_path / "none")}
    import subprocess

    ended = subprocess.run(snakemake_command(), env=env, text=True, capture_output=True, timeout=60)
    assert ended.returncode == 1
    assert "hq server start" in ended.stderr, ended.stderr


@pytest.mark.slow
def test_a_thousand_short_rules(engine, capsys):
    """Takes at most 1.3 times the ideal. `cluster-generic` starts Snakemake for each job and runs fewer rules."""
    count, sample, cpus = 1000, 40, 8
    is_quiet = os.getloadavg()[0] < 1
    write(COUNTED % (count, 1))
    begin = time.monotonic()
    ended = engine.run(snakemake_command("--quiet", "--jobs", "1000", "--default-resources", "mem_mb=100"), timeout=400)
    ours = time.monotonic() - begin
    assert ended.returncode == 0, ended.stdout
    assert runs() == list(range(count))
    Path("generic").mkdir()
    os.chdir("generic")
    write(COUNTED % (sample, 1))
    begin = time.monotonic()
    ended = engine.run(snakemake_command("--quiet", "--default-resources", "mem_mb=100", executor=GENERIC), timeout=400)
    generic = time.monotonic() - begin
    assert ended.returncode == 0, ended.stdout
    ideal = count / cpus
    with capsys.disabled():
        print(
            f"\n{count} rules of one second on {cpus} cpus: hq {ours:.0f} s, {ours / ideal:.2f} of the ideal; "
            f"{sample} of them with cluster-generic: {generic:.0f} s, {generic / (sample / cpus):.2f} of the ideal"
        )
    assert ours / count < generic / sample / 4
    if not is_quiet:
        pytest.skip("the bound is only meant for a machine that does nothing else")
    assert ours < 1.3 * ideal
