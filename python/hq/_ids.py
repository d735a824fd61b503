"""Ids of tasks in a job to which others may add tasks as well."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List

#: Ids that a job has for tasks.
IDS = 1 << 32


def numbers_of(message: Dict[str, Any]) -> range:
    return range(message["first"], message["first"] + message["count"])


def ranges(numbers: Iterable[int]) -> List[List[int]]:
    """Numbers as firsts and counts."""
    found: List[List[int]] = []
    for number in sorted(numbers):
        if found and number == sum(found[-1]):
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return found
