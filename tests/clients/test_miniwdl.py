"""miniwdl with the back end of `integrations/miniwdl`."""

import json
import signal
import sys
from pathlib import Path

import pytest
from conftest import ROOT, processes_with, restart_when, wait_for

pytest.importorskip("WDL")

ENTRY_POINTS = "[miniwdl.plugin.container_backend]\nhq = miniwdl_hq:HqContainer\n"

WORKFLOW = """
version 1.1

task square {
  input {
    File number
    Int retries = 0
    String place
  }
  command <<<
    x=$(cat "~{number}")
    echo $x >> ~{place}/runs
    if [ $x = 9 ]; then sleep 1000; fi
    sleep 0.5
    if [ $x = 7 ] && [ ! -e ~{place}/once ]; then touch ~{place}/once; echo an unlucky number >&2; exit 3; fi
    echo $((x * x)) > result
    echo "$A_VARIABLE_OF_MINE $(( $(echo $HQ_CPUS | tr -cd , | wc -c) + 1 ))" > seen
    echo "$PWD/result" > where
  >>>
  output {
    Int result = read_int("result")
    String seen = read_string("seen")
    File kept = read_string("where")
    File again = number
  }
  runtime {
    cpu: 2
    memory: "100 MiB"
    time_minutes: 5
    maxRetries: retries
    docker: "none"
  }
}

workflow squares {
  input {
    Array[File] numbers
    Int retries = 0
    String place
  }
  scatter (number in numbers) {
    call square { input: number = number, retries = retries, place = place }
  }
  output {
    Array[Int] results = square.result
    Array[String] seen = square.seen
    Array[File] kept = square.kept
  }
}
"""


@pytest.fixture
def miniwdl(engine):
    metadata = Path("packages/miniwdl_hq-0.1.0.dist-info")
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: miniwdl-hq\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    engine.env["PYTHONPATH"] = f"{ROOT / 'integrations/miniwdl'}:{Path('packages').resolve()}"
    engine.env["A_VARIABLE_OF_MINE"] = "its value"
    engine.env["MINIWDL__SCHEDULER__CONTAINER_BACKEND"] = "hq"
    engine.env["MINIWDL__SCHEDULER__TASK_CONCURRENCY"] = "100"
    engine.env["MINIWDL__FILE_IO__ALLOW_ANY_INPUT"] = "true"
    Path("workflow.wdl").write_text(WORKFLOW)
    for x in range(20):
        Path(f"number {x}").write_text(f"{x}\n")

    def command(numbers, *args, retries=0):
        given = [f"numbers=number {x}" for x in numbers] + [f"retries={retries}"]
        return [sys.executable, "-m", "WDL", "run", "--dir", "run", *args, "workflow.wdl", *given, f"place={Path.cwd()}"]

    return command


def runs():
    path = Path("runs")
    return sorted(int(x) for x in path.read_text().split()) if path.exists() else []


def test_retries_and_a_killed_server(engine, miniwdl):
    numbers = [x for x in range(20) if x != 9]
    restarted = restart_when(engine, lambda: len(runs()) >= 8)
    ended = engine.run(miniwdl(numbers, "-o", "out.json", retries=1))
    restarted.join()
    assert ended.returncode == 0, ended.stdout
    outputs = json.loads(Path("out.json").read_text())["outputs"]
    assert outputs["squares.results"] == [x * x for x in numbers]
    assert set(outputs["squares.seen"]) == {"its value 2"}
    assert [int(Path(kept).read_text()) for kept in outputs["squares.kept"]] == [x * x for x in numbers]
    assert runs() == sorted([*numbers, 7])
    asked = engine.ask_json("job", "info", "1")[0]["submits"][0]["array"]
    entries = {entry["resource"]: entry["request"]["Compact"] for entry in asked["resources"][0]["resources"]}
    assert entries == {"cpus": 20_000, "mem": 100 * 10_000} and asked["time_limit"] == 300


def test_failures_and_an_interrupt(engine, miniwdl):
    ended = engine.run(miniwdl([6, 7], "--verbose"))
    assert ended.returncode == 3 and "an unlucky number" in ended.stdout, ended.stdout
    process = engine.begin(miniwdl([9]))
    wait_for(lambda: processes_with(engine, "sleep\x001000"), "the task runs")
    process.send_signal(signal.SIGTERM)
    code, said = engine.ends(process)
    assert code != 0, said
    wait_for(lambda: not processes_with(engine, "sleep\x001000"), "nothing is left")
    assert engine.ask_json("job", "list", "--filter", "canceled"), said


def test_a_question_is_about_no_more_jobs_than_are_answered(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "integrations/miniwdl")
    container = pytest.importorskip("miniwdl_hq._container")

    def answer(*args):
        asked = args[-1].partition(" IN (")[2].rstrip(")").split(",")
        # As much as `hq query` gives.
        return json.dumps([{"job": int(job), "state": "running"} for job in asked[:10_000]])

    monkeypatch.setattr(container, "_hq", answer)
    watcher = container._Watcher()
    jobs = [str(number) for number in range(1, 25_001)]
    watcher._jobs.update(jobs)
    assert all(watcher.look(job)["state"] == "running" for job in jobs)


def test_a_submit_whose_answer_is_lost_is_not_repeated(engine, miniwdl):
    """The program ends in the same way as when the server is killed after a submit."""
    (engine.bin / "hq").rename(engine.bin / "real")
    (engine.bin / "hq").write_text(
        "#!/bin/sh\n"
        f'[ "$1" != submit ] || [ -e lost ] || {{ "{engine.bin}/real" "$@"; touch lost; '
        'echo "The server closed the connection" >&2; exit 1; } >/dev/null\n'
        f'exec "{engine.bin}/real" "$@"\n'
    )
    (engine.bin / "hq").chmod(0o755)
    ended = engine.run(miniwdl([3]))
    assert ended.returncode == 0 and Path("lost").exists(), ended.stdout
    assert runs() == [3]
