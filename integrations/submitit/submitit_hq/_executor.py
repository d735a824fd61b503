from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Union

from submitit.core import core, job_environment, logger, utils

#: Variables of the process that submits which say where it runs, not what jobs need.
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

#: With this exit code a job that has left a checkpoint is begun again.
_REQUEUE_CODE = 144

#: Jobs in one question: more rows than `hq query` gives, or a longer statement than a process may be given, would lose some.
_ASKED_MAX = 1_000

#: States of a task, in submitit's names for Slurm.
_STATES = {
    "waiting": "PENDING",
    "running": "RUNNING",
    "finished": "COMPLETED",
    "failed": "FAILED",
    "canceled": "CANCELLED",
    "aborted": "CANCELLED",
}


class HqInfoWatcher(core.InfoWatcher):
    """Asks for the states of all jobs that have not ended at once."""

    def __init__(self, server_dir: Optional[str]) -> None:
        super().__init__(delay_s=30)
        self.server_dir = server_dir
        self._asked: List[str] = []

    def update(self) -> None:
        waiting = sorted(self._registered - self._finished, key=int)
        for begin in range(0, len(waiting), _ASKED_MAX):
            self._asked = waiting[begin : begin + _ASKED_MAX]
            super().update()

    def _make_command(self) -> Optional[List[str]]:
        # A task that never began is in no row.
        question = (
            "SELECT jobs.id AS job, message, "
            "coalesce(state, CASE WHEN completed_unix_ns IS NULL THEN 'waiting' ELSE 'canceled' END) AS state "
            f"FROM jobs LEFT JOIN tasks ON tasks.job = jobs.id WHERE jobs.id IN ({','.join(self._asked)})"
        )
        return _hq(self.server_dir, "--output-mode", "json", "query", question)

    def read_info(self, string: Union[bytes, str]) -> Dict[str, Dict[str, str]]:
        # The server has forgotten jobs that it does not know: their state never changes again.
        found = {job_id: {"JobID": job_id, "State": "MISSING"} for job_id in self._asked}
        for row in json.loads(string):
            state = _STATES.get(row["state"], "UNKNOWN")
            found[str(row["job"])] = {"JobID": str(row["job"]), "State": state, "Reason": row["message"] or ""}
        return found

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return self.get_info(job_id, mode=mode).get("State", "UNKNOWN")


#: By the directory of their server.
_watchers: Dict[Optional[str], HqInfoWatcher] = {}


class HqJob(core.Job[core.R]):
    """A job of an hq server."""

    #: Directory of the server; `None` = `$HQ_SERVER_DIR`, or the one that hq uses by itself.
    server_dir: Optional[str] = None

    @property
    def watcher(self) -> HqInfoWatcher:  # type: ignore[override]
        """Serves all jobs of a server in this process, so that many are asked for at once."""
        return _watchers.setdefault(self.server_dir, HqInfoWatcher(self.server_dir))

    def _register_in_watcher(self) -> None:
        # Too early: its server is unknown. A watcher registers jobs when they are queried.
        pass

    def _belongs_to(self, server_dir: Optional[str]) -> None:
        for job in (self, *self._sub_jobs):
            job.server_dir = server_dir  # type: ignore[attr-defined]
        self.watcher.register_job(self.job_id)

    def cancel(self, check: bool = True) -> None:
        command = _hq(self.server_dir, "job", "cancel", self.job_id)
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        # Of one that has ended nothing is left to cancel, which hq tells, and is no error for it.
        if check and ended.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)} ended with {ended.returncode}: {ended.stdout.strip()}")


class HqJobEnvironment(job_environment.JobEnvironment):
    """Properties of the present job."""

    _env = {
        "job_id": "HQ_JOB_ID",
        "num_tasks": "SUBMITIT_HQ_TASKS",
        "num_nodes": "SUBMITIT_HQ_NODES",
        "node": "SUBMITIT_HQ_NODE",
        "global_rank": "SUBMITIT_HQ_RANK",
        "local_rank": "SUBMITIT_HQ_RANK",
    }

    def _handle_signals(self, paths: utils.JobPaths, submission: utils.DelayedSubmission) -> None:
        super()._handle_signals(paths, submission)
        # As Slurm does with `--signal=USR2@90`; hq itself only ends a job, at its time limit.
        left = float(os.environ["SUBMITIT_HQ_SIGNAL_AT"]) - time.time()
        timer = threading.Timer(max(0, left), os.kill, (os.getpid(), self._usr_sig()))
        timer.daemon = True
        timer.start()

    def _requeue(self, countdown: int) -> None:
        logger.get_logger().info(f"Job {self.job_id} goes on from its checkpoint ({countdown} remaining timeouts)")
        sys.exit(_REQUEUE_CODE)


