"""Values that are too long for the server. Their workers keep them until they are needed."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, TimeoutError, wait
from typing import Any, Dict, List, Optional, Protocol

from ._interpreter import load_value, map_value
from .errors import CallError, HqError

Reference = Dict[str, Any]


class Keeper(Protocol):
    """Fetches values from their workers."""

    def begin_fetch(self, reference: Reference) -> "Future[str]": ...

    def recover(self, held: "Held", why: str, text: str) -> "Future[None]": ...

    def release(self, held: "Held") -> None: ...

    @property
    def is_over(self) -> bool: ...


def this_machine() -> str:
    """Returns the name and boot time of this machine, as workers write them."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{os.uname().nodename} {boot}".strip()


class NotThere(CallError):
    """A value cannot be fetched: `why` is `gone`, `unreachable` or `local`."""

    def __init__(self, why: str, text: str) -> None:
        super().__init__(text)
        self.why = why
        self.text = text


class Held:
    """A reference to a value on a worker. When it is collected, the value can be dropped."""

    __slots__ = (
        "keeper",
        "reference",
        "runs",
        "is_borrowed",
        "is_from_elsewhere",
        "template",
        "_value",
        "_home",
        "_coming",
        "_lock",
        "__weakref__",
    )

    def __init__(self, keeper: Keeper, reference: Reference, is_borrowed: bool = False) -> None:
        self.keeper = keeper
        self.reference = reference
        #: How often its call was repeated.
        self.runs = 0
        #: Whether another process must release it.
        self.is_borrowed = is_borrowed
        #: Whether its call belongs to an executor that has ended.
        self.is_from_elsewhere = False
        #: Identifies the common part of its call; `None` = the executor's own options.
        self.template: Optional[int] = None
        self._value: Optional[List[Any]] = None
        #: This process's own file with the value.
        self._home: Optional[str] = None
        # The fetch in progress. It is kept when a reader runs out of time.
        self._coming: "Optional[Future[str]]" = None
        # The lock is held while the value is read, which may take long.
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        return str(self.reference["name"])

    @property
    def is_here(self) -> bool:
        return self._value is not None or self._home is not None

    def load(self, timeout: Optional[float] = None) -> Any:
        """Returns the value, as the same object each time. Raises `TimeoutError` of `concurrent.futures` after `timeout` seconds; the
        fetch continues, and the value can be read later."""
        end = None if timeout is None else time.monotonic() + timeout
        if not self._lock.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            raise TimeoutError()
        try:
            if self._value is None:
                # Stored in a list, because the value may be `None`.
                self._value = [self._read(end)]
                self.leave_home()
            return self._value[0]
        finally:
            self._lock.release()

    def _read(self, end: Optional[float]) -> Any:
        view = self._map(end)
        try:
            return load_value(view)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise HqError(f"the result of the call cannot be unpickled here: {type(error).__name__}: {error}") from error

    def _map(self, end: Optional[float]) -> Any:
        while True:
            path = self._home or self.path_here()
            try:
                if path is None:
                    path = self._fetch(end)
                return map_value(path)  # type: ignore[no-untyped-call]
            except NotThere as error:
                self._wait(self.keeper.recover(self, error.why, error.text), end)
            except TimeoutError:
                raise
            except OSError as error:
                # The worker has just ended.
                self._home = None
                self._wait(self.keeper.recover(self, "gone", str(error)), end)

    def _fetch(self, end: Optional[float]) -> str:
        """Fetches the value into our own file; concurrent requests share one fetch."""
        if self._coming is None:
            self._coming = self.keeper.begin_fetch(self.reference)
        coming = self._coming
        home: str = self._wait(coming, end)
        self._home = home
        return home

    def _wait(self, coming: "Future[Any]", end: Optional[float]) -> Any:
        done, _ = wait([coming], None if end is None else max(end - time.monotonic(), 0))
        if not done:
            raise TimeoutError()
        if coming is self._coming:
            self._coming = None
        return coming.result()

    def path_here(self) -> Optional[str]:
        """Returns the worker's file, if it is readable on this machine."""
        if self.reference["machine"] != this_machine():
            return None
        path = str(self.reference["path"])
        try:
            return path if os.stat(path).st_size == self.reference["size"] else None
        except OSError:
            return None

    def bring_home(self, directory: str) -> None:
        """Fetches the value into a file of this process, because its worker or the connection is about to end."""
        with self._lock:
            if self.is_here:
                return
            path = self.path_here()
            if path is not None:
                home = os.path.join(directory, self.name)
                try:
                    os.link(path, home)
                except OSError:
                    import shutil

                    shutil.copyfile(path, home)
                self._home = home
                return
            while self._home is None:
                try:
                    self._fetch(None)
                except NotThere as error:
                    self.keeper.recover(self, error.why, error.text).result()

    def leave_home(self) -> None:
        home, self._home = self._home, None
        if home is not None:
            try:
                os.unlink(home)
            except OSError:
                pass

    def __repr__(self) -> str:
        return f"<a value of {self.reference['size']} bytes on worker {self.reference['worker']}>"

    def __del__(self) -> None:
        try:
            self.leave_home()
            if not self.is_borrowed:
                self.keeper.release(self)
        except Exception:
            # Python is ending.
            pass


def held_by(future: "Future[Any]") -> Optional[Held]:
    """Returns the reference to the value of a future, or `None` if no worker holds it."""
    value = getattr(future, "_result", None)
    return value if type(value) is Held and not value.keeper.is_over else None
