"""A progress bar for calls, in a terminal and in a notebook."""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future
from concurrent.futures import as_completed as _as_completed
from typing import IO, Any, Iterable, Iterator, Optional

#: Seconds between two updates of the bar.
_PAUSE = 0.1
_WIDTH = 30


class _Bar:
    """A line that is overwritten; used without tqdm."""

    def __init__(self, total: int, desc: Optional[str], file: IO[str]) -> None:
        self.total, self.desc, self.file = total, desc, file
        self.done = 0
        self.shown = 0.0
        self.since = time.monotonic()

    def update(self) -> None:
        self.done += 1
        now = time.monotonic()
        if now - self.shown >= _PAUSE or self.done == self.total:
            self.shown = now
            self.draw(now)

    def draw(self, now: float) -> None:
        part = self.done / self.total if self.total else 1.0
        full = int(part * _WIDTH)
        name = f"{self.desc}: " if self.desc else ""
        rate = self.done / max(now - self.since, 1e-9)
        self.file.write(f"\r{name}[{'#' * full}{'.' * (_WIDTH - full)}] {self.done}/{self.total}, {rate:.0f}/s ")
        self.file.flush()

    def close(self) -> None:
        if self.shown:
            self.file.write("\n")
            self.file.flush()


def as_completed(
    futures: "Iterable[Future[Any]]", timeout: Optional[float] = None, with_results: bool = False
) -> Iterator[Any]:
    """Yields futures as they end, like the function of the standard library, or pairs of each future and its result."""
    for future in _as_completed(futures, timeout):
        yield (future, future.result()) if with_results else future


def progress(
    futures: "Iterable[Future[Any]]", desc: Optional[str] = None, file: Optional[IO[str]] = None
) -> "Iterator[Future[Any]]":
    """Yields futures as they end, with a progress bar: tqdm's, which supports notebooks, or else a plain one on a terminal."""
    futures = list(futures)
    bar: Any = None
    stream = file or sys.stderr
    try:
        from tqdm.auto import tqdm
    except ImportError:
        if file is not None or stream.isatty():
            bar = _Bar(len(futures), desc, stream)
    else:
        bar = tqdm(total=len(futures), desc=desc, unit="call", file=file)
    try:
        for future in _as_completed(futures):
            if bar is not None:
                bar.update()
            yield future
    finally:
        if bar is not None:
            bar.close()
