"""Directories with arguments and results that are too long for the server, and what killed processes have left of them.

Each has a file that names its owner. A lock on it ends with the owner, whatever ends that. Who comes next removes what is
nobody's: see :func:`sweep`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from ._held import this_machine

#: Beginnings of names: what workers read, and what was got from them.
PREFIXES = (".hq-values-", "hq-values-")
#: Name of the file that names the owner.
_OWNER = "owner"
#: Beginning of the names of arguments; the others are results.
CALL = "call-"
#: Seconds for which a directory is kept of whose owner nothing can be known here, and between two signs of life.
_KEPT = 30 * 86_400.0
_SIGN = 3_600.0

#: What the server knows of a job; `None` = it has forgotten it.
Ask = Callable[[int], Optional[Dict[str, Any]]]


class Spool:
    """A directory of this process."""

    def __init__(self, path: str, server: str, job: int, is_local: bool) -> None:
        self.path = path
        self.owner = {"server": server, "job": job, "is_local": is_local}
        self.is_made = False
        self._lock: Optional[int] = None
        self._mutex = threading.Lock()
        self._signed = 0.0

    def make(self) -> str:
        with self._mutex:
            # Cleaners of temporary directories remove what nobody has used for days.
            if not (self.is_made and os.path.isdir(self.path)):
                os.makedirs(self.path, 0o700, exist_ok=True)
                self.leave()
                self._lock = claim(self.path, self.owner)
                self._signed = time.monotonic()
                self.is_made = True
        return self.path

    def is_to_sign(self) -> bool:
        """Whether those who cannot see that its owner is alive have not heard of it for a while."""
        return self.is_made and time.monotonic() - self._signed > _SIGN

    def sign(self) -> None:
        """Says now and then that its owner is alive, to those who cannot see that."""
        if self.is_to_sign():
            self._signed = time.monotonic()
            try:
                os.utime(os.path.join(self.path, _OWNER))
            except OSError:
                pass

    def remove(self) -> None:
        if self.is_made:
            shutil.rmtree(self.path, ignore_errors=True)
        self.leave()

    def leave(self) -> None:
        """Is not the owner any more."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def claim(path: str, owner: Dict[str, Any]) -> int:
    """Makes this process the owner of a directory, for as long as the result is open."""
    pid = os.getpid()
    described = {**owner, "machine": this_machine(), "pids": _pid_namespace(), "pid": pid, "start": _start_of(pid)}
    number = os.open(os.path.join(path, _OWNER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # A file system without locks.
        pass
    os.write(number, json.dumps(described).encode())
    return number


_swept: Set[Tuple[str, str]] = set()


def sweep_once(base: str, server: str, ask: Ask) -> None:
    """Removes what killed processes have left, beside what else this one does, and once in its life."""
    if (base, server) not in _swept:
        _swept.add((base, server))
        threading.Thread(target=sweep, args=(base, server, ask), name="hq-sweep", daemon=True).start()


def sweep(base: str, server: str, ask: Ask) -> None:
    """Removes directories whose owners are gone and that nobody needs: those of a server that ended with its owner, and on
    our server those of jobs that are forgotten, and arguments of jobs that have ended. Others are kept for a month."""
    for place in {base, tempfile.gettempdir()}:
        for path in _directories(place):
            try:
                _sweep_one(path, server, ask)
            except Exception:
                # It was removed meanwhile, or the server is away: the next one looks again.
                pass


def _directories(place: str) -> Iterator[str]:
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                is_ours = entry.name.startswith(PREFIXES) and entry.is_dir(follow_symlinks=False)
                if is_ours and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    yield entry.path
    except OSError:
        pass


def _sweep_one(path: str, server: str, ask: Ask) -> None:
    named = os.path.join(path, _OWNER)
    try:
        with open(named, "rb") as file:
            owner = json.loads(file.read())
            is_gone = _is_gone(owner, file.fileno())
    except (FileNotFoundError, ValueError):
        # Of an earlier release, or being made.
        owner, is_gone, named = {}, None, path
    is_old = time.time() - os.stat(named).st_mtime > _KEPT
    if is_gone is False or is_gone is None and not is_old:
        return
    if owner.get("is_local"):
        shutil.rmtree(path, ignore_errors=True)
    elif owner.get("server") == server:
        info = ask(owner["job"])
        if info is None:
            shutil.rmtree(path, ignore_errors=True)
        elif not (info["running"] or info["waiting"]) and (is_old or not info["is_open"]):
            _remove_arguments(path)
    elif is_old:
        shutil.rmtree(path, ignore_errors=True)


def _remove_arguments(path: str) -> None:
    results: List[str] = []
    for name in os.listdir(path):
        if name.startswith(CALL):
            os.unlink(os.path.join(path, name))
        elif name != _OWNER:
            results.append(name)
    if not results:
        shutil.rmtree(path, ignore_errors=True)


def _is_gone(owner: Dict[str, Any], number: int) -> Optional[bool]:
    """Whether the owner of a directory has ended; `None` = that cannot be known here."""
    is_here = owner["machine"] == this_machine()
    has_locks = True
    try:
        # First of all: /proc may be that of other processes than those that the namespace has.
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        has_locks = False
    if is_here and owner["pids"] == _pid_namespace():
        return bool(_start_of(owner["pid"]) != owner["start"])
    # Locks of other machines are not seen on every shared file system.
    return True if is_here and has_locks else None


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_of(pid: int) -> Optional[int]:
    """When a process started, which tells it from a later one with its number; `None` = there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program may contain anything.
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError):
        return None
