"""Nextflow, with its own executor for HyperQueue."""

import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from conftest import processes_with, restart_when, wait_for

PLACES = sorted(Path(os.environ.get("HQ_CLIENTS", "none")).glob("nextflow-*/nextflow"))
pytestmark = pytest.mark.skipif(shutil.which("java") is None or not PLACES, reason="needs Java, and Nextflow by tests/clients/run")

CONFIG = """
process.executor = 'hq'
executor.pollInterval = '500 ms'
executor.queueStatInterval = '1 s'
"""


@pytest.fixture(params=PLACES, ids=lambda place: place.parent.name)
def nextflow(engine, request):
    engine.env.update(NXF_HOME=str(engine.path / "nxf"), NXF_OFFLINE="true", NXF_ANSI_LOG="false")
    # Versions before 23 ask for memory in bytes, as HyperQueue once wanted it.
    is_old = request.param.parent.name < "nextflow-23"
    Path("nextflow.config").write_text(CONFIG + ("" if is_old else "process.memory = '100 MB'\n"))

    def command(text):
        Path("main.nf").write_text(text)
        return [str(request.param), "run", "main.nf"]

    return command


def runs():
    path = Path("runs")
    return sorted(int(line) for line in path.read_text().split()) if path.exists() else []


def test_failures_retries_a_time_limit_and_a_killed_server(engine, nextflow):
    command = nextflow("""
process one {
  time { x == 9 ? '2s' : '1h' }
  errorStrategy { task.attempt < 2 && x != 9 ? 'retry' : 'ignore' }
  input: val x
  output: stdout
  script:
  \"\"\"
  echo $x >> $launchDir/runs
  if [ $x = 7 ]; then exit 3; fi
  if [ $x = 8 ] && [ $task.attempt = 1 ]; then exit 4; fi
  if [ $x = 9 ]; then sleep 1000; fi
  sleep 0.5
  echo $x
  \"\"\"
}
workflow { Channel.of(1..20) | one | collectFile(name: 'all', storeDir: '.') }
""")
    restarted = restart_when(engine, lambda: len(runs()) > 3)
    ended = engine.run(command)
    restarted.join()
    assert ended.returncode == 0, ended.stdout
    assert sorted(int(x) for x in Path("all").read_text().split()) == [x for x in range(1, 21) if x not in (7, 9)]
    # Nextflow submits again what the server has, if it was killed ahead of its answer.
    twice = [int(x) for x in re.findall(r"Error submitting process 'one \((\d+)\)'", ended.stdout)]
    assert sorted([*range(1, 21), 7, 8]) in (runs(), [x for x in runs() if not (x in twice and twice.remove(x) is None)]), ended.stdout


def test_an_interrupt_cancels(engine, nextflow):
    command = nextflow("""
process one {
  input: val x
  output: stdout
  script:
  \"\"\"
  echo $x >> $launchDir/runs
  sleep 1000
  \"\"\"
}
workflow { Channel.of(1..10) | one }
""")
    process = engine.begin(command)
    wait_for(lambda: len(runs()) == 8, "jobs run")
    os.kill(process.pid, signal.SIGINT)
    code, said = engine.ends(process)
    assert code != 0
    wait_for(lambda: not engine.ask_json("job", "list"), f"jobs are canceled: {said}")
    wait_for(lambda: not processes_with(engine, "sleep\x001000"), "nothing is left")
