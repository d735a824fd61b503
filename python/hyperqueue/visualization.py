"""Draws task graphs of jobs."""

from __future__ import annotations

import re
from typing import Dict

from .common import GenericPath
from .job import Job
from .utils.package import MissingPackageException


def visualize_job(job: Job, path: GenericPath) -> None:
    """Writes the task graph of a job as DOT."""
    try:
        import pydot
    except ImportError:
        raise MissingPackageException("pydot") from None
    graph = pydot.Dot("job", graph_type="digraph")
    names = _names(job)
    for task in job.tasks:
        graph.add_node(pydot.Node(names[task.task_id]))
        for dependency in task.dependencies:
            graph.add_edge(pydot.Edge(names[dependency.task_id], names[task.task_id]))
    with open(path, "w", encoding="utf-8") as file:
        file.write(graph.to_string())


def _names(job: Job) -> Dict[int, str]:
    """Returns the names of nodes: the labels of tasks, with the id if another task has the same label."""
    names: Dict[int, str] = {}
    taken = set()
    for task in job.tasks:
        label = task.label if task.label not in taken else f"{task.label} ({task.task_id})"
        taken.add(label)
        # DOT or pydot would not read other labels as a plain name.
        is_plain = re.fullmatch(r"[A-Za-z_]\w*|\d+", label, re.ASCII)
        text = label.replace("\\", "\\\\").replace('"', '\\"')
        names[task.task_id] = label if is_plain else f'"{text}"'
    return names
