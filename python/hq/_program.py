"""Programs as tasks of the job of an executor, in addition to its calls."""

from __future__ import annotations

import errno
import os
import pathlib
import stat
import types
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

from ._future import CallFuture, Owner
from ._pickle import without_value
from ._spec import make_program_spec
from .errors import ProgramFailed

#: The number of lines of a failed program's standard error that are shown.
LINES_MAX = 20

#: Submits a program after the futures that it needs have succeeded, with its description and standard input.
Start = Callable[["ProgramFuture", Callable[[], Tuple[Dict[str, Any], bytes]], "Set[CallFuture[Any]]"], None]

Argument = Union[str, "os.PathLike[str]", int, float, "File", "CallFuture[Any]"]


class File:
    """A file that tasks read or write, by its absolute path: a program gets the path as an argument, a function a
    `pathlib.Path`. Client and workers must share its file system."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.path = pathlib.Path(os.path.abspath(os.path.expanduser(os.fspath(path))))

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    def __repr__(self) -> str:
        return f"hq.File({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __reduce__(self) -> Any:
        # Workers may lack this package.
        return pathlib.Path, (str(self.path),)


class Completed:
    """A successful program: `args`, `task`, and its output files `stdout` and `stderr`."""

    def __init__(self, args: List[str], task: int, stdout: Optional[File], stderr: Optional[File]) -> None:
        self.args = args
        self.task = task
        self.stdout = stdout
        self.stderr = stderr

    def read(self) -> str:
        """Returns the standard output as text."""
        return "" if self.stdout is None else read_output(self.stdout)

    def __repr__(self) -> str:
        return f"<hq.Completed task {self.task}: {' '.join(self.args)}>"

    def __reduce__(self) -> Any:
        return types.SimpleNamespace, (), self.__dict__


def read_output(file: "File") -> str:
    """Reads an output. Other users may be able to write to its directory, so their links are not followed."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        path = _behind_links(str(file.path))
        folder = os.open(_behind_links(os.path.dirname(path)), flags | os.O_PATH | os.O_DIRECTORY)
        try:
            number = os.open(os.path.basename(path), flags, dir_fd=folder)
            above = os.fstat(folder)
        finally:
            os.close(folder)
    except FileNotFoundError:
        # There was no output.
        return ""
    with open(number, errors="replace") as opened:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            return ""
        is_shared = above.st_uid != os.geteuid() or above.st_mode & 0o022
        if not _is_trusted(found) or found.st_nlink > 1 and is_shared:
            raise PermissionError(errno.EACCES, "another user may have put this output there", path)
        return opened.read()


def _behind_links(path: str) -> str:
    for _ in range(40):
        number = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(number)
            if not stat.S_ISLNK(found.st_mode):
                return path
            if not _is_trusted(found):
                raise PermissionError(errno.EACCES, "a link of another user is not followed", path)
            path = os.path.join(os.path.dirname(path), os.readlink("", dir_fd=number))
        finally:
            os.close(number)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _is_trusted(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid())


class ProgramFuture(CallFuture[Completed]):
    """The future of a program."""

    __slots__ = ("_ended",)
    #: Words, paths of outputs, job; after the submit.
    _ended: Tuple[List[str], Optional[str], Optional[str], int]

    def without_value(self, is_finished: bool, error: Optional[str]) -> Tuple[Optional[Completed], Optional[BaseException]]:
        """Returns the outcome of the program."""
        args, stdout, stderr, job = self._ended
        number = self._number or 0

        def named(path: Optional[str]) -> Optional[File]:
            return path and File(path.replace("%{JOB_ID}", str(job)).replace("%{TASK_ID}", str(number)))  # type: ignore[return-value]

        if is_finished:
            return Completed(args, number, named(stdout), named(stderr)), None
        failed = without_value(error, ProgramFailed)
        try:
            written = read_output(err) if (err := named(stderr)) else ""
        except OSError:
            written = ""
        last = "\n".join(written.rstrip().splitlines()[-LINES_MAX:])
        if last:
            failed.args = (f"{failed}\n{last}",)
        return None, failed


def words_of(args: Iterable[Any]) -> List[str]:
    """Returns the words of a command, in which futures must have ended."""
    words = []
    for arg in args:
        value = arg.result() if isinstance(arg, CallFuture) else arg
        if isinstance(value, Completed):
            # Its output, as input of the next program.
            value = value.stdout
        if isinstance(value, (str, int, float, os.PathLike)):
            words.append(os.fspath(value) if isinstance(value, os.PathLike) else str(value))
        else:
            raise TypeError(f"expected a text, a number, a path or a future of one as word of a command, found {type(value).__qualname__}")
    return words


def submit_program(
    owner: Owner,
    job: int,
    start: "Start",
    args: Sequence[Argument],
    options: Dict[str, Any],
    *,
    stdin: Union[str, bytes, None],
    stdout: Union[str, "os.PathLike[str]", None],
    stderr: Union[str, "os.PathLike[str]", None],
    cwd: Union[str, "os.PathLike[str]", None],
    deps: Sequence["CallFuture[Any]"],
    env: Optional[Mapping[str, str]],
) -> ProgramFuture:
    if isinstance(args, (str, bytes)) or not args:
        raise TypeError("a program is given as a list of words, such as ['grep', 'word', 'file']")
    future = ProgramFuture(owner)
    place = os.path.abspath(cwd or ".")
    output = options["output"]

    def path(given: Union[str, "os.PathLike[str]", None], ending: str) -> Optional[str]:
        if given is not None:
            return os.path.join(place, os.fspath(given))
        return None if output is None else os.path.join(place, output, f"%{{TASK_ID}}.{ending}")

    out, err = path(stdout, "stdout"), path(stderr, "stderr")
    content = stdin.encode() if isinstance(stdin, str) else stdin or b""

    def prepare() -> Tuple[Dict[str, Any], bytes]:
        words = words_of(args)
        future._ended = (words, out, err, job)
        return make_program_spec(options, words, place, {**options["env"], **(env or {})}, (out, err)), content

    needs = {arg for arg in args if isinstance(arg, CallFuture)} | set(deps)
    start(future, prepare, needs)
    return future
