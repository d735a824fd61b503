"""An executor of submitit: its jobs are jobs of an hq server."""

from ._executor import HqExecutor, HqInfoWatcher, HqJob, HqJobEnvironment

__all__ = ["HqExecutor", "HqInfoWatcher", "HqJob", "HqJobEnvironment"]
