"""The base class of all kinds of tasks."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional, Sequence, Union

from ..common import EnvType, GenericPath
from ..ffi.protocol import ResourceRequest, TaskDescription
from ..output import Output, Stdio, check_stdio, gather_outputs, render, stdio_spec

Requests = Optional[Union[ResourceRequest, Sequence[ResourceRequest]]]


class Task:
    """A task of a job."""

    def __init__(
        self,
        task_id: int,
        *,
        args: Sequence[Any] = (),
        env: Optional[EnvType] = None,
        cwd: Optional[GenericPath] = None,
        stdout: Stdio = None,
        stderr: Stdio = None,
        deps: Sequence["Task"] = (),
        name: Optional[str] = None,
        task_dir: bool = False,
        priority: int = 0,
        resources: Requests = None,
        crash_limit: Optional[int] = None,
    ) -> None:
        check_stdio(stdout, "stdout")
        check_stdio(stderr, "stderr")
        self.task_id = task_id
        self.env: Dict[str, Any] = dict(env or {})
        self.cwd = None if cwd is None else os.fspath(cwd)
        self.stdout = stdout
        self.stderr = stderr
        self.dependencies = list(deps)
        self.name = name
        self.task_dir = task_dir
        self.priority = priority
        self.crash_limit = crash_limit
        if resources is None:
            self.resources: Sequence[ResourceRequest] = ()
        elif isinstance(resources, ResourceRequest):
            self.resources = (resources,)
        else:
            self.resources = tuple(resources)
        self.outputs = gather_outputs(args, self.env)

    @property
    def label(self) -> str:
        return self.name or str(self.task_id)

    def __getitem__(self, name: str) -> Output:
        try:
            return self.outputs[name]
        except KeyError:
            raise Exception(f"Output `{name}` not found in {self!r}") from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.task_id}, label={self.label!r})"

    def _build(self, client: Any) -> TaskDescription:
        raise NotImplementedError

    def _describe(self, args: Sequence[Any], stdin: Optional[bytes]) -> TaskDescription:
        return TaskDescription(
            id=self.task_id,
            args=[render(arg) for arg in args],
            env={name: str(render(value)) for name, value in self.env.items()},
            cwd=self.cwd,
            stdout=stdio_spec(self.stdout, "stdout"),
            stderr=stdio_spec(self.stderr, "stderr"),
            stdin=stdin,
            dependencies=[task.task_id for task in self.dependencies],
            task_dir=self.task_dir,
            priority=self.priority,
            resource_request=self.resources,
            crash_limit=self.crash_limit,
        )
