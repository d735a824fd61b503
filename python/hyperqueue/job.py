"""Jobs: tasks and the dependencies between them."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from .common import EnvType, GenericPath, ProgramArgs
from .ffi.protocol import JobDescription, ResourceRequest
from .output import Stdio, default_stderr, default_stdout
from .task.function import PythonFunction
from .task.program import ExternalProgram
from .task.task import Requests, Task

__all__ = ["Job", "ResourceRequest", "SubmittedJob"]


class Job:
    """Tasks that are submitted together."""

    def __init__(
        self,
        default_workdir: Optional[GenericPath] = None,
        max_fails: Optional[int] = 1,
        default_env: Optional[EnvType] = None,
        name: Optional[str] = None,
    ) -> None:
        self.tasks: List[Task] = []
        self.task_map: Dict[int, Task] = {}
        self.max_fails = max_fails
        self.default_workdir = None if default_workdir is None else os.path.abspath(os.fspath(default_workdir))
        self.default_env: EnvType = dict(default_env or {})
        self.name = name

    def task_by_id(self, id: int) -> Optional[Task]:
        return self.task_map.get(id)

    def program(
        self,
        args: ProgramArgs,
        *,
        env: Optional[EnvType] = None,
        cwd: Optional[GenericPath] = None,
        stdout: Stdio = default_stdout,
        stderr: Stdio = default_stderr,
        stdin: Union[str, bytes, None] = None,
        deps: Sequence[Task] = (),
        name: Optional[str] = None,
        task_dir: bool = False,
        priority: int = 0,
        resources: Requests = None,
        crash_limit: Optional[int] = None,
    ) -> ExternalProgram:
        """Adds a program."""
        task = ExternalProgram(
            len(self.tasks),
            args,
            env=self._env(env),
            cwd=self._cwd(cwd),
            stdout=stdout,
            stderr=stderr,
            stdin=stdin,
            deps=deps,
            name=name,
            task_dir=task_dir,
            priority=priority,
            resources=resources,
            crash_limit=crash_limit,
        )
        self._add(task)
        return task

    def function(
        self,
        fn: Callable[..., Any],
        *,
        args: Sequence[Any] = (),
        kwargs: Optional[Dict[str, Any]] = None,
        env: Optional[EnvType] = None,
        cwd: Optional[GenericPath] = None,
        stdout: Stdio = default_stdout,
        stderr: Stdio = default_stderr,
        deps: Sequence[Task] = (),
        name: Optional[str] = None,
        priority: int = 0,
        resources: Requests = None,
        crash_limit: Optional[int] = None,
    ) -> PythonFunction:
        """Adds a call of a function."""
        task = PythonFunction(
            len(self.tasks),
            fn,
            args=args,
            kwargs=kwargs,
            env=self._env(env),
            cwd=self._cwd(cwd),
            stdout=stdout,
            stderr=stderr,
            deps=deps,
            name=name,
            priority=priority,
            resources=resources,
            crash_limit=crash_limit,
        )
        self._add(task)
        return task

    def _env(self, env: Optional[EnvType]) -> EnvType:
        return {**self.default_env, **(env or {})}

    def _cwd(self, cwd: Optional[GenericPath]) -> Optional[GenericPath]:
        return self.default_workdir if cwd is None else cwd

    def _add(self, task: Task) -> None:
        self.tasks.append(task)
        self.task_map[task.task_id] = task

    def _build(self, client: Any) -> JobDescription:
        tasks = [task._build(client) for task in self.tasks]
        return JobDescription(tasks=tasks, name=self.name or "PyAPI job", max_fails=self.max_fails)


@dataclasses.dataclass
class SubmittedJob:
    """A job with the id that the server assigned."""

    job: Job
    id: int
