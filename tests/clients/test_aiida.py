"""AiiDA with the published plugin for HyperQueue."""

import os
import threading
from pathlib import Path

import pytest
from conftest import processes_with, restart_when, wait_for

PYTHON = Path(os.environ.get("HQ_CLIENTS", "none"), "aiida/bin/python")
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="needs AiiDA by tests/clients/run")


def runs():
    path = Path("runs")
    return sorted(int(line) for line in path.read_text().split()) if path.exists() else []


def test_failures_a_time_limit_a_cancel_and_a_killed_server(engine):
    engine.env["AIIDA_PATH"] = str(engine.path / "aiida")
    restarted = restart_when(engine, lambda: len(runs()) > 3)

    def cancel():
        """Cancels the job, which would not end by itself."""
        wait_for(lambda: 10 in runs(), "it runs")
        restarted.join()
        script = next(path for path in Path("work").rglob("_aiidasubmit.sh") if "echo 10 >>" in path.read_text())
        for job in engine.ask_json("job", "list", "--filter", "running"):
            info = engine.ask_json("job", "info", str(job["id"]))[0]
            if str(script.parent.absolute()) in str(info["submits"]):
                engine.ask("job", "cancel", str(job["id"]))

    canceling = threading.Thread(target=cancel)
    canceling.start()
    ended = engine.run([str(PYTHON), str(Path(__file__).parent / "aiida_script.py")])
    canceling.join()
    assert ended.returncode == 0, ended.stdout
    assert "FAILED [7, 9, 10]" in ended.stdout, ended.stdout
    assert f"SUM {sum(2 * x for x in range(20) if x not in (7, 9, 10))} EXIT 0" in ended.stdout, ended.stdout
    assert runs() == list(range(20))
    assert not processes_with(engine, "sleep\x001000")
