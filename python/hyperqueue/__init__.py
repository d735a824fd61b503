"""The Python interface of HyperQueue, on top of the package `hq`.

Scripts written for HyperQueue's own package run unchanged. Results of functions are not transported; `hq.Executor` does
that.
"""

from .client import Client
from .cluster import LocalCluster
from .ffi import get_version
from .job import Job

__all__ = ["Client", "Job", "LocalCluster", "get_version"]
__version__ = "0.26.2.dev0"
