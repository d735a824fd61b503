"""The process that connects Python with a server: `hq bridge`."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from concurrent.futures import Future
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Union

from .errors import HqError, ServerGone

_LENGTHS = struct.Struct("<II")
_READ = 1 << 16

_log = logging.getLogger(__name__)

#: Receives what the bridge reports about a job: the event, and its bytes.
Listener = Callable[[Dict[str, Any], memoryview], None]


def find_hq() -> str:
    """Returns the `hq` program: `$HQ_BINARY`, the one of the same wheel, the one next to this interpreter, or the first in `$PATH`."""
    named = os.environ.get("HQ_BINARY")
    if named:
        if _is_program(named):
            return named
        raise HqError(f"$HQ_BINARY names {named}, which is not a program that can be run")
    looked = []
    for path in _candidates():
        if _is_program(path):
            return path
        looked.append(f"{path} ({'cannot be run' if os.path.exists(path) else 'does not exist'})")
    raise HqError(
        f"the program `hq` was not found: install hq-runtime with pip, or name it in $HQ_BINARY. These files were looked for: "
        f"{', '.join(looked)}, and `hq` in $PATH"
    )


def _candidates() -> Iterator[str]:
    # Where pip puts the programs of the wheel that this package is from: with --target, and with all other options.
    site = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if any(name.startswith("hq_runtime-") and name.endswith(".dist-info") for name in os.listdir(site)):
        yield os.path.join(site, "bin", "hq")
        yield os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(site))), "bin", "hq")
    yield os.path.join(os.path.dirname(sys.executable), "hq")
    import sysconfig

    yield os.path.join(sysconfig.get_path("scripts") or "", "hq")
    found = shutil.which("hq")
    if found:
        yield found


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


class Bridge:
    """An `hq bridge` process, with a thread that reads its messages."""

    def __init__(
        self,
        server_dir: Union[str, "os.PathLike[str]", None] = None,
        local_cpus: Optional[int] = None,
        local: bool = False,
    ) -> None:
        command = [find_hq()]
        if server_dir is not None:
            command += ["--server-dir", os.fspath(server_dir)]
        command.append("bridge")
        if local:
            command.append("--local")
            if local_cpus is not None:
                command += ["--cpus", str(local_cpus)]
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        # Python itself handles an interrupt from the terminal.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
        )
        self._pid = os.getpid()
        _bridges.add(self)
        self.server_dir = server_dir
        #: Whether the server ends with the bridge.
        self.is_local = local
        self._write_lock = threading.Lock()
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._answers: Dict[int, "Future[Any]"] = {}
        self._progress: Dict[int, Callable[[Dict[str, Any]], None]] = {}
        self._listeners: Dict[int, Listener] = {}
        self._on_gone: List[Callable[[BaseException], None]] = []
        self._ready: "Future[Dict[str, Any]]" = Future()
        self._gone: Optional[BaseException] = None
        self._closing = False
        self._reader = threading.Thread(target=self._read, name="hq-bridge", daemon=True)
        self._reader.start()
        try:
            self.info = self._wait_until_ready(command[0])
            if not self.info.get("settles_ranges"):
                raise HqError(
                    f"the program {command[0]} is of an older release than the package hq ({self.info['version']}): install both from "
                    "one wheel, or name another program in $HQ_BINARY"
                )
        except BaseException:
            self.close()
            raise

    def _wait_until_ready(self, path: str) -> Dict[str, Any]:
        try:
            return self._ready.result()
        except ServerGone as error:
            # Other projects have programs and packages of this name.
            raise HqError(
                f"the program {path} is refused: it did not start as the bridge of the package hq, which comes with a program of its own "
                f"in the wheel hq-runtime; $HQ_BINARY can name that. {error}"
            ) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_reading_here(self) -> bool:
        """Returns whether this is the reading thread, which must not wait for answers."""
        return threading.current_thread() is self._reader

    # ---- requests

    def send(self, message: Dict[str, Any], blob: bytes = b"") -> None:
        try:
            text = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            # Python represents invalid names of files and variables with such characters. The bridge would reject them and end.
            found = error.object[max(0, error.start - 40) : error.end + 40]
            raise ValueError(f"expected text that can be written in UTF-8, found bytes that cannot: {found!r}") from None
        data = b"".join((_LENGTHS.pack(4 + len(text) + len(blob), len(text)), text, blob))
        self._check_process()
        with self._write_lock:
            if self._gone is not None:
                raise ServerGone(str(self._gone))
            pipe = self._process.stdin
            assert pipe is not None
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(pipe.fileno(), view) :]
            except (OSError, ValueError) as error:
                raise ServerGone(f"the bridge to the server is gone: {error}") from error

    def _check_process(self) -> None:
        # Checked before taking any lock: a thread that held the lock in the parent does not exist in the child.
        if os.getpid() != self._pid:
            raise ServerGone("the connection to the server was made before a fork; make another one in this process")

    def request(
        self,
        message: Dict[str, Any],
        blob: bytes = b"",
        progress: Optional[Callable[[Dict[str, Any]], None]] = None,
        timeout: Optional[float] = None,
    ) -> Any:
        """Sends a request and waits for the answer."""
        self._check_process()
        if self.is_reading_here:
            # The answer would wait for the callback that waits for the answer.
            raise RuntimeError("the server cannot be asked in a callback of a future; do it in a thread of your own")
        number = next(self._ids)
        future: "Future[Any]" = Future()
        with self._lock:
            if self._gone is not None:
                raise ServerGone(str(self._gone))
            self._answers[number] = future
            if progress is not None:
                self._progress[number] = progress
        try:
            self.send({**message, "id": number}, blob)
            return future.result(timeout)
        finally:
            with self._lock:
                self._answers.pop(number, None)
                self._progress.pop(number, None)

    def begin(self, message: Dict[str, Any], blob: bytes = b"") -> "Future[Any]":
        """Sends a request and returns the future of the answer."""
        self._check_process()
        number = next(self._ids)
        future: "Future[Any]" = Future()
        with self._lock:
            if self._gone is not None:
                raise ServerGone(str(self._gone))
            self._answers[number] = future
        try:
            self.send({**message, "id": number}, blob)
        except BaseException:
            with self._lock:
                self._answers.pop(number, None)
            raise
        return future

    def ask(
        self,
        question: Dict[str, Any],
        blob: bytes = b"",
        progress: Optional[Callable[[Dict[str, Any]], None]] = None,
    ) -> Any:
        return self.request({"op": "ask", "question": question}, blob, progress)

    def follow(self, job: int, listener: Listener) -> None:
        """Reports events of a job's calls to `listener`, on the thread of the bridge."""
        self._check_process()
        with self._lock:
            self._listeners[job] = listener
        try:
            self.request({"op": "follow", "job": job})
        except BaseException:
            with self._lock:
                self._listeners.pop(job, None)
            raise

    def forget(self, job: int, then: Callable[[BaseException], None]) -> None:
        """Stops reports about a job. `then` is no longer called when the bridge ends."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._listeners.pop(job, None)
            if then in self._on_gone:
                self._on_gone.remove(then)
        try:
            self.send({"op": "unfollow", "job": job})
        except ServerGone:
            pass

    def when_gone(self, then: Callable[[BaseException], None]) -> None:
        self._check_process()
        with self._lock:
            if self._gone is None:
                self._on_gone.append(then)
                return
            gone = self._gone
        then(gone)

    # ---- reports

    def _read(self) -> None:
        reason = "the bridge to the server has ended"
        try:
            stream = self._process.stdout
            assert stream is not None
            number = stream.fileno()
            buffer = bytearray()
            while True:
                data = os.read(number, _READ)
                if not data:
                    break
                buffer += data
                start = 0
                while len(buffer) - start >= 8:
                    length, json_length = _LENGTHS.unpack_from(buffer, start)
                    end = start + 4 + length
                    if len(buffer) < end:
                        if length > _READ:
                            self._read_rest(number, buffer, end)
                        else:
                            break
                    text = bytes(buffer[start + 8 : start + 8 + json_length])
                    blob = bytes(buffer[start + 8 + json_length : end])
                    start = end
                    self._on_message(json.loads(text), memoryview(blob))
                del buffer[:start]
        except BaseException as error:
            reason = f"what the bridge says cannot be read: {error!r}"
        self._on_end(reason)

    @staticmethod
    def _read_rest(number: int, buffer: bytearray, end: int) -> None:
        while len(buffer) < end:
            data = os.read(number, max(_READ, end - len(buffer)))
            if not data:
                raise EOFError("the bridge ended inside of a message")
            buffer += data

    def _on_message(self, message: Dict[str, Any], blob: memoryview) -> None:
        event = message["ev"]
        if event in ("ended", "accepted", "taken", "again", "refused", "gone", "closed", "settled"):
            with self._lock:
                listener = self._listeners.get(message["job"])
            if listener is not None:
                listener(message, blob)
        elif event == "answer":
            with self._lock:
                future = self._answers.pop(message["id"] or 0, None)
            if future is None:
                return
            if "error" in message:
                future.set_exception(HqError(message["error"]))
            else:
                future.set_result(message["value"])
        elif event == "progress":
            with self._lock:
                progress = self._progress.get(message["id"])
            if progress is not None:
                try:
                    progress(message["jobs"])
                except BaseException as error:
                    # The error is raised in the caller of `progress`. This thread still has to read answers for
                    # others.
                    self._fail_answer(message["id"], error)
        elif event == "ready":
            self._ready.set_result(message)
        elif event == "fatal":
            self._ready.set_exception(HqError(message["text"]))

    def _fail_answer(self, number: int, error: BaseException) -> None:
        with self._lock:
            future = self._answers.pop(number, None)
            self._progress.pop(number, None)
        if future is not None:
            future.set_exception(error)

    def _on_end(self, reason: str) -> None:
        words = "" if self._closing else self._last_words()
        gone = ServerGone(f"{reason}: {words}" if words else reason)
        with self._lock:
            self._gone = gone
            answers = list(self._answers.values())
            self._answers.clear()
            then = list(self._on_gone)
            self._on_gone.clear()
        if not self._ready.done():
            self._ready.set_exception(gone)
        for future in answers:
            if not future.done():
                future.set_exception(gone)
        for call in then:
            try:
                call(gone)
            except BaseException:
                # The other listeners must be notified as well.
                _log.exception("what follows from the end of the bridge failed")

    def _last_words(self) -> str:
        try:
            self._process.wait(5)
            self._errors.seek(0, os.SEEK_END)
            size = self._errors.tell()
            self._errors.seek(max(0, size - 2_000))
            return self._errors.read().decode("utf-8", "replace").strip()
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return ""

    def close(self) -> None:
        """Ends the bridge, and the server in it, if any."""
        if os.getpid() != self._pid:
            return
        self._closing = True
        with self._write_lock:
            pipe = self._process.stdin
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except OSError:
                    pass
        if threading.current_thread() is not self._reader:
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._reader.join(5)
            if self._process.stdout is not None and not self._reader.is_alive():
                self._process.stdout.close()
            self._errors.close()

    def _leave(self) -> None:
        """In a child: closes the bridge's input, because the bridge must end with the parent."""
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for pipe in (self._process.stdin, self._process.stdout):
            # The descriptor is not closed, because Python would later close its number again, and another file may
            # have it by then.
            if pipe is not None and not pipe.closed:
                os.dup2(null, pipe.fileno(), inheritable=False)
        os.close(null)


_bridges: "weakref.WeakSet[Bridge]" = weakref.WeakSet()


def _after_fork() -> None:
    for bridge in list(_bridges):
        bridge._leave()


os.register_at_fork(after_in_child=_after_fork)
