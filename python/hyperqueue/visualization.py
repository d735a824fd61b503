"""Pictures of jobs."""

from __future__ import annotations

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
    for task in job.tasks:
        graph.add_node(pydot.Node(str(task.task_id), label=f'"{task.label}"'))
    for task in job.tasks:
        for dependency in task.dependencies:
            graph.add_edge(pydot.Edge(str(dependency.task_id), str(task.task_id)))
    with open(path, "w", encoding="utf-8") as file:
        file.write(graph.to_string())
