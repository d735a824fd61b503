"""The common part of calls for the bridge: program, variables, resources, first message to interpreters."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from . import _pickle

Resources = Mapping[str, Union[int, float, str]]
#: Lost workers that a call survives; 0 or ``"unlimited"`` = any number, ``"never-restart"`` = it never starts twice.
CrashLimit = Union[int, str]

#: Reads its program from the worker, at the other end of standard input.
BOOT = "import socket;s=socket.socket(fileno=0);exec(s.recv(1<<17))"

#: The limits of calls without any.
NO_LIMITS: Dict[str, Any] = {"limit": [], "max_running": None, "max_rate": None}

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse_bytes(size: Union[int, str]) -> int:
    """Parses bytes from a number, or from a text such as ``2GiB``, ``500M``."""
    if isinstance(size, int):
        found = size
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", size, re.IGNORECASE)
        if match is None:
            raise ValueError(f"expected a size such as 500000000 or '2GiB', found {size!r}")
        found = int(float(match.group(1)) * (1 << _UNITS[match.group(2).upper()]))
    if found <= 0:
        raise ValueError(f"a limit of memory has to be larger than 0, found {size!r}")
    return found


def make_spec(options: Dict[str, Any]) -> Dict[str, Any]:
    python, prologue = options["python"], options["prologue"]
    args = [python, "-c", BOOT]
    if prologue:
        args = [options["shell"], "-c", f"{prologue}\n\nexec {shlex.join(args)}"]
    output = options["output"]
    spec: Dict[str, Any] = {
        "args": args,
        "env": options["env"],
        "cwd": os.getcwd(),
        "retries": options["retries"],
        "priority": options["priority"],
        "pin": options["pin"],
        "is_call": True,
        "crash_limit": options["crash_limit"],
    }
    if output is not None:
        spec["stdout"] = {"path": os.path.join(output, "%{TASK_ID}.stdout")}
        spec["stderr"] = {"path": os.path.join(output, "%{TASK_ID}.stderr")}
    if options["time_limit"] is not None:
        spec["time_limit"] = float(options["time_limit"])
    names = options["limits"]
    limits = {
        "limit": [names] if isinstance(names, str) else list(names),
        "max_running": options["max_running"],
        "max_rate": options["max_rate"],
    }
    if limits != NO_LIMITS:
        spec["limits"] = limits
    if options["retry_grow"] is not None:
        spec["retry_grow"] = options["retry_grow"]
    if options["resources"]:
        amounts = {name: str(amount) for name, amount in options["resources"].items()}
        nodes = amounts.pop("nodes", None)
        if nodes is not None:
            if amounts:
                raise ValueError(f"nodes are reserved whole, with all that they have: leave out {', '.join(sorted(amounts))}")
            spec["requests"] = [{"n_nodes": int(nodes)}]
            return spec
        if "cpus" not in amounts:
            amounts["cpus"] = "1"
        spec["requests"] = [{"resources": amounts}]
    return spec


def make_program_spec(
    options: Dict[str, Any],
    words: List[str],
    cwd: str,
    env: Dict[str, str],
    outputs: Tuple[Optional[str], Optional[str]],
) -> Dict[str, Any]:
    """Creates the specification for a program."""
    spec = make_spec({**options, "output": None})
    prologue = options["prologue"]
    if prologue:
        words = [options["shell"], "-c", f"{prologue}\n\nexec {shlex.join(words)}"]
    spec.update({"args": words, "cwd": cwd, "env": env, "is_call": False})
    for name, path in zip(("stdout", "stderr"), outputs):
        if path is not None:
            spec[name] = {"path": path}
    return spec


def make_context(
    init: Optional[Callable[..., Any]], initargs: Tuple[Any, ...], how: Dict[str, Union[int, str, None]], is_local: bool
) -> bytes:
    head = {
        "python": list(sys.version_info[:2]),
        "path": [os.path.abspath(entry) if isinstance(entry, str) else entry for entry in sys.path],
        "argv": list(sys.argv),
        **how,
    }
    context = json.dumps(head).encode() + b"\n"
    if init is not None:
        context += _pickle.dumps((init, tuple(initargs)), "init with its arguments", _pickle.OwnNeeds(None, is_local))
    return context
