"""A back end of miniwdl: tasks of WDL are jobs of an hq server."""

from ._container import HqContainer

__all__ = ["HqContainer"]
