"""StreamFlow with the connector of `integrations/streamflow`."""

import json
import signal
import sys
from pathlib import Path

import pytest
from conftest import ROOT, processes_with, restart_when, wait_for

pytest.importorskip("streamflow")

ENTRY_POINTS = "[unito.streamflow.plugin]\nhq = streamflow_hq:HqPlugin\n"

SCRIPT = """
x=$1 place=$2
echo $x >> $place/runs
echo "$x $(cat)" >> $place/read
if [ $x = 9 ]; then sleep 1000; fi
if [ $x = 7 ]; then exit 3; fi
sleep 0.5
echo $((x * x)) > squared
echo "said by $x"
"""

WORKFLOW = """
cwlVersion: v1.2
class: Workflow
requirements:
  ScatterFeatureRequirement: {}
  InlineJavascriptRequirement: {}
inputs: { numbers: "int[]", place: string, script: File, words: File }
steps:
  square:
    scatter: x
    in: { x: numbers, place: place, script: script, words: words }
    out: [squared]
    run:
      class: CommandLineTool
      baseCommand: bash
      inputs:
        script: { type: File, inputBinding: { position: 1 } }
        x: { type: int, inputBinding: { position: 2 } }
        place: { type: string, inputBinding: { position: 3 } }
        words: File
      stdin: $(inputs.words.path)
      outputs:
        squared:
          type: int
          outputBinding: { glob: squared, loadContents: true, outputEval: "$(parseInt(self[0].contents))" }
outputs:
  squares: { type: "int[]", outputSource: square/squared }
"""

CONFIG = """
version: v1.0
workflows:
  squares:
    type: cwl
    config: { file: workflow.cwl, settings: settings.json }
    bindings:
      - step: /square
        target: { deployment: cluster, service: two }
deployments:
  cluster:
    type: hq
    workdir: PLACE/work
    config:
      maxConcurrentJobs: 100
      pollingInterval: 1
      services:
        two: { cpus: 2, resource: { mem: 100MiB }, options: [--priority=3] }
"""


@pytest.fixture
def streamflow(engine):
    metadata = Path("packages/streamflow_hq-0.1.0.dist-info")
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: streamflow-hq\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    engine.env["PYTHONPATH"] = f"{ROOT / 'integrations/streamflow'}:{Path('packages').resolve()}"
    Path("work").mkdir()
    Path("square.sh").write_text(SCRIPT)
    Path("words").write_text("it's \"some\" words\n")
    Path("workflow.cwl").write_text(WORKFLOW)
    Path("streamflow.yml").write_text(CONFIG.replace("PLACE", str(Path.cwd())))

    def command(numbers):
        files = {name: {"class": "File", "path": path} for name, path in [("script", "square.sh"), ("words", "words")]}
        Path("settings.json").write_text(json.dumps({"numbers": numbers, "place": str(Path.cwd()), **files}))
        return [str(Path(sys.executable).parent / "streamflow"), "run", "streamflow.yml", "--outdir", "out"]

    return command


def runs():
    path = Path("runs")
    return sorted(int(x) for x in path.read_text().split()) if path.exists() else []


def test_twenty_steps_and_a_killed_server(engine, streamflow):
    numbers = [x for x in range(22) if x not in (7, 9)]
    restarted = restart_when(engine, lambda: len(runs()) >= 8)
    ended = engine.run(streamflow(numbers))
    restarted.join()
    assert ended.returncode == 0, ended.stdout
    said = ended.stdout.rpartition('\n{\n    "squares"')
    assert json.loads(f'{{"squares"{said[2].partition("}")[0]}}}')["squares"] == [x * x for x in numbers]
    assert runs() == numbers
    assert sorted(Path("read").read_text().splitlines()) == sorted(f"{x} it's \"some\" words" for x in numbers)
    asked = engine.ask_json("job", "info", "1")[0]["submits"][0]["array"]
    entries = {entry["resource"]: entry["request"]["Compact"] for entry in asked["resources"][0]["resources"]}
    assert entries == {"cpus": 20_000, "mem": 100 * 10_000} and asked["priority"] == 3


def test_a_failure_a_cancel_and_an_interrupt(engine, streamflow):
    ended = engine.run(streamflow([6, 7]))
    assert ended.returncode != 0 and "exit code 3" in ended.stdout, ended.stdout

    def running():
        return [str(job["id"]) for job in engine.ask_json("job", "list", "--filter", "running")]

    process = engine.begin(streamflow([9]))
    wait_for(lambda: processes_with(engine, "sleep\x001000"), "the step runs")
    engine.ask("job", "cancel", *running())
    code, said = engine.ends(process)
    assert code != 0 and "was canceled" in said, said
    process = engine.begin(streamflow([9]))
    wait_for(lambda: processes_with(engine, "sleep\x001000"), "the step runs")
    process.send_signal(signal.SIGINT)
    code, said = engine.ends(process)
    assert code != 0, said
    wait_for(lambda: not processes_with(engine, "sleep\x001000"), "nothing is left")
    assert not running(), said


def test_a_submit_whose_answer_is_lost_is_not_repeated(engine, streamflow):
    """The program ends in the same way as when the server is killed after a submit."""
    (engine.bin / "hq").rename(engine.bin / "real")
    (engine.bin / "hq").write_text(
        "#!/bin/sh\n"
        f'case "$*" in *" submit "*) [ -e {engine.path}/lost ] || {{ "{engine.bin}/real" "$@"; touch {engine.path}/lost; '
        'echo "The server closed the connection" >&2; exit 1; } >/dev/null;; esac\n'
        f'exec "{engine.bin}/real" "$@"\n'
    )
    (engine.bin / "hq").chmod(0o755)
    ended = engine.run(streamflow([3]))
    assert ended.returncode == 0 and Path("lost").exists(), ended.stdout
    assert runs() == [3]
