"""Finds calls that no machine can run, which would wait forever."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Dict, Optional, Union

from ._bridge import find_hq
from ._spec import Resources, parse_bytes
from .errors import HqError

#: Units of a whole in the figures of `hq worker hwdetect`.
_UNITS = 10_000
_MIB = 1 << 20


class Machine:
    """The resources that this machine offers to the executor's own server."""

    def __init__(self, cpus: int) -> None:
        self._offered: Dict[str, float] = {"cpus": cpus}
        self._is_detected = False

    def check(self, resources: Resources) -> None:
        """Raises an error if a call with these resources can never run."""
        for name, wanted in resources.items():
            if name == "nodes":
                amount: Optional[float] = float(wanted)
                offered = 1.0
            else:
                amount = _amount(name, wanted)
                if name != "cpus":
                    self._detect()
                offered = self._offered.get(name, 0)
            if amount is not None and amount > offered:
                figures = ", ".join(f"{value:.15g} {key}" for key, value in sorted(self._offered.items()))
                raise HqError(
                    f"a call with {wanted} {name} can never run: this machine has {offered:.15g} {name} ({figures}). Use a server with "
                    "such workers, or a smaller request"
                )

    def _detect(self) -> None:
        if self._is_detected:
            return
        self._is_detected = True
        found = subprocess.run([find_hq(), "--output-mode", "json", "worker", "hwdetect"], check=True, capture_output=True)
        for pool in json.loads(found.stdout)["resources"]:
            # The server may be limited to fewer cpus.
            self._offered.setdefault(pool["name"], _size(pool))


def _size(pool: Dict[str, Any]) -> float:
    if pool["kind"] == "sum":
        return float(pool["size"] / _UNITS)
    if pool["kind"] == "range":
        return float(pool["end"] - pool["start"] + 1)
    return len(pool["values"]) if pool["kind"] == "list" else sum(map(len, pool["groups"]))


def _amount(name: str, wanted: Union[int, float, str]) -> Optional[float]:
    """Returns an amount as a number, in MiB for memory. `None` = another kind of request, which the server checks."""
    try:
        return float(wanted)
    except ValueError:
        pass
    try:
        return parse_bytes(wanted) / _MIB if name == "mem" else None  # type: ignore[arg-type]
    except ValueError:
        return None


def explain(server_dir: Union[str, "os.PathLike[str]", None], job: int, task: int) -> Optional[str]:
    """Returns the words of `hq task explain` if no worker can run a task."""
    place = [] if server_dir is None else ["--server-dir", os.fspath(server_dir)]
    ran = subprocess.run([find_hq(), *place, "task", "explain", f"{job}.{task}"], capture_output=True, text=True)
    _, found, rest = ran.stdout.partition("There is no worker where the task can run.")
    return (found + rest).rstrip() or None
