"""Descriptions of jobs as they are sent."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, Dict, List, Optional, Sequence, Union

Amount = Union[int, float, str]


class ResourceRequest:
    """The resource request of a task. Amounts may be texts, as on the command line: ``"2 compact!"``, ``"all"``."""

    def __init__(
        self,
        *,
        n_nodes: int = 0,
        cpus: Amount = 1,
        resources: Optional[Dict[str, Amount]] = None,
        min_time: Optional[datetime.timedelta] = None,
    ) -> None:
        self.n_nodes = n_nodes
        self.resources: Dict[str, Amount] = dict(resources or {})
        self.resources["cpus"] = cpus
        self.min_time = min_time

    def __repr__(self) -> str:
        return f"ResourceRequest(n_nodes={self.n_nodes}, resources={self.resources}, min_time={self.min_time})"

    def spec(self) -> Dict[str, Any]:
        return {
            "n_nodes": self.n_nodes,
            "resources": {} if self.n_nodes else {name: str(amount) for name, amount in self.resources.items()},
            "min_time": self.min_time.total_seconds() if self.min_time else 0.0,
        }


@dataclasses.dataclass
class TaskDescription:
    """One task."""

    id: int
    args: List[str]
    env: Dict[str, str]
    cwd: Optional[str] = None
    stdout: Optional[Dict[str, Any]] = None
    stderr: Optional[Dict[str, Any]] = None
    stdin: Optional[bytes] = None
    dependencies: Sequence[int] = ()
    task_dir: bool = False
    priority: int = 0
    resource_request: Sequence[ResourceRequest] = ()
    crash_limit: Optional[int] = None

    def template(self) -> Dict[str, Any]:
        """Returns the task in the form for the bridge, without its id, its dependencies and its input."""
        spec: Dict[str, Any] = {
            "args": self.args,
            "env": self.env,
            "cwd": self.cwd,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "task_dir": self.task_dir,
            "priority": self.priority,
            "requests": [request.spec() for request in self.resource_request],
        }
        if self.crash_limit is not None:
            spec["crash_limit"] = self.crash_limit
        return spec


@dataclasses.dataclass
class JobDescription:
    """A job with its tasks."""

    tasks: List[TaskDescription]
    name: str = "PyAPI job"
    max_fails: Optional[int] = 1
