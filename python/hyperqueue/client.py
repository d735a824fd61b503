"""Submits jobs and waits for them."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, Dict, List, Optional, Sequence, Union

from .common import GenericPath
from .ffi.client import ClientConnection
from .job import Job, SubmittedJob
from .task.function import PythonEnv

_FAILED_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class FailedTaskContext:
    """The error and output files of a failed task."""

    error: str
    cwd: Optional[str] = None
    stdout: Optional[str] = None
    stderr: Optional[str] = None


FailedTasks = Dict[int, FailedTaskContext]


class FailedJobsException(Exception):
    """Tasks of jobs that were waited for have failed, or were canceled or aborted."""

    def __init__(self, failed_tasks: Dict[int, FailedTasks], job_map: Dict[int, SubmittedJob]) -> None:
        super().__init__(failed_tasks, job_map)
        self.failed_tasks = failed_tasks
        self.job_map = job_map

    def __str__(self) -> str:
        lines = []
        for job, tasks in self.failed_tasks.items():
            lines.append(f"The following tasks of job `{job}` have failed:")
            for task, context in list(tasks.items())[:_FAILED_SHOWN]:
                lines.extend(_describe(self._label(job, task), task, context))
            if len(tasks) > _FAILED_SHOWN:
                lines.append(f"... and {len(tasks) - _FAILED_SHOWN} more")
        return "\n".join(lines)

    def _label(self, job: int, task: int) -> str:
        submitted = self.job_map.get(job)
        known = submitted.job.task_by_id(task) if submitted is not None else None
        return known.label if known is not None else str(task)


def _describe(label: str, task: int, context: FailedTaskContext) -> List[str]:
    lines = [f"Task {label} (id={task}):", context.error]
    known = [("Working directory", context.cwd), ("Stdout", context.stdout), ("Stderr", context.stderr)]
    if any(path is not None for _, path in known):
        lines.append("You can find more information here:")
        lines.extend(f"{what}: {path}" for what, path in known if path is not None)
    return lines


class Client:
    """A connection to a server."""

    def __init__(self, server_dir: Optional[GenericPath] = None, python_env: Optional[PythonEnv] = None) -> None:
        self.connection = ClientConnection(server_dir)
        self.python_env = python_env or PythonEnv()

    def submit(self, job: Job) -> SubmittedJob:
        if not job.tasks:
            raise Exception("Submitted job must have at least a single task")
        number = self.connection.submit_job(job._build(self))
        logging.info(f"Submitted job {number} with {len(job.tasks)} tasks")
        return SubmittedJob(job=job, id=number)

    def wait_for_jobs(self, jobs: Sequence[SubmittedJob], raise_on_error: bool = True) -> bool:
        jobs = [jobs] if isinstance(jobs, SubmittedJob) else list(jobs)
        ids = [job.id for job in jobs]
        with _Bar(sum(len(job.job.tasks) for job in jobs), len(jobs)) as bar:
            failed = self.connection.wait_for_jobs(ids, bar.update)
        if not failed:
            return True
        if not raise_on_error:
            return False
        contexts = {
            job: {task: FailedTaskContext(**_filled(row)) for task, row in tasks.items()}
            for job, tasks in self.connection.get_failed_tasks(failed).items()
        }
        raise FailedJobsException(contexts, {job.id: job for job in jobs})

    def get_failed_tasks(self, job: SubmittedJob) -> FailedTasks:
        rows = self.connection.get_failed_tasks([job.id]).get(job.id, {})
        return {task: FailedTaskContext(**_filled(row)) for task, row in rows.items()}

    def forget(self, job: Union[SubmittedJob, int]) -> None:
        if isinstance(job, SubmittedJob):
            job = job.id
        elif not isinstance(job, int) or isinstance(job, bool):
            raise ValueError(f"a submitted job or the id of a job is expected, found {type(job).__name__}")
        self.connection.forget_job(job)


def _filled(row: Dict[str, Any]) -> Dict[str, Any]:
    return {**row, "error": row.get("error") or ""}


class _Bar:
    """Shows the progress of tasks if tqdm is installed."""

    def __init__(self, tasks: int, jobs: int) -> None:
        self.jobs = jobs
        self.bar: Any = None
        try:
            from tqdm import tqdm
        except ImportError:
            return
        self.bar = tqdm(total=tasks, unit="task")

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self, jobs: Dict[int, Dict[str, Any]]) -> None:
        if self.bar is None:
            return
        ended = sum(job["finished"] + job["failed"] for job in jobs.values())
        completed = sum(bool(job["completed"]) for job in jobs.values())
        self.bar.n = ended
        self.bar.set_postfix_str(f"{completed}/{self.jobs} jobs completed")
        self.bar.refresh()
