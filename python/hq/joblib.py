"""A backend for joblib: runs the tasks of `Parallel` as calls of an executor.

::

    with hq.joblib.backend():
        joblib.Parallel()(joblib.delayed(f)(x) for x in xs)
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Optional

from joblib.parallel import AutoBatchingMixin, ParallelBackendBase, parallel_config, register_parallel_backend

from ._executor import Executor


class HqBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Runs batches of joblib as calls."""

    supports_timeout = True
    supports_retrieve_callback = True
    uses_threads = False
    supports_sharedmem = False

    def __init__(self, executor: Optional[Executor] = None, **options: Any) -> None:
        super().__init__(**options)
        self._given = executor
        self._executor: Any = executor

    def effective_n_jobs(self, n_jobs: int) -> int:
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        cpus: int = self._executor._max_workers if self._executor is not None else 1
        return cpus if n_jobs is None or n_jobs < 0 else n_jobs

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        self.parallel = parallel
        if self._executor is None:
            self._executor = Executor(name="joblib")
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Optional[Callable[[Any], None]] = None) -> Any:
        future = self._executor.submit(func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    apply_async = submit

    def retrieve_result_callback(self, out: Any) -> Any:
        return out.result()

    def terminate(self) -> None:
        if self._given is None and self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None

    def abort_everything(self, ensure_ready: bool = True) -> None:
        self.terminate()
        if ensure_ready:
            self.configure(parallel=self.parallel)


@contextlib.contextmanager
def backend(executor: Optional[Executor] = None, **options: Any) -> Iterator[Executor]:
    """Makes joblib use this executor, or a new one with these options for the duration of the block."""
    with contextlib.ExitStack() as stack:
        used = stack.enter_context(Executor(name="joblib", **options)) if executor is None else executor
        register_parallel_backend("hq", lambda **more: HqBackend(executor=used, **more))
        with parallel_config("hq", n_jobs=-1):
            yield used
