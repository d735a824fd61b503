"""An executor of Snakemake: jobs are tasks of one job of an hq server, in interpreters that have Snakemake imported already."""

# Snakemake reads the types of settings: annotations must not become texts.

import os
import re
import shlex
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, AsyncGenerator, Dict, List, Optional

import hq
from hq._bridge import Bridge
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from . import _request, _warm

#: Longest name of a directory made of the wildcards of a job.
_NAME_MAX = 100
#: Seconds after which jobs are looked at though nothing was heard of them.
_LOOK_AGAIN = 30.0

_ID = re.compile(r"(\d+)[.@](\d+) \((.*)\)")


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    server_dir: Optional[str] = field(
        default=None,
        metadata={"help": "Directory of the hq server. Default: $HQ_SERVER_DIR, or the directory that hq uses by itself."},
    )
    job_name: str = field(default="snakemake", metadata={"help": "Name of the job of hq whose tasks the jobs of a workflow are."})
    cold: bool = field(
        default=False,
        metadata={
            "help": "Start Python and Snakemake for each job, instead of copying an interpreter that has them in memory. Costs "
            "some two seconds of processor time a job."
        },
    )
    preload: Optional[str] = field(
        default=None,
        metadata={
            "help": "Modules that the workflow imports, separated by commas: imported once in each interpreter. They must not "
            "start threads when they are imported."
        },
    )
    prologue: Optional[str] = field(
        default=None,
        metadata={"help": "Lines for a shell ahead of Python on workers, such as 'module load python'."},
    )
    gpu_resource: str = field(
        default="gpus/nvidia",
        metadata={"help": "Resource of hq that the resource gpu of jobs asks for."},
    )
    ignore_memory: bool = field(
        default=False,
        metadata={"help": "Do not ask for memory (mem_mb); for workers that do not know how much they have."},
    )
    crash_limit: int = field(
        default=5,
        metadata={"help": "How often the worker of a job may be lost before the job fails; 0 = any number of times."},
    )
    logdir: Path = field(
        default=Path(".snakemake/hq_logs"),
        metadata={"help": "Directory for a file with what each job prints."},
    )
    keep_successful_logs: bool = field(
        default=False,
        metadata={"help": "Also keep these files of successful jobs."},
    )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    # Passed with the command: a warm interpreter has no shell to export them.
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
)


