"""Queries of the server: its documented views as records, and as data frames."""

from __future__ import annotations

import html
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Union

from ._bridge import Bridge
from .errors import HqError

if TYPE_CHECKING:
    from ._executor import Executor

#: Source of the data: a server directory, an executor, or `None` for the default.
Where = Union[str, "os.PathLike[str]", "Executor", None]

#: Maximum rows that a notebook shows.
_ROWS_SHOWN = 20


class Table:
    """The rows of a query. Iteration yields dictionaries."""

    def __init__(self, columns: List[str], rows: List[List[Any]]) -> None:
        self.columns = columns
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        return (dict(zip(self.columns, row)) for row in self.rows)

    def __getitem__(self, index: int) -> Dict[str, Any]:
        return dict(zip(self.columns, self.rows[index]))

    def to_pandas(self) -> Any:
        import pandas

        return pandas.DataFrame(self.rows, columns=self.columns)

    def to_polars(self) -> Any:
        import polars

        return polars.DataFrame(self.rows, schema=self.columns, orient="row")

    def frame(self) -> Any:
        """Returns a data frame of pandas, or of polars if pandas is not installed."""
        try:
            return self.to_pandas()
        except ImportError:
            pass
        try:
            return self.to_polars()
        except ImportError:
            raise HqError("a data frame needs pandas or polars: pip install one of them") from None

    def __repr__(self) -> str:
        return f"<hq.Table of {len(self.rows)} rows: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        def cells(tag: str, values: List[Any]) -> str:
            texts = ("" if value is None else html.escape(str(value)[:200]) for value in values)
            return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

        shown = "".join(cells("td", row) for row in self.rows[:_ROWS_SHOWN])
        more = len(self.rows) - _ROWS_SHOWN
        rest = f"<p>and {more} more</p>" if more > 0 else ""
        return f"<table><thead>{cells('th', list(self.columns))}</thead><tbody>{shown}</tbody></table>{rest}"


def query(sql: str, where: Where = None) -> Table:
    """Rows of an SQL query of the server's views: `jobs`, `tasks`, `attempts`, `workers` and the others. `where` is an executor, or
    the directory of a server; a server that an executor started has no such rows."""
    bridge: Optional[Bridge] = getattr(where, "_bridge", None)
    own = None
    if bridge is not None and bridge.is_local:
        raise HqError(
            "the server of this executor ends with it and keeps nothing that could be asked for: start one with `hq server start`, and "
            "name it by server_dir=, $HQ_SERVER_DIR, or not at all if it is in the default place"
        )
    if bridge is None:
        directory = where or os.environ.get("HQ_SERVER_DIR")
        bridge = own = Bridge(server_dir=directory)  # type: ignore[arg-type]
    try:
        found = bridge.ask({"what": "sql", "sql": sql})
    finally:
        if own is not None:
            own.close()
    if found["is_cut"]:
        raise HqError("the query has too many rows: ask for fewer, with WHERE or LIMIT")
    return Table(found["columns"], found["rows"])


def jobs(where: Where = None) -> Table:
    """Returns all jobs of a server."""
    return query("SELECT * FROM jobs ORDER BY id", where)


def tasks(job: int, where: Where = None) -> Table:
    """Returns the started tasks of a job."""
    return query(f"SELECT * FROM tasks WHERE job = {int(job)} ORDER BY task", where)
