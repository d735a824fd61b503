"""Calls that are not settled yet, and their ends."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

from ._future import CallFuture
from ._held import Held
from ._spool import Stored

FINISHED, FAILED, CANCELED, ABORTED = 2, 3, 4, 5


class Call:
    """A call that is not yet submitted; `spec` belongs to a template for this call alone, with the files that the task reads."""

    __slots__ = ("future", "needs", "payload", "spec", "stored", "template")

    def __init__(
        self,
        future: "CallFuture[Any]",
        payload: bytes,
        template: int,
        spec: Optional[Tuple[Dict[str, Any], bytes]] = None,
        needs: Sequence[Held] = (),
        stored: Sequence[Stored] = (),
    ) -> None:
        self.future = future
        self.payload = payload
        self.template = template
        self.spec = spec
        #: Values that it reads, which stay on their workers until then.
        self.needs = needs
        #: Files with its arguments.
        self.stored = stored


class Again:
    """A call that is repeated: a copy of its task, with some references to values replaced."""

    __slots__ = ("future", "needs", "swap", "task")

    def __init__(self, future: "CallFuture[Any]", task: int, swap: Dict[str, Any], needs: Sequence[Held]) -> None:
        self.future = future
        self.task = task
        self.swap = swap
        self.needs = needs


#: Number, state, value and error of an ended call.
End = Tuple[int, int, Optional[memoryview], Optional[str]]


def begin(future: "CallFuture[Any]") -> bool:
    """Returns whether to submit a call: it was not cancelled and did not fail because of its options."""
    if future.done() and not future.cancelled():
        return False
    if future.running():
        # Submitted for the second time.
        return True
    return future.set_running_or_notify_cancel()


def same(error: BaseException) -> BaseException:
    """Returns a copy of an exception for each receiver, because raising it adds a traceback."""
    try:
        copy = type(error)(*error.args)
    except Exception:
        return error
    copy.__cause__ = error.__cause__
    return copy
