"""Interpreter on workers: a job of Snakemake in a copy of an interpreter that has Snakemake imported already.

`python -m snakemake` spends most of the time of a short job on its own imports and on looking for plugins. An interpreter that
did both once forks for each job: the job has the memory, the working directory, the modules and the environment of a process
of its own, and ends with it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import traceback
from typing import Any, Dict, List, Sequence

#: What Snakemake imports only when it has a workflow.
_LATE = (
    "snakemake.api",
    "snakemake.assets",
    "snakemake.profiles",
    "snakemake.report.html_reporter",
    "snakemake.scheduling.greedy",
    "snakemake.scheduling.job_scheduler",
    "snakemake.scheduling.milp",
    "snakemake.storage",
    "pulp",
    "requests",
    "smart_open",
)

#: `PR_SET_PDEATHSIG` of Linux.
_DEATH_SIGNAL = 1

_imported: List[str] = []


class JobFailed(Exception):
    """A job of Snakemake ended with another exit code than 0, or by a signal."""


def run(argv: Sequence[str], cwd: str, env: Dict[str, str], log: str, modules: Sequence[str], server_uid: str) -> None:
    """Runs `snakemake` with these arguments and waits for it.

    :param env: variables of this job alone.
    :param log: directory in which a file with what it writes is made, named after the task.
    :param modules: what is imported, besides Snakemake, ahead of the first job of this interpreter.
    """
    _prepare(modules)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _child(parent, argv, cwd, env, log, server_uid)
    try:
        _, status = os.waitpid(pid, 0)
    except KeyboardInterrupt:
        # The job must end. The job and its programs got the signal as well, because they are one process group. It has until the worker
        # kills the group.
        os.waitpid(pid, 0)
        raise
    if os.WIFSIGNALED(status):
        raise JobFailed(f"Snakemake was ended by signal {os.WTERMSIG(status)}")
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        raise JobFailed(f"Snakemake ended with exit code {code}")


def _prepare(modules: Sequence[str]) -> None:
    wanted = [name for name in (*_LATE, *modules) if name not in _imported]
    if not wanted:
        return
    import snakemake.cli

    if not _imported:
        # Finds and registers all plugins, which takes longer than a short job.
        snakemake.cli.get_argument_parser()
    for name in wanted:
        try:
            importlib.import_module(name)
        except ImportError:
            # Another version of Snakemake; or the job will say so itself.
            pass
        _imported.append(name)


def _child(parent: int, argv: Sequence[str], cwd: str, env: Dict[str, str], log: str, server_uid: str) -> None:
    code = 1
    try:
        # No process would reap children that outlive the interpreter.
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.chdir(cwd)
        _write_to(log)
        os.environ.update(env)
        sys.argv[:] = ["snakemake", *argv]
        _keep_id(f"{os.environ['HQ_JOB_ID']}.{os.environ['HQ_TASK_ID']} ({server_uid})")
        import snakemake.cli

        # Ends by `SystemExit`.
        snakemake.cli.main(list(argv))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _keep_id(task: str) -> None:
    """Has Snakemake note the task in its records of incomplete files. It writes them again when the job begins, and would leave out
    what the Snakemake that submitted it has noted: one that is started after that was killed could not go on with the task."""
    from snakemake_interface_executor_plugins.executors.real import RealExecutor

    report = RealExecutor.report_job_submission

    def report_with_id(self: Any, job_info: Any, register_job: bool = True) -> None:
        job_info.external_jobid = task
        report(self, job_info, register_job=register_job)

    RealExecutor.report_job_submission = report_with_id  # type: ignore[method-assign]


def _write_to(log: str) -> None:
    os.makedirs(log, exist_ok=True)
    path = os.path.join(log, f"{os.environ['HQ_JOB_ID']}.{os.environ['HQ_TASK_ID']}.log")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
