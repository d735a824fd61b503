from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
import time
import uuid
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

from WDL import Error, Type
from WDL._util import StructuredLogMessage as _
from WDL.runtime.error import Interrupted, Terminated
from WDL.runtime.task_container import TaskContainer

#: Variables of the process that submits which say where it runs, not what tasks need.
_OWN_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "HOSTNAME",
    "OLDPWD",
    "OMP_NUM_THREADS",
    "PWD",
    "ROCR_VISIBLE_DEVICES",
    "SHLVL",
    "TMPDIR",
    "_",
)
_OWN_PREFIXES = ("HQ_", "LSB_", "PBS_", "SLURM_", "SLURMD_", "SBATCH_")

#: Seconds between two questions about all jobs that have not ended.
_PAUSE_S = 1
#: Jobs in one question: more rows than `hq query` gives, or a longer statement than a process may be given, would lose some.
_ASKED_MAX = 1_000
#: So long the server may be away, for a restart.
_OUTAGE_S = 300


class HqContainer(TaskContainer):
    """Runs the command of a task as a job; the server is that of `$HQ_SERVER_DIR`, or the one that hq uses by itself."""

    @classmethod
    def global_init(cls, cfg: Any, logger: Any) -> None:
        cls._watcher = _Watcher()

    @classmethod
    def detect_resource_limits(cls, cfg: Any, logger: Any) -> Dict[str, int]:
        # Nodes may be larger than this one; hq says what no worker has.
        return {"cpu": 1 << 16, "mem_bytes": 1 << 50}

    def __init__(self, cfg: Any, run_id: str, host_dir: str) -> None:
        super().__init__(cfg, run_id, host_dir)
        # A task sees the real file system.
        self.container_dir = self.host_dir

    def host_work_dir(self) -> str:
        # The same for each attempt: the command has paths into it.
        return os.path.join(self.host_dir, "work")

    def reset(self, logger: Any) -> None:
        os.rename(self.host_work_dir(), os.path.join(self.host_dir, f"work_of_attempt_{self.try_counter}"))
        super().reset(logger)

    def _link_inputs(self) -> None:
        """Leaves alone what is there because `[file_io] copy_input_files` asks for copies."""
        for source, link in self.input_path_map.items():
            link = link.rstrip("/")
            if not os.path.lexists(link):
                os.makedirs(os.path.dirname(link), exist_ok=True)
                os.symlink(source.rstrip("/"), link)

    def process_runtime(self, logger: Any, runtime_eval: Dict[str, Any]) -> None:
        super().process_runtime(logger, runtime_eval)
        self.runtime_values.setdefault("cpu", 1)
        for name in ("docker", "container"):
            if name in runtime_eval:
                text = "ignored, because hq uses no containers: programs must be on the nodes"
                logger.warning(_(text, **{name: str(runtime_eval[name])}))
        for name in ("time_minutes", "gpuCount"):
            if name in runtime_eval:
                self.runtime_values[name] = max(0, runtime_eval[name].coerce(Type.Int()).value)
        if self.runtime_values.get("gpu"):
            self.runtime_values.setdefault("gpuCount", 1)

    def _run(self, logger: Any, terminating: Callable[[], bool], command: str) -> int:
        self._link_inputs()
        script = os.path.join(self.host_dir, "command")
        with open(script, "w") as file:
            for name, value in self.runtime_values.get("env", {}).items():
                file.write(f"export {name}={shlex.quote(value)}\n")
            file.write(command)
        job = self._submit(script, terminating)
        logger.notice(_("hq job", job=job))
        with ExitStack() as cleanup:
            poll_stderr = cleanup.enter_context(self.poll_stderr_context(logger))
            with self._watcher.watching(job):
                row = self._wait(job, terminating, poll_stderr, cleanup)
            poll_stderr()
        if terminating():
            raise Terminated()
        return self._exit_code(row)

    def _submit(self, script: str, terminating: Callable[[], bool]) -> str:
        """Id of the job, which is submitted exactly once, even if the server restarts meanwhile."""
        mark = uuid.uuid4().hex[:12]
        line = json.dumps(self._description(script, mark))
        until = time.monotonic() + _OUTAGE_S
        is_uncertain = False
        while True:
            try:
                if is_uncertain:
                    found = json.loads(_hq("--output-mode", "json", "query", f"SELECT id FROM jobs WHERE name LIKE '%{mark}'"))
                    if found:
                        return str(found[0]["id"])
                is_uncertain = True
                return str(json.loads(_hq("submit", "-", line=line))["id"])
            except subprocess.CalledProcessError as error:
                # Only a refusal is answered with JSON.
                if '{"error"' in error.output or terminating() or time.monotonic() > until:
                    raise Error.RuntimeError(f"hq refuses the task: {error.output}") from None
            time.sleep(_PAUSE_S)

    def _description(self, script: str, mark: str) -> Dict[str, Any]:
        """A line for `hq submit -`."""
        values = self.runtime_values
        described: Dict[str, Any] = {
            "name": f"{self.run_id} {mark}",
            "command": [*shlex.split(self.cfg.get("task_runtime", "command_shell")), script],
            "directives": "off",
            "cwd": self.host_work_dir(),
            "stdout": self.host_stdout_txt(),
            "stderr": self.host_stderr_txt(),
            "cpus": str(values["cpu"]),
            "env": {
                name: value
                for name, value in os.environ.items()
                if name not in _OWN_VARIABLES and not name.startswith(_OWN_PREFIXES) and _is_text(name + value)
            },
        }
        resources: List[str] = []
        if values.get("memory_reservation"):
            resources.append(f"mem={-(-values['memory_reservation'] // 2**20)}MiB")
        if values.get("gpuCount"):
            gpus = self.cfg.get("hq", "gpu_resource") if self.cfg.has_option("hq", "gpu_resource") else "gpus/nvidia"
            resources.append(f"{gpus}={values['gpuCount']}")
        if resources:
            described["resource"] = resources
        if values.get("time_minutes"):
            described["time_limit"] = f"{values['time_minutes']}m"
        return described

    def _wait(self, job: str, terminating: Callable[[], bool], poll_stderr: Callable[[], None], cleanup: ExitStack) -> Dict[str, Any]:
        has_begun = is_canceled = False
        while True:
            row = self._watcher.look(job)
            if row["state"] == "running" and not has_begun:
                has_begun = True
                cleanup.enter_context(self.task_running_context())
            if row["state"] not in ("waiting", "running"):
                return row
            if terminating() and not is_canceled:
                # Tried again if the server is away.
                is_canceled = subprocess.run(["hq", "job", "cancel", job], capture_output=True).returncode == 0
            poll_stderr()
            time.sleep(_PAUSE_S)

    def _exit_code(self, row: Dict[str, Any]) -> int:
        if row["state"] == "finished":
            return 0
        if row["state"] != "failed":
            raise Interrupted(f"hq job {row['job']} was {row['state']}")
        self.failure_info = {"hq_job": row["job"], "hq_message": row["message"]}
        if row["exit_code"]:
            return row["exit_code"]
        return 128 + row["signal"] if row["signal"] else 1


