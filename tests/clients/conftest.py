import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/tests"))

import cluster as local_cluster  # noqa: E402
from cluster import HQ, Cluster  # noqa: E402

# Background processes of a shell ignore interrupts, and the engines would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["Cluster", "Engine", "wait_for"]


def wait_for(condition, what, seconds=300):
    """Waits for a condition for a long time, because engines start slowly on a busy machine."""
    return local_cluster.wait_for(condition, what, seconds)


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: left out of the short form")


@pytest.fixture(autouse=True)
def in_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Engine(Cluster):
    """A server with workers, and what an engine that uses it sees: the variables, the program, and files of the test."""

    def __init__(self, path):
        super().__init__(path)
        self.path = path
        self.server = None
        #: Whether the last awaited engine has ended.
        self.is_over = False
        # Engines look for `hq` in the path, and may keep settings at home.
        self.bin = path / "bin"
        self.bin.mkdir()
        (self.bin / "hq").symlink_to(HQ)
        self.env = {
            **os.environ,
            "HQ_SERVER_DIR": str(self.dir),
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(path),
            # An old locale leaves such characters behind. Jobs are written as JSON, which cannot contain them.
            "NO_UTF8": b"\xff".decode(errors="surrogateescape"),
        }

    def start_server(self, *args):
        self.server = super().start_server(*args)
        return self.server

    def restart_server(self):
        """Kills the server and starts another one that continues its work."""
        self.server.kill()
        self.server.wait()
        return self.start_server("--resume")

    def run(self, command, timeout=600, **options):
        self.is_over = False
        try:
            return subprocess.run(
                command, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, **options
            )
        finally:
            self.is_over = True

    def begin(self, command, **options):
        """Starts a process in a separate session, with its output in `process.log`."""
        log = open(self.path / f"engine-{len(self.processes)}.log", "w+b")
        process = subprocess.Popen(
            command, env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, **options
        )
        process.log = log
        return process

    def said(self, process):
        process.log.seek(0)
        return process.log.read().decode(errors="replace")

    def ends(self, process, seconds=300):
        """Returns the exit code and output of a process that was started."""
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"does not end: {self.said(process)}") from None
        return code, self.said(process)

    def ask_json(self, *args):
        import json

        return json.loads(self.ask("--output-mode", "json", *args).stdout)


@pytest.fixture
def engine(tmp_path):
    made = Engine(tmp_path)
    made.start_server()
    made.start_worker(4)
    made.start_worker(4)
    yield made
    made.end()


def restart_when(engine, condition):
    """Kills the server once something has happened. Runs on a thread, because the test waits for the engine meanwhile."""

    def then():
        # If an engine fails at once, the test must report that at once.
        wait_for(lambda: condition() or engine.is_over, "the workflow is under way")
        if condition():
            engine.restart_server()

    thread = threading.Thread(target=then)
    thread.start()
    return thread


def processes_with(engine, word):
    """Returns the ids of a test's processes with a word in their command line. Other tests may run in parallel."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path("/proc", entry, "cmdline").read_bytes()
                place = os.readlink(f"/proc/{entry}/cwd").encode() + Path("/proc", entry, "environ").read_bytes()
            except OSError:
                continue
            if word.encode() in line and str(engine.path).encode() in place and int(entry) != os.getpid():
                found.append(int(entry))
    return found
