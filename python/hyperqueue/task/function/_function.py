"""Tasks that call a Python function, from the submitter's perspective."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Optional, Sequence

from hq._pickle import cloud_dumps

from ...ffi.protocol import TaskDescription
from ..task import Task

CODE = "from hyperqueue.task.function import task_main as m; m()"


class PythonEnv:
    """The Python interpreter that runs functions."""

    def __init__(self, python_bin: Any = "python3", prologue: Optional[str] = None, shell: str = "bash") -> None:
        self.python_bin = os.fspath(python_bin)
        self.prologue = prologue
        self.shell = shell

    @property
    def args(self) -> List[str]:
        if not self.prologue:
            return [self.python_bin, "-c", CODE]
        return [self.shell, "-c", f'{self.prologue}\n\n{self.python_bin} -c "{CODE}"']

    def create_call(self) -> List[str]:
        return self.args


def cloud_wrap(fn: Callable[..., Any], cache: bool = True) -> Callable[..., Any]:
    """Returns the function itself: functions of tasks are pickled by value in any case."""
    return fn


class PythonFunction(Task):
    """A function with its arguments. Its return value is not transported."""

    def __init__(
        self,
        task_id: int,
        fn: Callable[..., Any],
        *,
        args: Sequence[Any] = (),
        kwargs: Optional[Dict[str, Any]] = None,
        **options: Any,
    ) -> None:
        options.pop("task_dir", None)
        super().__init__(task_id, task_dir=True, **options)
        self.fn = fn
        self.args = tuple(args)
        self.kwargs = dict(kwargs or {})
        if self.name is None:
            name = getattr(fn, "__name__", None) or type(fn).__name__
            self.name = f"{name}/{task_id}"

    def _build(self, client: Any) -> TaskDescription:
        content = cloud_dumps((self.fn, self.args, self.kwargs))
        return self._describe(client.python_env.args, content)
