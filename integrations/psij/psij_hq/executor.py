"""An executor of PSI/J: its jobs are jobs of an hq server."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import IO, Collection, Dict, List, Optional

from psij import Job, JobState, JobStatus, SubmitException
from psij.executors.batch.batch_scheduler_executor import BatchSchedulerExecutor, BatchSchedulerExecutorConfig, check_status_exit_code

#: States of the only task of a job, by precedence.
_STATES = {
    "failed": JobState.FAILED,
    "aborted": JobState.FAILED,
    "canceled": JobState.CANCELED,
    "finished": JobState.COMPLETED,
    "running": JobState.ACTIVE,
    "waiting": JobState.QUEUED,
}


class HqExecutorConfig(BatchSchedulerExecutorConfig):
    """Configuration; the server is that of `$HQ_SERVER_DIR`, or the one that hq uses by itself."""


class HqJobExecutor(BatchSchedulerExecutor):
    """Uses `hq submit`, `hq job info` and `hq job cancel`.

    Custom attributes that begin with `hq.` are options of `hq submit`: ``{"hq.priority": "3"}``.
    """

    def __init__(self, url: Optional[str] = None, config: Optional[HqExecutorConfig] = None):
        super().__init__(url=url, config=config or HqExecutorConfig())

    def generate_submit_script(self, job: Job, context: Dict[str, object], submit_file: IO[str]) -> None:
        spec = job.spec
        assert spec is not None
        psij = context["psij"]
        assert isinstance(psij, dict)
        base = f"{shlex.quote(psij['script_dir'])}/$HQ_JOB_ID"
        processes = _processes_per_node(job)
        lines = ["#!/bin/bash", f'exec >>{base}.out 2>&1 </dev/null || exit 1']
        lines += [f"export {name}={shlex.quote(str(value))}" for name, value in (spec.environment or {}).items()]
        lines += [
            # A line for each process, also where one node runs several.
            f'export PSIJ_NODEFILE={base}.nodefile',
            'cat "${HQ_NODE_FILE:-/proc/sys/kernel/hostname}" | while read -r node; do',
            f'    for _ in $(seq {processes}); do echo "$node"; done',
            'done >"$PSIJ_NODEFILE"',
            shlex.join(psij["launch_command"]),
            "code=$?",
            f"echo $code >{base}.ec",
            "exit $code",
        ]
        submit_file.write("\n".join(lines) + "\n")

    def get_submit_command(self, job: Job, submit_file_path: Path) -> List[str]:
        spec = job.spec
        assert spec is not None
        options = ["--stdout=none", "--stderr=none"]
        if spec.name:
            options.append(f"--name={spec.name}")
        if spec.directory:
            options.append(f"--cwd={spec.directory}")
        options += _resource_options(job)
        attributes = spec.attributes
        if attributes is not None:
            if attributes.duration is not None:
                options.append(f"--time-limit={attributes.duration.total_seconds():.3f}s")
            for name, value in (attributes.custom_attributes or {}).items():
                if name.startswith("hq."):
                    options.append(f"--{name[3:]}={value}")
        return ["hq", "--output-mode", "quiet", "submit", *options, "--", "bash", str(submit_file_path.absolute())]

    def job_id_from_submit_output(self, out: str) -> str:
        return out.strip()

    def get_cancel_command(self, native_id: str) -> List[str]:
        return ["hq", "job", "cancel", native_id]

    def process_cancel_command_output(self, exit_code: int, out: str) -> None:
        # One that has ended is no error for hq.
        raise SubmitException(f"hq job cancel ended with {exit_code}: {out.strip()}")

    def get_status_command(self, native_ids: Collection[str]) -> List[str]:
        return ["hq", "--output-mode", "json", "job", "info", ",".join(native_ids)]

    def parse_status_output(self, exit_code: int, out: str) -> Dict[str, JobStatus]:
        check_status_exit_code("hq job info", exit_code, out)
        statuses = {}
        for job in json.loads(out):
            if job is None:
                continue
            counts = job["info"]["task_stats"]
            state = next((state for name, state in _STATES.items() if counts[name] > 0), JobState.QUEUED)
            statuses[str(job["info"]["id"])] = JobStatus(state)
        return statuses

    def get_list_command(self) -> List[str]:
        return ["hq", "--output-mode", "quiet", "job", "list"]

    def parse_list_output(self, out: str) -> List[str]:
        return [line.split()[0] for line in out.splitlines() if line.strip()]

    def _clean_submit_script(self, job: Job) -> None:
        super()._clean_submit_script(job)
        self._delete_aux_file(job, ".nodefile")


def _processes_per_node(job: Job) -> int:
    resources = job.spec.resources if job.spec else None
    if resources is None:
        return 1
    return getattr(resources, "computed_processes_per_node", None) or 1


def _resource_options(job: Job) -> List[str]:
    resources = job.spec.resources if job.spec else None
    if resources is None:
        return []
    nodes = getattr(resources, "computed_node_count", None) or 1
    if nodes > 1 or getattr(resources, "exclusive_node_use", False):
        return [f"--nodes={nodes}"]
    processes = _processes_per_node(job)
    options = [f"--cpus={processes * (getattr(resources, 'cpu_cores_per_process', None) or 1)}"]
    memory = getattr(resources, "memory", None)
    if memory:
        options.append(f"--resource=mem={-(-memory // 2**20)}MiB")
    gpus = getattr(resources, "gpu_cores_per_process", None)
    if gpus:
        options.append(f"--resource=gpus/nvidia={processes * gpus}")
    return options