class _Watcher:
    """Asks about all jobs of this process at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: Set[str] = set()
        self._rows: Dict[str, Dict[str, Any]] = {}
        self._asked = 0.0
        self._answered = time.monotonic()

    @contextmanager
    def watching(self, job: str) -> Iterator[None]:
        with self._lock:
            if not self._jobs:
                self._answered = time.monotonic()
            self._jobs.add(job)
            self._asked = 0.0
        try:
            yield
        finally:
            with self._lock:
                self._jobs.discard(job)

    def look(self, job: str) -> Dict[str, Any]:
        with self._lock:
            if time.monotonic() - self._asked >= _PAUSE_S:
                self._ask()
            row: Optional[Dict[str, Any]] = self._rows.get(job)
        if row is None:
            raise Error.RuntimeError(f"expected job {job} at the hq server, found none: it has forgotten it, or is another one")
        return row

    def _ask(self) -> None:
        self._asked = time.monotonic()
        jobs = sorted(self._jobs)
        try:
            rows = [row for begin in range(0, len(jobs), _ASKED_MAX) for row in _rows(jobs[begin : begin + _ASKED_MAX])]
        except subprocess.CalledProcessError as error:
            if time.monotonic() - self._answered > _OUTAGE_S:
                raise Error.RuntimeError(f"hq has not answered for {_OUTAGE_S} seconds: {error.output}") from None
            for job in self._jobs:
                self._rows.setdefault(job, {"job": job, "state": "waiting"})
            return
        self._answered = time.monotonic()
        self._rows = {str(row["job"]): row for row in rows}


def _rows(jobs: List[str]) -> List[Dict[str, Any]]:
    # A task that never began is in no row.
    statement = (
        "SELECT jobs.id AS job, exit_code, signal, message, "
        "coalesce(state, CASE WHEN completed_unix_ns IS NULL THEN 'waiting' ELSE 'canceled' END) AS state "
        f"FROM jobs LEFT JOIN tasks ON tasks.job = jobs.id WHERE jobs.id IN ({','.join(jobs)})"
    )
    rows: List[Dict[str, Any]] = json.loads(_hq("--output-mode", "json", "query", statement))
    return rows


def _is_text(value: str) -> bool:
    """Whether a variable can be in JSON."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _hq(*args: str, line: str = "") -> str:
    ended = subprocess.run(["hq", *args], input=line + "\n", capture_output=True, text=True)
    if ended.returncode != 0:
        raise subprocess.CalledProcessError(ended.returncode, ["hq", *args], output=ended.stdout + ended.stderr)
    return ended.stdout
