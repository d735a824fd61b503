"""Describes where tasks write their output."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, Optional, Union

from .common import GenericPath
from .validation import ValidationException

# The default of the command line.
CLI_DEFAULT = "job-%{JOB_ID}/%{TASK_ID}"


class _Default(str):
    """A path that can also be called as a function."""

    def __call__(self) -> str:
        return str(self)


default_stdout = _Default("%{CWD}/%{TASK_ID}.stdout")
default_stderr = _Default("%{CWD}/%{TASK_ID}.stderr")


@dataclasses.dataclass(frozen=True)
class StdioDef:
    """Where the output of one channel goes, and when its file is removed."""

    path: Optional[str]
    on_close: str = "none"

    @staticmethod
    def from_path(path: GenericPath) -> "StdioDef":
        return StdioDef(os.fspath(path))

    @staticmethod
    def remove_if_finished(path: Optional[GenericPath] = None) -> "StdioDef":
        """The file is removed when its task finishes. Without a path, it is where the command line puts it."""
        return StdioDef(None if path is None else os.fspath(path), "rm-if-finished")


Stdio = Optional[Union[GenericPath, StdioDef]]


def stdio_spec(value: Any, channel: str) -> Optional[Dict[str, Any]]:
    """Returns the file of a channel in the form for the bridge, or `None` if none was given."""
    if value is None:
        return None
    if isinstance(value, StdioDef):
        path = value.path if value.path is not None else f"{CLI_DEFAULT}.{channel}"
        return {"path": path, "remove_if_finished": value.on_close == "rm-if-finished"}
    return {"path": os.fspath(value)}


def check_stdio(value: Any, channel: str) -> None:
    if value is not None and not isinstance(value, (str, os.PathLike, StdioDef)):
        raise ValidationException(
            f"{channel} has to be a path, an instance of `StdioDef`, or None; found {type(value).__name__}"
        )


class Output:
    """A file that a task creates, by name. It stands for its path in the arguments and variables of tasks."""

    def __init__(self, name: str, filepath: Optional[str] = None, extension: Optional[str] = None) -> None:
        if filepath is not None and extension is not None:
            raise ValidationException("Parameters `filepath` and `extension` are mutually exclusive")
        self.name = name
        self.filepath = filepath
        self.extension = extension

    @property
    def path(self) -> str:
        if self.filepath is not None:
            return self.filepath
        return f"{self.name}.{self.extension}" if self.extension else self.name

    def __repr__(self) -> str:
        return f"Output(name={self.name!r}, path={self.path!r})"


def gather_outputs(args: Any, env: Any) -> Dict[str, Output]:
    """Returns the outputs among arguments and variables, by name."""
    outputs: Dict[str, Output] = {}
    for value in [*args, *env.values()]:
        if not isinstance(value, Output):
            continue
        known = outputs.get(value.name)
        if known is not None and known is not value:
            raise ValidationException(f"Output `{value.name}` has been defined multiple times")
        outputs[value.name] = value
    return outputs


def render(value: Any) -> str:
    return value.path if isinstance(value, Output) else value
