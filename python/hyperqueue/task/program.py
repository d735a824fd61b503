"""Tasks that run a program."""

from __future__ import annotations

from typing import Any, List, Optional, Union

from ..common import ProgramArgs
from ..ffi.protocol import TaskDescription
from ..output import Output
from ..validation import ValidationException
from .task import Task


class ExternalProgram(Task):
    """A program with its arguments."""

    def __init__(self, task_id: int, args: ProgramArgs, *, stdin: Union[str, bytes, None] = None, **options: Any) -> None:
        words: List[Any] = [args] if isinstance(args, str) else list(args)
        for word in words:
            if not isinstance(word, (str, Output)):
                raise ValidationException(
                    "Each program argument must either be a string or an instance of `hq.Output`. "
                    f"Found {word!r} of type {type(word).__name__}"
                )
        if not words:
            raise ValidationException("A program needs at least one argument: its name")
        if stdin is not None and not isinstance(stdin, (str, bytes)):
            raise Exception("stdin has to be str, bytes, or None")
        super().__init__(task_id, args=words, **options)
        self.args = words
        self.stdin: Optional[bytes] = stdin.encode() if isinstance(stdin, str) else stdin

    def _build(self, client: Any) -> TaskDescription:
        return self._describe(self.args, self.stdin)
