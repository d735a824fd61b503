"""Directories with arguments and results that are too long for the server, and leftovers of killed processes.

Each has a file that names its owner. The owner holds a lock on it, which ends with the process in any case. Later
processes remove directories without an owner: see :func:`sweep`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import tempfile
import threading
import time
import uuid
import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from ._held import this_machine
from ._interpreter import map_value, own_dir, parts_of, write_value

#: Names of directories: with files for workers, as created for executors, and, below the directory for temporary files, with files fetched
#: from workers, as created by `tempfile`.
_SHARED = re.compile(r"\.hq-values-[0-9a-f]{12}")
_FETCHED = re.compile(r"hq-values-[a-z0-9_]{8}")
#: Name of the file that names the owner.
_OWNER = "owner"
#: Prefix of the names of arguments.
CALL = "call-"
#: Names of arguments, results and fetched files. Only these may be removed from a directory.
_ARGUMENT = re.compile(rf"{CALL}[0-9a-f]{{32}}")
_RESULT = re.compile(r"value-[0-9]+-[0-9]*-[0-9a-f]{12}")
_VALUE = re.compile(r"[0-9]+|[0-9a-fA-F]{32}")
#: A value of at least this size has a file of its own, which equal values share: first samples are compared, then everything.
OWN_FILE_MIN = 1 << 20
_SAMPLE = 256
#: A value of at least this size gets a warning when it is sent this often.
_WARNED_MIN = 10 << 20
_USES_WARNED = 3
_USES_KEPT = 64
#: Seconds to keep a directory whose owner's state is unknown here, and between two signs of life.
_KEPT = 30 * 86_400.0
_SIGN = 3_600.0

#: Returns the server's data about a job; `None` = it has forgotten the job.
Ask = Callable[[int], Optional[Dict[str, Any]]]


class Spool:
    """A directory of this process."""

    def __init__(self, path: str, server: str, job: int, is_local: bool, long: int) -> None:
        self.path = path
        #: Values longer than this are stored here; the server gets the others.
        self.long = long
        # By size and samples.
        self._shared: "weakref.WeakValueDictionary[Any, Stored]" = weakref.WeakValueDictionary()
        # Likewise, for recent long values: how many calls they were sent to.
        self._uses: Dict[Any, int] = {}
        self.is_local = is_local
        self.owner = {"server": server, "job": job, "is_local": is_local}
        self.is_made = False
        self._lock: Optional[int] = None
        self._mutex = threading.Lock()
        self._signed = 0.0

    def make(self) -> str:
        with self._mutex:
            # Cleaners of temporary directories remove files that were unused for days.
            if not (self.is_made and os.path.isdir(self.path)):
                own_dir(self.path)
                self.leave()
                self._lock = claim(self.path, self.owner)
                self._signed = time.monotonic()
                self.is_made = True
        return self.path

    def store(self, pickled: bytes, buffers: Sequence[Any] = ()) -> "Stored":
        """Writes a value for calls to a file, or returns the file of an equal value."""
        parts = [pickled, *buffers]
        size = sum(map(len, parts))
        key = _key(parts) if size >= OWN_FILE_MIN else None
        known = None if key is None else self._shared.get(key)
        if known is not None and known.has(parts):
            return known
        path = os.path.join(self.path, f"{CALL}{uuid.uuid4().hex}")
        try:
            self.make()
            write_value(path, pickled, buffers)  # type: ignore[no-untyped-call]
        except BaseException as error:
            self.drop(path)
            if isinstance(error, OSError):
                text = f"a value of {size} bytes cannot be put into {self.path} (values= names another directory): {error.strerror}"
                raise StoreError(error.errno, text) from error
            raise
        stored = Stored(self, path, size, key)
        if key is not None:
            self._shared[key] = stored
        return stored

    def count(self, values: Iterable["Stored"]) -> None:
        """Counts a call with these values, and warns of one that was sent too often."""
        for key, size in {value.key: value.size for value in values if value.size >= _WARNED_MIN}.items():
            uses = self._uses[key] = self._uses.pop(key, 0) + 1
            if len(self._uses) > _USES_KEPT:
                del self._uses[next(iter(self._uses))]
            if uses == _USES_WARNED:
                text = f"a value of {size} bytes was sent for the third time; `value = executor.put(value)` stores it once for all calls"
                warnings.warn(text, stacklevel=_depth_of_user())

    def drop(self, path: str) -> None:
        """Removes a file, unless others may need it after this process."""
        if self._lock is not None:
            try:
                os.unlink(path)
            except OSError:
                pass

    def is_to_sign(self) -> bool:
        """Returns whether a sign of life is due for machines that cannot see the owner's process."""
        return self.is_made and time.monotonic() - self._signed > _SIGN

    def sign(self) -> None:
        """Writes a sign of life for machines that cannot see the owner's process, if one is due."""
        if self.is_to_sign():
            self._signed = time.monotonic()
            try:
                os.utime(os.path.join(self.path, _OWNER))
            except OSError:
                pass

    def remove(self) -> None:
        if self.is_made:
            # On NFS, a file that is removed while open stays in its directory under another name, and so does the directory.
            _remove_files(self.path)
            self.leave()
            _remove_emptied(self.path)
        self.leave()

    def leave(self) -> None:
        """Gives up the ownership."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


class StoreError(OSError):
    """A value cannot be put into the directory."""


class Stored:
    """A file with a value for calls. When it is collected, the file is removed."""

    __slots__ = ("key", "path", "size", "spool", "__weakref__")

    def __init__(self, spool: Spool, path: str, size: int, key: Any) -> None:
        self.spool = spool
        self.path = path
        self.size = size
        #: What it has in common with equal values.
        self.key = key
        # Unlike `__del__`, this runs after weak references have ended, so the file is not found for another call.
        weakref.finalize(self, spool.drop, path).atexit = False

    def has(self, parts: Sequence[Any]) -> bool:
        """Returns whether the file contains this pickle and these buffers."""
        try:
            found = parts_of(map_value(self.path))  # type: ignore[no-untyped-call]
        except OSError:
            return False
        return len(found) == len(parts) and all(map(_is_same, found, parts))


def _depth_of_user() -> int:
    """Returns the `stacklevel` of warnings for the line that calls this package."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        depth, frame = depth + 1, frame.f_back
    return depth


