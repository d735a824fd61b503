"""Ids of tasks in a job that other clients may extend as well."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List

#: The number of possible task ids in a job.
IDS = 1 << 32
#: The maximum distance of an executor's ids from the ids of other clients.
_MARGIN_MAX = 1 << 16


class Margin:
    """How far the ids of the next calls are behind the ids of other clients. A client that adds tasks will add more: the longer
    calls take to reach the server, the larger the margin must be."""

    def __init__(self) -> None:
        self.size = 0

    def behind(self, free: int, count: int) -> int:
        """Returns the first id for calls that were rejected, if the ids from `free` on are unused."""
        size = self.size if free + self.size + count <= IDS else 0
        self.size = min(max(1, 2 * self.size), _MARGIN_MAX)
        return free + size

    def shrink(self) -> None:
        """Reduces the margin after calls were accepted, because other clients may still add tasks."""
        self.size //= 2


def numbers_of(message: Dict[str, Any]) -> range:
    return range(message["first"], message["first"] + message["count"])


def ranges(numbers: Iterable[int]) -> List[List[int]]:
    """Converts numbers to ranges of first and count."""
    found: List[List[int]] = []
    end = -1
    for number in sorted(numbers):
        if number == end:
            found[-1][1] += 1
        else:
            found.append([number, 1])
        end = number + 1
    return found