class Executor(RemoteExecutor):
    def __init__(self, workflow: Any, logger: Any) -> None:
        # Ahead of the thread that the base class starts.
        self._changed = threading.Event()
        self._futures: Dict[Any, Any] = {}
        self._earlier: Dict[int, hq.Executor] = {}
        super().__init__(workflow, logger)

    def __post_init__(self) -> None:
        settings = self.workflow.executor_settings
        if self.workflow.remote_execution_settings.immediate_submit:
            raise WorkflowError("--immediate-submit cannot be used with the executor hq: leave it out, jobs are submitted in time.")
        self._cwd = os.path.abspath(self.workflow.workdir_init)
        self._logdir = os.path.join(self._cwd, settings.logdir)
        self._modules = [name.strip() for name in (settings.preload or "").split(",") if name.strip()]
        try:
            self._bridge = Bridge(server_dir=settings.server_dir or os.environ.get("HQ_SERVER_DIR"))
        except hq.HqError as error:
            raise WorkflowError(f"The hq server cannot be used: {error}") from error
        self._hq = hq.Executor(
            bridge=self._bridge,
            name=settings.job_name,
            env=_request.environment(os.environ),
            python=self.get_python_executable(),
            prologue=settings.prologue,
            crash_limit=settings.crash_limit,
            output=None,
        )
        if self.workflow.dag_settings.force_incomplete:
            self._cancel_earlier()
        self.logger.info(f"Jobs of this workflow are tasks of job {self._hq.job} of hq.")

    # ---- jobs are handed over

    def run_jobs(self, jobs: List[JobExecutorInterface]) -> None:
        started = []
        for job in jobs:
            self.run_job_pre(job)
            started.append(self._start(job))
        for info in started:
            self._register(info)

    def run_job(self, job: JobExecutorInterface) -> None:
        self._register(self._start(job))

    def _start(self, job: JobExecutorInterface) -> SubmittedJobInfo:
        resumed = self._resume(job)
        if resumed is not None:
            return resumed
        settings = self.workflow.executor_settings
        options = _request.options(job, settings.gpu_resource, not settings.ignore_memory)
        is_spread = "nodes" in options["resources"]
        command = self.format_job_exec(job)
        ahead, found, arguments = command.partition(f"{self.get_python_executable()} -m snakemake ")
        log = os.path.join(self._logdir, *_place(job))
        if settings.cold or is_spread or ahead.strip() or not found:
            os.makedirs(log, exist_ok=True)
            future = self._hq.program(
                ["bash", "-c", command],
                cwd=self._cwd,
                env=self.envvars(),
                stdout=os.path.join(log, "%{JOB_ID}.%{TASK_ID}.log"),
                stderr=os.path.join(log, "%{JOB_ID}.%{TASK_ID}.log"),
                **options,
            )
        else:
            words = shlex.split(arguments)
            if job.is_group():
                # No more at a time than the group asked for, instead of as many as the node has cpus.
                words[words.index("--cores") + 1] = str(_request.cpus(job))
            elif "--scheduler" in words:
                # One job is not worth the start of a solver.
                words[words.index("--scheduler") + 1] = "greedy"
            call = self._hq.options(**options)
            future = call.submit(_warm.run, words, self._cwd, self.envvars(), log, self._modules, self._bridge.info["server_uid"])
        return SubmittedJobInfo(job, aux={"future": future, "log": log, "job": self._hq.job})

    def _register(self, info: SubmittedJobInfo) -> None:
        future = info.aux["future"]
        # The thread that hands calls over gives them their ids, in no time.
        while future.task is None and not future.done():
            time.sleep(0.0005)
        if future.task is not None:
            info.external_jobid = f"{info.aux['job']}.{future.task} ({self._bridge.info['server_uid']})"
            info.aux["log"] = os.path.join(info.aux["log"], f"{info.aux['job']}.{future.task}.log")
        with self.lock:
            self._futures[id(info)] = future
        self.report_job_submission(info)
        future.add_done_callback(lambda _: self._changed.set())

    def _resume(self, job: JobExecutorInterface) -> Optional[SubmittedJobInfo]:
        """The task that an earlier Snakemake, which was killed, has submitted for the job and that was not lost; one that failed
        is not worth it."""
        text = self.dag.incomplete_external_jobid(job)
        future = self._earlier_future(text)
        if future is None or future.done() and (future.cancelled() or future.exception() is not None):
            return None
        self.logger.info(f"Job {job.jobid} goes on as task {text} of hq.")
        number = int(_ID.fullmatch(text)[1])
        return SubmittedJobInfo(job, aux={"future": future, "log": os.path.join(self._logdir, *_place(job)), "job": number})

    def _cancel_earlier(self) -> None:
        """Ends what an earlier Snakemake has left running and is to be done again: both would write the same files."""
        for job in self.dag.needrun_jobs():
            for text in self.workflow.persistence.external_jobids(job):
                future = self._earlier_future(text)
                if future is not None and future.cancel():
                    self.logger.info(f"Task {text} of hq, of an earlier run, was canceled.")

    def _earlier_future(self, text: Optional[str]) -> Optional[Any]:
        match = _ID.fullmatch(text or "")
        if match is None or match[3] != self._bridge.info["server_uid"]:
            return None
        number = int(match[1])
        if number == self._hq.job:
            return None
        try:
            if number not in self._earlier:
                self._earlier[number] = hq.Executor.attach(number, bridge=self._bridge)
        except hq.HqError:
            return None
        return self._earlier[number].futures.get(int(match[2]))

    # ---- what becomes of them

    async def check_active_jobs(self, active_jobs: List[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        for info in active_jobs:
            future = info.aux["future"]
            if not future.done():
                yield info
                continue
            with self.lock:
                self._futures.pop(id(info), None)
            if future.cancelled():
                self._report_failed(info, "was canceled")
                continue
            error = future.exception()
            if isinstance(error, hq.ServerGone):
                # Not the job's failure: it may go on, and the next Snakemake with it.
                raise WorkflowError(f"The hq server cannot be reached any more: {error}")
            if error is not None:
                self._report_failed(info, f"failed: {error}")
                continue
            if not self.workflow.executor_settings.keep_successful_logs:
                _remove(info.aux["log"])
            self.report_job_success(info)

    def _report_failed(self, info: SubmittedJobInfo, how: str) -> None:
        logs = [info.aux["log"]] if os.path.isfile(info.aux["log"]) else []
        self.report_job_error(info, msg=f"Task {info.external_jobid} of hq {how}. ", aux_logs=logs)

    async def sleep(self) -> None:
        # Nothing else is done by this thread, so that it may wait until something happens.
        self._changed.wait(_LOOK_AGAIN)
        self._changed.clear()

    def cancel_jobs(self, active_jobs: List[SubmittedJobInfo]) -> None:
        # All jobs, not only the given ones: other threads are querying the rest.
        with self.lock:
            futures = list(self._futures.values())
        for future in futures:
            future.cancel()

    def shutdown(self) -> None:
        with self.lock:
            self.wait = False
        self._changed.set()
        super().shutdown()
        for executor in (*self._earlier.values(), self._hq):
            executor.shutdown()
        self._bridge.close()
        _remove_empty(self._logdir)


def _place(job: Any) -> List[str]:
    """Directories of the log of a job, below that of all logs."""
    if job.is_group():
        return [f"group_{job.name}"[:_NAME_MAX]]
    wildcards = "_".join(job.wildcards).replace("/", "_")
    return [f"rule_{job.name}", *([wildcards[:_NAME_MAX]] if wildcards else [])]


def _remove(log: str) -> None:
    """Removes a log. Its directories stay as long as jobs run: another one may be about to write there."""
    try:
        os.unlink(log)
    except OSError:
        pass


def _remove_empty(directory: str) -> None:
    """Removes a directory and those below it, as far as nothing is in them."""
    for place, _, _ in os.walk(directory, topdown=False):
        try:
            os.rmdir(place)
        except OSError:
            pass