class HqExecutor(core.Executor):
    """Submits functions as jobs to an hq server.

    Parameters
    ----------
    folder, max_num_timeout, max_pickle_size_gb, python:
        As those of the executor for Slurm.
    server_dir:
        Directory of the server; by default `$HQ_SERVER_DIR`, or the one that hq uses by itself.
    """

    job_class = HqJob

    def __init__(
        self,
        folder: Union[str, Path],
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        python: Optional[str] = None,
        server_dir: Union[str, Path, None] = None,
    ) -> None:
        super().__init__(folder)
        self.max_num_timeout = max_num_timeout
        self.max_pickle_size_gb = max_pickle_size_gb
        self.python = shlex.quote(sys.executable) if python is None else python
        # Absolute: jobs may be asked for from another directory.
        self.server_dir = None if server_dir is None else os.path.abspath(server_dir)

    @classmethod
    def affinity(cls) -> int:
        # Only on request: a server may run for another purpose.
        return 0

    @classmethod
    def _valid_parameters(cls) -> Set[str]:
        return {"gpu_resource", "options", "setup", "signal_delay_s"}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        known = self._valid_parameters() | set(core.EquivalenceDict.__annotations__) | {"stderr_to_stdout"}
        unknown = sorted(set(kwargs) - known)
        if unknown:
            raise ValueError(f"expected parameters out of {', '.join(sorted(known))}; found {', '.join(unknown)}")
        if kwargs.get("nodes", 1) != 1:
            raise ValueError(
                f"expected nodes=1, found nodes={kwargs['nodes']}: hq starts the command of a task on several nodes once, on the first; "
                "submit a launcher such as mpirun with `hq submit --nodes` instead"
            )
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(self, delayed_submissions: Sequence[utils.DelayedSubmission]) -> List[core.Job[Any]]:
        folder = utils.JobPaths.get_first_id_independent_folder(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        pickles = []
        for delayed in delayed_submissions:
            delayed.set_timeout(self.parameters.get("timeout_min", 5), self.max_num_timeout)
            pickles.append(folder / f"{uuid.uuid4().hex}.pkl")
            delayed.dump(pickles[-1])
            if len(pickles) == 1:
                self._check_size(pickles[0], len(delayed_submissions))
        lines = [json.dumps(self._description())] * len(delayed_submissions)
        try:
            ids = self._submit_lines(lines)
        except BaseException:
            for pickle in pickles:
                pickle.unlink()
            raise
        jobs: List[core.Job[Any]] = []
        for job_id, pickle in zip(ids, pickles):
            job: HqJob[Any] = self.job_class(folder=self.folder, job_id=job_id, tasks=list(range(self._num_tasks())))
            job._belongs_to(self.server_dir)
            # The job waits for it.
            job.paths.move_temporary_file(pickle, "submitted_pickle")
            jobs.append(job)
        return jobs

    def _check_size(self, pickle: Path, count: int) -> None:
        size = pickle.stat().st_size / 2**30 * count
        if size > self.max_pickle_size_gb:
            pickle.unlink()
            raise RuntimeError(
                f"expected at most {self.max_pickle_size_gb} GB of functions and arguments, found about {size:.2f} GB: "
                "pass paths instead of data, or set a larger max_pickle_size_gb"
            )

    def _submit_lines(self, lines: Sequence[str]) -> List[str]:
        """Submits jobs in one session; all or, if one is refused, none."""
        ended = subprocess.run(_hq(self.server_dir, "submit", "-"), input="\n".join(lines) + "\n", capture_output=True, text=True)
        answers = [json.loads(line) for line in ended.stdout.splitlines()]
        ids = [str(answer["id"]) for answer in answers if "id" in answer]
        if len(ids) < len(lines):
            errors = [answer["error"] for answer in answers if "error" in answer] or [ended.stderr.strip()]
            if ids:
                subprocess.run(_hq(self.server_dir, "job", "cancel", ",".join(ids)), capture_output=True)
            raise utils.FailedSubmissionError(errors[0])
        if ended.stderr.strip():
            logger.get_logger().warning(ended.stderr.strip())
        return ids

    def _description(self) -> Dict[str, Any]:
        """A line for `hq submit -`."""
        parameters = self.parameters
        stdout = _with_ids(f"{self.folder}/%j_%t_log.out", "%{JOB_ID}", "0")
        described: Dict[str, Any] = {
            "name": parameters.get("name", "submitit"),
            "command": ["bash", "-c", self._script()],
            "directives": "off",
            "env": _environment(os.environ),
            "stdout": stdout,
            "stderr": stdout.removesuffix("out") + "err",
            "cpus": str(parameters.get("cpus_per_task", 1) * self._num_tasks()),
            "time_limit": f"{60 * parameters.get('timeout_min', 5):.3f}s",
        }
        if self.max_num_timeout > 0:
            described.update(retries=self.max_num_timeout, retry_on=str(_REQUEUE_CODE))
        options = dict(parameters.get("options") or {})
        resources = list(options.pop("resource", ()))
        if parameters.get("mem_gb"):
            resources.append(f"mem={round(parameters['mem_gb'] * 1024)}MiB")
        if parameters.get("gpus_per_node"):
            resources.append(f"{parameters.get('gpu_resource', 'gpus/nvidia')}={parameters['gpus_per_node']}")
        if resources:
            described["resource"] = resources
        described.update(options)
        return described

    def _script(self) -> str:
        """Starts the function: once, or once for each of several tasks that share the node."""
        command = self._submitit_command_str
        count = self._num_tasks()
        limit, delay = 60 * self.parameters.get("timeout_min", 5), self.parameters.get("signal_delay_s", 90)
        with_stderr = not self.parameters.get("stderr_to_stdout")
        lines = [
            "rank=0",
            # Begun again after the loss of a node: what is there is what submitit reads.
            f"if [ -e {self._path('%j_%t_result.pkl')} ]; then echo 'the result is there' >&2; exit 0; fi",
            *(self.parameters.get("setup") or ()),
            # With a limit that is shorter than the delay, the signal would come before the start.
            f"export SUBMITIT_HQ_SIGNAL_AT=$(($(date +%s) + {int(max(1, limit - (delay if delay < limit else limit / 2)))}))",
            f"export SUBMITIT_EXECUTOR=hq SUBMITIT_HQ_TASKS={count} SUBMITIT_HQ_NODES=1 SUBMITIT_HQ_NODE=0 SUBMITIT_HQ_RANK=0",
            *([] if with_stderr else ["exec 2>&1"]),
        ]
        if count == 1:
            return "\n".join([*lines, f"exec {command}"])
        errors = f"2>{self._path('%j_%t_log.err')}" if with_stderr else "2>&1"
        return "\n".join(
            [
                *lines,
                f"for rank in $(seq 1 {count - 1}); do",
                f"    SUBMITIT_HQ_RANK=$rank {command} >{self._path('%j_%t_log.out')} {errors} &",
                "done",
                f"{command} &",
                "code=0",
                "for child in $(jobs -p); do",
                '    wait "$child" || code=$?',
                "done",
                "exit $code",
            ]
        )

    def _path(self, name: str) -> str:
        """A path in the folder, as a shell word; `$rank` is the rank of a task."""
        quoted = "'" + f"{self.folder}/{name}".replace("'", "'\"'\"'") + "'"
        return _with_ids(quoted, "'\"$HQ_JOB_ID\"'", "'\"$rank\"'")

    @property
    def _submitit_command_str(self) -> str:
        return f"{self.python} -u -m submitit.core._submit {shlex.quote(str(self.folder))}"

    def _num_tasks(self) -> int:
        return max(1, self.parameters.get("tasks_per_node", 1))


def _hq(server_dir: Optional[str], *args: str) -> List[str]:
    return ["hq", *([] if server_dir is None else ["--server-dir", server_dir]), *args]


def _environment(variables: Mapping[str, str]) -> Dict[str, str]:
    """Variables for jobs: all variables, as with `sbatch`, except machine-specific ones and variables that are not text."""
    return {
        name: value
        for name, value in variables.items()
        if name not in _OWN_VARIABLES and not name.startswith(_OWN_PREFIXES) and _is_text(name + value)
    }


def _is_text(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _with_ids(path: str, job_id: str, rank: str) -> str:
    """Fills in the placeholders of submitit in a path."""
    return path.replace("%j", job_id).replace("%A", job_id).replace("%t", rank)
