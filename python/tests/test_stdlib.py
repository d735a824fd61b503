"""The standard library's own tests of executors, adapted only where they create one.

Tests of features that only `ProcessPoolExecutor` has are left out: its processes, queues and contexts, and that it breaks when one of
its processes dies.
"""

import os
import sys
import unittest

import pytest

import hq

try:
    from test.test_concurrent_futures import executor as of_executor
    from test.test_concurrent_futures import test_as_completed as of_as_completed
    from test.test_concurrent_futures import test_init as of_init
    from test.test_concurrent_futures import test_process_pool as of_process_pool
    from test.test_concurrent_futures import test_shutdown as of_shutdown
    from test.test_concurrent_futures import test_wait as of_wait
except ImportError:
    try:
        from test import test_concurrent_futures as of_all
    except ImportError:
        pytest.skip("this Python comes without its tests", allow_module_level=True)
    of_executor = of_as_completed = of_init = of_process_pool = of_shutdown = of_wait = of_all

#: Replaces the import of an executor in a script.
MAKE = """
            import sys
            sys.path[:] = {path!r}
            from functools import partial
            from hq import Executor
            Made = partial(Executor, local=True, output={output!r})
"""


def made(max_workers, **options):
    return hq.Executor(max_workers, local=True, **options)


made.__name__ = "Made"


class Ours:
    executor_type = staticmethod(made)
    worker_count = 5

    def setUp(self):
        self.executor = self.executor_type(max_workers=self.worker_count)

    def tearDown(self):
        self.executor.shutdown(wait=True)
        self.executor = None


class TestExecutor(Ours, of_executor.ExecutorTest, unittest.TestCase):
    test_map_chunksize = of_process_pool.ProcessPoolExecutorTest.test_map_chunksize


class TestWait(Ours, of_wait.WaitTests, unittest.TestCase):
    pass


class TestAsCompleted(Ours, of_as_completed.AsCompletedTests, unittest.TestCase):
    pass


class TestShutdown(Ours, of_shutdown.ExecutorShutdownTest, unittest.TestCase):
    @pytest.fixture(autouse=True)
    def scripts_make_ours(self, monkeypatch, tmp_path):
        start = of_shutdown.assert_python_ok
        output = tmp_path / "output"

        def adapted(option, script, **env):
            first = "from concurrent.futures import Made"
            assert first in script
            script = script.replace(first, MAKE.format(path=sys.path, output=str(output)).strip())
            return start(option, script, __isolated=False, **{**os.environ, **env})

        monkeypatch.setattr(of_shutdown, "assert_python_ok", adapted)


class TestInit(of_init.InitializerMixin, unittest.TestCase):
    executor_type = staticmethod(made)


class TestFailingInit(of_init.FailingInitializerMixin, unittest.TestCase):
    executor_type = staticmethod(made)
