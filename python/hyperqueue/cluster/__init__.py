"""A server and workers that belong to this process, to try things out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Optional

from ..client import Client
from ..common import GenericPath
from ..ffi.cluster import Cluster


@dataclasses.dataclass
class WorkerConfig:
    """The resources of a worker; `None` = all cpus."""

    cores: Optional[int] = None


class LocalCluster:
    """A server without authentication that ends with this process. It uses a new directory unless one is given."""

    def __init__(
        self, server_dir: Optional[GenericPath] = None, worker_config: Optional[WorkerConfig] = None
    ) -> None:
        self.cluster = Cluster(server_dir)
        if worker_config is not None:
            try:
                self.start_worker(worker_config)
            except BaseException:
                self.cluster.stop()
                raise

    @property
    def server_dir(self) -> Path:
        return self.cluster.server_dir

    def start_worker(self, config: Optional[WorkerConfig] = None) -> None:
        self.cluster.add_worker((config or WorkerConfig()).cores)

    def client(self, **kwargs: Any) -> Client:
        return Client(server_dir=self.server_dir, **kwargs)

    def stop(self) -> None:
        self.cluster.stop()

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(self, *_: Any) -> None:
        if not self.cluster.is_stopped:
            self.stop()
