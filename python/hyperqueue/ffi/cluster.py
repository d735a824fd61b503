"""The processes of a local cluster."""

from __future__ import annotations

import atexit
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import List, Optional

from hq._bridge import find_hq
from hq._interpreter import own_file
from hq.errors import HqError

from ..common import GenericPath

_START_SECONDS = 60.0

#: Ends the program when its standard input ends, which happens when this process ends in any way.
_GUARD = '"$@" </dev/null & pid=$!; trap "kill $pid" TERM; read -r _; kill $pid 2>/dev/null; wait $pid'


class Cluster:
    """A server without authentication that ends with this process. It uses a new directory unless one is given."""

    def __init__(self, server_dir: Optional[GenericPath] = None) -> None:
        self._own_dir = None
        if server_dir is None:
            self._own_dir = tempfile.TemporaryDirectory(prefix="hq")
            server_dir = self._own_dir.name
        self.server_dir = Path(server_dir)
        self._processes: List["subprocess.Popen[bytes]"] = []
        self.is_stopped = False
        atexit.register(self._end)
        append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        log = os.fspath(self.server_dir / "cluster.log")
        self._log = own_file(log, append) if self.server_dir.is_dir() else tempfile.TemporaryFile()
        self._start(
            "server",
            "start",
            "--disable-client-authentication-and-encryption",
            "--disable-worker-authentication-and-encryption",
        )
        try:
            self._wait_for_server()
        except BaseException:
            self._end()
            raise

    def _start(self, *args: str) -> None:
        command = ["sh", "-c", _GUARD, "sh", find_hq(), "--server-dir", os.fspath(self.server_dir), *args]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, start_new_session=True
        )
        self._processes.append(process)

    def _hq(self, *args: str) -> "subprocess.CompletedProcess[str]":
        command = [find_hq(), "--server-dir", os.fspath(self.server_dir), *args]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def _wait_for_server(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while True:
            done = self._hq("server", "info")
            if done.returncode == 0:
                return
            if time.monotonic() > until:
                raise HqError(f"the server did not start: {done.stderr.strip()}")
            time.sleep(0.05)

    def _worker_count(self) -> int:
        done = self._hq("--output-mode", "quiet", "worker", "list")
        return len(done.stdout.split("\n")) - 1 if done.returncode == 0 else 0

    def add_worker(self, cores: Optional[int] = None) -> None:
        """Starts a worker; without `cores`, it has all cpus."""
        if self.is_stopped:
            raise Exception("Attempting to add worker to a stopped server")
        before = self._worker_count()
        args = ["worker", "start", "--group", "default", "--heartbeat", "10s"]
        if cores is not None:
            args += ["--cpus", str(cores)]
        self._start(*args)
        until = time.monotonic() + _START_SECONDS
        while self._worker_count() <= before:
            if time.monotonic() > until:
                raise HqError("the worker did not start")
            time.sleep(0.05)

    def stop(self) -> None:
        if self.is_stopped:
            raise Exception("Attempting to stop an already stopped server")
        self._end()

    def _end(self) -> None:
        if self.is_stopped:
            return
        self.is_stopped = True
        atexit.unregister(self._end)
        if self._processes:
            self._hq("server", "stop")
        for process in reversed(self._processes):
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()
        if self._own_dir is not None:
            self._own_dir.cleanup()
