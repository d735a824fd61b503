from __future__ import annotations

import json
import math
import os
import subprocess
import time
import uuid
from typing import Any, Dict, List, Optional, Set, Tuple, Union

from toil.batchSystems.abstractBatchSystem import EXIT_STATUS_UNAVAILABLE_VALUE, BatchJobExitReason
from toil.batchSystems.abstractGridEngineBatchSystem import AbstractGridEngineBatchSystem
from toil.lib.misc import CalledProcessErrorStderr

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

#: Jobs in one question: more rows than `hq query` gives, or a longer statement than a process may be given, would lose some.
_ASKED_MAX = 1_000

#: Answer about a job: its exit code, and the reason of its end if known.
Ended = Union[int, Tuple[int, Optional[BatchJobExitReason]], None]


class HqBatchSystem(AbstractGridEngineBatchSystem):
    """Uses `hq submit -`, `hq query` and `hq job cancel`; the server is that of `$HQ_SERVER_DIR`, or the one that hq uses by itself."""

    class GridEngineThread(AbstractGridEngineBatchSystem.GridEngineThread):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            #: Marks of jobs whose submit was not answered so far.
            self._tried: Set[str] = set()

        def prepareSubmission(
            self,
            cpu: int,
            memory: int,
            walltime: int,
            jobID: int,
            command: str,
            jobName: str,
            job_environment: Optional[Dict[str, str]] = None,
            gpus: Optional[int] = None,
        ) -> Dict[str, Any]:
            """A line for `hq submit -`."""
            variables = {**os.environ, **self.boss.environment, **(job_environment or {})}
            described: Dict[str, Any] = {
                # Contains a random word, to find the job if the answer to its submit is lost.
                "name": f"toil {jobID} {jobName} {uuid.uuid4().hex[:12]}",
                "command": ["bash", "-c", f"exec {command}"],
                "directives": "off",
                "env": {
                    name: value
                    for name, value in variables.items()
                    if name not in _OWN_VARIABLES and not name.startswith(_OWN_PREFIXES) and _is_text(name + value)
                },
                "stdout": self._output(jobID, "out"),
                "stderr": self._output(jobID, "err"),
                "cpus": f"{max(cpu, 0.0001):.4f}",
            }
            options = self.boss.config
            resources = []
            if options.hq_memory and memory:
                resources.append(f"mem={math.ceil(memory / 2**20)}MiB")
            if gpus:
                resources.append(f"{options.hq_gpu_resource}={gpus}")
            if resources:
                described["resource"] = resources
            if walltime:
                described["time_limit"] = f"{walltime}s"
            return described

        def _output(self, job_id: int, stream: str) -> str:
            path = self.boss.format_std_out_err_path(job_id, "%{JOB_ID}", stream)
            return "none" if path == os.devnull else path

        def submitJob(self, subLine: Dict[str, Any]) -> str:
            # Toil calls this again after an error, when the server may have the job already.
            mark = subLine["name"].rpartition(" ")[2]
            if mark in self._tried:
                found = json.loads(_hq("--output-mode", "json", "query", f"SELECT id FROM jobs WHERE name LIKE '%{mark}'"))
                if found:
                    return str(found[0]["id"])
            self._tried.add(mark)
            job = str(json.loads(_hq("submit", "-", line=json.dumps(subLine)))["id"])
            self._tried.discard(mark)
            return job

        def getRunningJobIDs(self) -> Dict[int, float]:
            with self.runningJobsLock:
                ours = {str(self.batchJobIDs[job][0]): job for job in self.runningJobs}
            if not ours:
                return {}
            now = time.time()
            rows = _tasks(list(ours)).items()
            return {ours[job]: max(0.0, now - row["started_unix_ns"] / 1e9) for job, row in rows if row["state"] == "running"}

        def killJob(self, jobID: int) -> None:
            _hq("job", "cancel", self.getBatchSystemID(jobID))

        def getJobExitCode(self, batchJobID: str) -> Ended:
            return self.coalesce_job_exit_codes([batchJobID])[0]

        def coalesce_job_exit_codes(self, batch_job_id_list: List[str]) -> List[Ended]:
            rows = _tasks(batch_job_id_list)
            return [_ended(rows.get(job)) for job in batch_job_id_list]

    @classmethod
    def add_options(cls, parser: Any) -> None:
        parser.add_argument(
            "--hqGpuResource",
            dest="hq_gpu_resource",
            default="gpus/nvidia",
            env_var="TOIL_HQ_GPU_RESOURCE",
            help="Resource of hq's workers that GPUs of a job are asked for as. Default: %(default)s.",
        )
        parser.add_argument(
            "--hqIgnoreMemory",
            dest="hq_memory",
            action="store_false",
            default=True,
            help="Do not ask for the memory of a job, for workers that do not know theirs.",
        )

    @classmethod
    def setOptions(cls, setOption: Any) -> None:
        setOption("hq_gpu_resource")
        setOption("hq_memory")


def _tasks(jobs: List[str]) -> Dict[str, Dict[str, Any]]:
    """The only task of each job, by the job."""
    rows: Dict[str, Dict[str, Any]] = {}
    for begin in range(0, len(jobs), _ASKED_MAX):
        # A task that never began is in no row.
        statement = (
            "SELECT jobs.id AS job, exit_code, message, started_unix_ns, "
            "coalesce(state, CASE WHEN completed_unix_ns IS NULL THEN 'waiting' ELSE 'canceled' END) AS state "
            f"FROM jobs LEFT JOIN tasks ON tasks.job = jobs.id WHERE jobs.id IN ({','.join(jobs[begin : begin + _ASKED_MAX])})"
        )
        rows.update((str(row["job"]), row) for row in json.loads(_hq("--output-mode", "json", "query", statement)))
    return rows


def _is_text(value: str) -> bool:
    """Whether a variable can be in JSON."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _hq(*args: str, line: str = "") -> str:
    """Output of hq; after an error, Toil retries for `--statePollingTimeout`."""
    ended = subprocess.run(["hq", *args], input=line + "\n", capture_output=True, text=True)
    if ended.returncode != 0:
        raise CalledProcessErrorStderr(ended.returncode, ["hq", *args], stderr=ended.stderr + ended.stdout)
    return ended.stdout


def _ended(row: Optional[Dict[str, Any]]) -> Ended:
    if row is None:
        return EXIT_STATUS_UNAVAILABLE_VALUE, BatchJobExitReason.MISSING
    state = row["state"]
    if state in ("waiting", "running"):
        return None
    if state == "finished":
        return 0
    if state == "canceled":
        return EXIT_STATUS_UNAVAILABLE_VALUE, BatchJobExitReason.KILLED
    message = (row["message"] or "").lower()
    if "time limit" in message:
        reason = BatchJobExitReason.TIMELIMIT
    elif "memory" in message:
        reason = BatchJobExitReason.MEMLIMIT
    elif "worker" in message:
        reason = BatchJobExitReason.LOST
    else:
        reason = BatchJobExitReason.FAILED
    return row["exit_code"] or EXIT_STATUS_UNAVAILABLE_VALUE, reason
