"""The connection to a server."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Optional, Sequence

from hq._bridge import Bridge
from hq.errors import HqError

from .protocol import JobDescription

Progress = Callable[[Dict[int, Dict[str, Any]]], None]


def locate(server_dir: Any) -> Optional[str]:
    """Returns the server directory. The directory of its current instance, inside it, is accepted as well."""
    if server_dir is None:
        return None
    path: str = os.path.expanduser(os.fspath(server_dir))
    is_instance = os.path.exists(os.path.join(path, "access.json"))
    if is_instance and not os.path.exists(os.path.join(path, "hq-current")):
        parent: str = os.path.dirname(os.path.abspath(path))
        return parent
    return path


class ClientConnection:
    """Requests to a server."""

    def __init__(self, server_dir: Any = None) -> None:
        self._bridge_dir = locate(server_dir)
        self._bridge = Bridge(server_dir=self._bridge_dir)

    def submit_job(self, description: JobDescription) -> int:
        templates: List[Dict[str, Any]] = []
        stdin: List[int] = []
        blobs: List[bytes] = []
        known: Dict[Any, int] = {}
        tasks = []
        for task in description.tasks:
            template = task.template()
            key = (json.dumps(template, sort_keys=True), task.stdin)
            number = known.get(key)
            if number is None:
                number = known[key] = len(templates)
                templates.append(template)
                stdin.append(-1 if task.stdin is None else len(task.stdin))
                blobs.append(task.stdin or b"")
            # Naming a dependency twice is not a mistake.
            tasks.append({"id": task.id, "template": number, "deps": sorted(set(task.dependencies))})
        question = {
            "what": "graph",
            "name": description.name,
            "max_fails": description.max_fails,
            "templates": templates,
            "stdin": stdin,
            "tasks": tasks,
            "dir": os.getcwd(),
        }
        return int(self._bridge.ask(question, b"".join(blobs)))

    def wait_for_jobs(self, job_ids: Sequence[int], callback: Optional[Progress] = None) -> List[int]:
        """Returns the ids of the jobs with a failed, canceled or aborted task."""

        def told(jobs: Dict[str, Dict[str, Any]]) -> None:
            if callback is not None:
                callback({int(job): _row(row) for job, row in jobs.items()})

        ids = list(job_ids)
        if not ids:
            return []
        jobs = self._bridge.ask({"what": "wait", "jobs": ids}, progress=told)
        told(jobs)
        bad = [int(job) for job, row in jobs.items() if row["failed"] or row["canceled"] or row["aborted"]]
        return sorted(bad)

    def get_failed_tasks(self, job_ids: Sequence[int]) -> Dict[int, Dict[int, Dict[str, Any]]]:
        failed = {}
        for job in job_ids:
            rows = self._bridge.ask({"what": "failed", "job": job})
            failed[job] = {row.pop("id"): row for row in rows}
        return failed

    def forget_job(self, job_id: int) -> None:
        if not self._bridge.ask({"what": "forget", "job": job_id}):
            raise HqError(
                f"Cannot forget job {job_id}. It either hasn't been completed yet, or it does not exist"
            )

    def stop_server(self) -> None:
        self._bridge.ask({"what": "stop_server"})

    def close(self) -> None:
        self._bridge.close()


def _row(row: Dict[str, Any]) -> Dict[str, Any]:
    return {name: row[name] for name in ("finished", "failed", "total", "completed")}
