"""Drives a server with a client that openapi-python-client has made of docs/openapi.yaml.

Usage: generated_client.py URL TOKEN DIRECTORY, with the folder of the package `hq_client` in PYTHONPATH.
"""

import sys

from hq_client import AuthenticatedClient
from hq_client.api.default import (
    get_jobs,
    get_jobs_job_tasks,
    get_jobs_job_wait,
    get_summary,
    post_jobs,
    post_jobs_open,
    post_jobs_job_close,
    post_jobs_job_tasks,
    post_jobs_job_cancel,
    post_workers_worker_stop,
)
from hq_client.models import Error, JobDescription


def main() -> None:
    url, token, directory = sys.argv[1:]
    client = AuthenticatedClient(base_url=url, token=token)

    def submit(description: dict, key: str) -> int:
        body = JobDescription.from_dict(description)
        answer = post_jobs.sync(client=client, body=body, submit_dir=directory, idempotency_key=key)
        assert not isinstance(answer, (Error, str)) and answer is not None, answer
        return answer.job

    task = {"stdout": "none", "stderr": "none"}
    graph = {
        "name": "graph",
        "task": [
            {"id": 1, "command": ["true"], **task},
            {"id": 2, "command": ["false"], "deps": [1], **task},
        ],
    }
    job = submit(graph, "graph")
    assert submit(graph, "graph") == job, "it is submitted once"
    ended = get_jobs_job_wait.sync(job, client=client, timeout_ms=60_000)
    assert ended.is_ended and ended.job.tasks.additional_properties["failed"] == 1, ended
    failed = get_jobs_job_tasks.sync(job, client=client, state="failed")
    assert [task.id for task in failed.tasks] == [2], failed
    opened = post_jobs_open.sync(client=client, name="bits", idempotency_key="open").job
    for number in (1, 2):
        more = JobDescription.from_dict({"task": [{"id": number, "command": ["true"], **task}]})
        answer = post_jobs_job_tasks.sync(opened, client=client, body=more, submit_dir=directory)
        assert answer.job == opened, answer
    assert post_jobs_job_close.sync(opened, client=client).closed
    assert get_jobs_job_wait.sync(opened, client=client, timeout_ms=60_000).job.tasks.additional_properties["finished"] == 2
    refused = post_jobs_job_tasks.sync(opened, client=client, body=more, submit_dir=directory)
    assert isinstance(refused, Error) and refused.kind == "conflict", refused
    array = {"array": {"ids": "1-1000", "command": ["sleep", "1000"], "request": [{"resources": {"cpus": 1}}], **task}}
    running = submit(array, "array")
    assert not get_jobs_job_wait.sync(running, client=client, timeout_ms=1).is_ended
    assert post_jobs_job_cancel.sync(running, client=client).canceled == 1000
    assert get_jobs_job_wait.sync(running, client=client, timeout_ms=60_000).is_ended
    assert [job.id for job in get_jobs.sync(client=client).jobs] == [running, opened, job]
    assert get_summary.sync(client=client).tasks.additional_properties["canceled"] == 1000
    wrong = JobDescription.from_dict({"task": [{"command": ["true"], "deps": [9]}]})
    refused = post_jobs.sync(client=client, body=wrong, submit_dir=directory)
    assert isinstance(refused, Error) and "Task 1" in refused.error, refused
    # The token may change jobs, but nothing else.
    refused = post_workers_worker_stop.sync(1, client=client)
    assert isinstance(refused, Error) and refused.kind == "forbidden", refused
    print("done")


main()
