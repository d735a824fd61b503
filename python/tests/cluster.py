"""A real server with workers, for tests."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("HQ_BINARY", str(ROOT / "target/debug/hq"))
# The tests must not use a server of the user who runs them.
os.environ.pop("HQ_SERVER_DIR", None)

HQ = os.environ["HQ_BINARY"]


def wait_for(condition, what, seconds=60):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"waited too long: {what}"
        time.sleep(0.02)
    return found


class Cluster:
    """A real server with a worker, in a separate directory."""

    def __init__(self, path):
        self.dir = path / "server"
        self.log = open(path / "cluster.log", "wb")
        self.processes = []

    def hq(self, *args):
        return [HQ, "--server-dir", str(self.dir), *args]

    def start(self, *args):
        process = subprocess.Popen(self.hq(*args), stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def ask(self, *args):
        return subprocess.run(self.hq(*args), capture_output=True, text=True)

    def start_server(self, *args):
        server = self.start("server", "start", *args)
        wait_for(lambda: self.ask("server", "info").returncode == 0, "the server answers")
        return server

    def start_worker(self, cpus=2, *args):
        before = self.ask("--output-mode", "quiet", "worker", "list").stdout
        worker = self.start("worker", "start", "--cpus", str(cpus), *args)
        wait_for(lambda: self.ask("--output-mode", "quiet", "worker", "list").stdout != before, "the worker registers")
        return worker

    def end(self):
        self.ask("server", "stop")
        for process in reversed(self.processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.log.close()
