from __future__ import annotations

import asyncio
import base64
import json
import shlex
import time
import uuid
from collections.abc import Collection, MutableMapping, MutableSequence
from importlib.resources import files
from typing import Any, cast

from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.deployment.connector.queue_manager import QueueManagerConnector, QueueManagerService

#: So long the server may be away, for a restart.
_OUTAGE_S = 300
#: Seconds between two attempts meanwhile.
_PAUSE_S = 1
#: Attempts to submit, between which the server is there.
_ATTEMPTS_MAX = 3
#: Jobs in one question: more rows than `hq query` gives, or a longer command than a process may be given, would lose some.
_ASKED_MAX = 1_000
#: The script comes as standard input, of any length; the command gets another one.
_RUN_SCRIPT = 'script=$(cat); exec < "$0"; eval "$script"'


class HqService(QueueManagerService):
    """Options of `hq submit`."""

    def __init__(
        self,
        file: str | None = None,
        cpus: int | str | None = None,
        resource: MutableMapping[str, int | str] | None = None,
        options: MutableSequence[str] | None = None,
    ) -> None:
        super().__init__(file)
        words = [] if cpus is None else [f"--cpus={cpus}"]
        words += [f"--resource={name}={amount}" for name, amount in (resource or {}).items()]
        self.words: list[str] = [*words, *(options or [])]


class HqConnector(QueueManagerConnector):
    """Runs commands as jobs; `hq` is that of the wrapped location, and so is the server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows: dict[str, dict[str, Any]] = {}
        self._asking = asyncio.Lock()
        self._asked = 0.0

    @classmethod
    def get_schema(cls) -> str:
        return files(__package__).joinpath("hq.json").read_text("utf-8")

    @property
    def _service_class(self) -> type[QueueManagerService]:
        return HqService

    async def _hq(self, location: ExecutionLocation, *words: str, before: str = "") -> str:
        """What `hq` prints; `before` = what writes to its standard input."""
        command = [*before.split(), "hq", *(shlex.quote(word) for word in words)]
        printed, code = cast(tuple[str, int], await super().run(location=location, command=command, capture_output=True))
        if code != 0:
            raise WorkflowExecutionException(f"`hq {shlex.join(words[:3])} …` failed: {printed.strip()}")
        return printed.strip()

    async def _query(self, location: ExecutionLocation, statement: str) -> list[dict[str, Any]]:
        """Rows; waits for a server that is being restarted."""
        until = time.monotonic() + _OUTAGE_S
        while True:
            try:
                return cast("list[dict[str, Any]]", json.loads(await self._hq(location, "--output-mode=json", "query", statement)))
            except WorkflowExecutionException:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def _run_batch_command(
        self,
        command: str,
        environment: MutableMapping[str, str] | None,
        job_name: str,
        location: ExecutionLocation,
        workdir: str | None = None,
        stdin: int | str | None = None,
        stdout: int | str = asyncio.subprocess.STDOUT,
        stderr: int | str = asyncio.subprocess.STDOUT,
        timeout: int | None = None,
    ) -> str:
        mark = uuid.uuid4().hex[:12]
        words = ["--output-mode=quiet", "submit", "--stdin", "--directives=off", f"--name={job_name} {mark}"]
        if workdir is not None:
            words.append(f"--cwd={workdir}")
        if timeout is not None:
            words.append(f"--time-limit={timeout}s")
        words += [f"--env={name}={value}" for name, value in (environment or {}).items()]
        # After the job's end, `hq job cat` reads output that is not redirected.
        kept = f".hq-{mark}"
        words.append(f"--stdout={kept if stdout == asyncio.subprocess.STDOUT else _path(stdout)}")
        words.append(f"--stderr={kept if stderr == stdout == asyncio.subprocess.STDOUT else _path(stderr)}")
        if service := cast("HqService | None", self.services.get(location.service or "")):
            words += service.words
        words += ["--", "bash", "-c", _RUN_SCRIPT, _path(stdin)]
        script = base64.b64encode(command.encode()).decode()
        attempts = 0
        while True:
            attempts += 1
            try:
                printed = await self._hq(location, *words, before=f"echo {script} | base64 -d |")
                # Behind warnings.
                return printed.split()[-1]
            except WorkflowExecutionException:
                # A submit without an answer may have been accepted. This waits until the server is back.
                found = await self._query(location, f"SELECT id FROM jobs WHERE name LIKE '%{mark}'")
                if found:
                    return str(found[0]["id"])
                # A second rejection is not caused by an outage.
                if attempts == _ATTEMPTS_MAX:
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def _look(self, location: ExecutionLocation) -> dict[str, dict[str, Any]]:
        """All jobs of this connector, asked for at once."""
        async with self._asking:
            if time.monotonic() - self._asked >= self.pollingInterval or not self._scheduled_jobs.keys() <= self._rows.keys():
                jobs = list(self._scheduled_jobs)
                rows: dict[str, dict[str, Any]] = {}
                for begin in range(0, len(jobs), _ASKED_MAX):
                    # A task that never began is in no row.
                    statement = (
                        "SELECT jobs.id AS job, exit_code, signal, message, "
                        "coalesce(state, CASE WHEN completed_unix_ns IS NULL THEN 'waiting' ELSE 'canceled' END) AS state "
                        f"FROM jobs LEFT JOIN tasks ON tasks.job = jobs.id WHERE jobs.id IN ({','.join(jobs[begin : begin + _ASKED_MAX])})"
                    )
                    rows.update((str(row["job"]), row) for row in await self._query(location, statement))
                self._rows = {**self._rows, **rows}
                self._asked = time.monotonic()
            return self._rows

    async def _get_running_jobs(self, location: ExecutionLocation) -> Collection[str]:
        rows = await self._look(location)
        return [job for job in self._scheduled_jobs if rows.get(job, {}).get("state") in ("waiting", "running")]

    async def _get_output(self, job_id: str, location: ExecutionLocation) -> str:
        row = self._rows.get(job_id, {})
        if row.get("state") not in ("finished", "failed"):
            return ""
        try:
            written = await self._hq(location, "job", "cat", job_id, "stdout")
        except WorkflowExecutionException:
            await self._query(location, "SELECT 1")
            written = await self._hq(location, "job", "cat", job_id, "stdout")
        # StreamFlow shows it as the error of a step that has failed.
        if row["state"] == "finished":
            return written
        how = f"signal {row['signal']}" if row["signal"] else f"exit code {row['exit_code']}"
        return f"{written}\nhq job {job_id}: {row['message'] or how}"

    async def _get_returncode(self, job_id: str, location: ExecutionLocation) -> int:
        row = self._rows.pop(job_id, None)
        if row is None:
            raise WorkflowExecutionException(f"expected job {job_id} at the hq server, found none: it has forgotten it, or is another one")
        if row["state"] == "finished":
            return 0
        if row["state"] != "failed":
            raise WorkflowExecutionException(f"hq job {job_id} was {row['state']}")
        # A shell says the same of a signal.
        return cast(int, row["exit_code"] or (128 + row["signal"] if row["signal"] else 1))

    async def _remove_jobs(self, location: ExecutionLocation, jobs: MutableSequence[str]) -> None:
        # At the end, with the location that is wrapped.
        await self.connector.run(location=location, command=["hq", "job", "cancel", ",".join(jobs)])


def _path(stream: int | str | None) -> str:
    if stream is None or stream in (asyncio.subprocess.DEVNULL, asyncio.subprocess.STDOUT):
        return "/dev/null"
    if stream == asyncio.subprocess.PIPE:
        raise WorkflowExecutionException("jobs of hq have no pipes: give a path")
    return str(stream)