def _key(parts: Sequence[Any]) -> Any:
    """Returns what equal values have in common, and other values rarely."""
    samples = [(part[:_SAMPLE], part[len(part) // 2 :][:_SAMPLE], part[-_SAMPLE:]) for part in parts]
    return tuple((len(part), *map(bytes, sample)) for part, sample in zip(parts, samples))


def _is_same(first: Any, second: Any) -> bool:
    """Compares bytes without copying them, eight at a time."""
    whole = len(first) & ~7
    first, second = memoryview(first), memoryview(second)
    if len(first) != len(second) or first[whole:] != second[whole:]:
        return False
    return not whole or first[:whole].cast("Q") == second[:whole].cast("Q")


def claim(path: str, owner: Dict[str, Any]) -> int:
    """Makes this process the owner of a directory for as long as the result is open."""
    pid = os.getpid()
    described = {**owner, "machine": this_machine(), "pids": _pid_namespace(), "pid": pid, "start": _start_of(pid)}
    number = os.open(os.path.join(path, _OWNER), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # A file system without locks.
        pass
    os.write(number, json.dumps(described).encode())
    return number


_swept: Set[Tuple[str, str]] = set()


def sweep_once(base: str, server: str, ask: Ask) -> None:
    """Removes leftovers of killed processes in the background, once per process."""
    if (base, server) not in _swept:
        _swept.add((base, server))
        threading.Thread(target=sweep, args=(base, server, ask), name="hq-sweep", daemon=True).start()


def sweep(base: str, server: str, ask: Ask) -> None:
    """Removes directories whose owners are gone and that are no longer needed: directories of a server that ended with its
    owner and, on our server, those of forgotten jobs, and arguments of jobs that have ended. Others are kept for a month."""
    for place in {base, tempfile.gettempdir()}:
        for path in _directories(place):
            try:
                _sweep_one(path, server, ask)
            except Exception:
                # It was removed meanwhile, or the server is unreachable: the next process retries.
                pass


def left_of(job: int, server: str, base: str) -> List[str]:
    """Returns the directories that belong to a job and whose owners are gone."""
    found = []
    for path in _directories(base):
        try:
            owner, is_gone = _owner_of(os.path.join(path, _OWNER))
        except (OSError, ValueError):
            continue
        if is_gone and (owner.get("server"), owner.get("job")) == (server, job):
            found.append(path)
    return found


def remove_arguments(path: str) -> None:
    """Removes arguments from a directory, and the directory if nothing else is in it."""
    _remove_files(path, _ARGUMENT)
    _remove_emptied(path)


def _directories(place: str) -> Iterator[str]:
    """Returns the directories that match our naming scheme, in the places that we use."""
    names = [_SHARED, _FETCHED] if place == tempfile.gettempdir() else [_SHARED]
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                is_ours = any(name.fullmatch(entry.name) for name in names) and entry.is_dir(follow_symlinks=False)
                if is_ours and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    yield entry.path
    except OSError:
        pass


def _owner_of(named: str) -> Tuple[Dict[str, Any], Optional[bool]]:
    """Returns what a directory's file says about its owner, and whether the owner is gone; `None` = unknown here."""
    with open(named, "rb") as file:
        owner = json.loads(file.read())
        return owner, _is_gone(owner, file.fileno())


def _sweep_one(path: str, server: str, ask: Ask) -> None:
    named = os.path.join(path, _OWNER)
    try:
        owner, is_gone = _owner_of(named)
    except (FileNotFoundError, ValueError):
        # From an earlier release, in preparation, or another user's.
        _sweep_unnamed(path)
        return
    is_old = _is_old(named)
    if is_gone is False or is_gone is None and not is_old:
        return
    if owner.get("is_local"):
        _remove(path)
    elif owner.get("server") == server:
        info = ask(owner["job"])
        if info is None:
            _remove(path)
        elif not (info["running"] or info["waiting"]) and (is_old or not info["is_open"]):
            remove_arguments(path)
    elif is_old:
        _remove(path)


def _sweep_unnamed(path: str) -> None:
    """Removes a directory that names no owner, if it is old and contains only files that we create."""
    if _is_old(path) and all(name == _OWNER or _is_made_here(name) for name in os.listdir(path)):
        _remove(path)


def _is_old(path: str) -> bool:
    return time.time() - os.stat(path).st_mtime > _KEPT


def _is_made_here(name: str) -> bool:
    return any(kind.fullmatch(name) for kind in (_ARGUMENT, _RESULT, _VALUE))


def _remove(path: str) -> None:
    _remove_files(path)
    _remove_emptied(path)


def _remove_files(path: str, kind: "Optional[re.Pattern[str]]" = None) -> None:
    """Removes the files that we have put into a directory, or those of one kind, and no other files."""
    try:
        names = os.listdir(path)
    except OSError:
        return
    for name in names:
        if _is_made_here(name) if kind is None else kind.fullmatch(name):
            try:
                os.unlink(os.path.join(path, name))
            except OSError:
                # Another process removes it as well, or it is a directory, which we never create.
                pass


def _remove_emptied(path: str) -> None:
    """Removes a directory that contains only the file that names its owner."""
    try:
        if set(os.listdir(path)) <= {_OWNER}:
            try:
                os.unlink(os.path.join(path, _OWNER))
            except FileNotFoundError:
                pass
            os.rmdir(path)
    except OSError:
        # Another process removes it as well.
        pass


def _is_gone(owner: Dict[str, Any], number: int) -> Optional[bool]:
    """Returns whether the owner of a directory has ended, or `None` if that cannot be known here."""
    is_here = owner["machine"] == this_machine()
    has_locks = True
    try:
        # First of all: /proc may show another pid namespace.
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        has_locks = False
    if is_here and owner["pids"] == _pid_namespace():
        return bool(_start_of(owner["pid"]) != owner["start"])
    # Some shared file systems do not show locks of other machines.
    return True if is_here and has_locks else None


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_of(pid: int) -> Optional[int]:
    """Returns when a process started, to distinguish it from a later one with its number, or `None` if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program may contain anything.
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError):
        return None
