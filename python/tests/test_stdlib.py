"""The standard library's own tests of executors, adapted only where they make one."""

import unittest

import pytest

import hq

try:
    from test.test_concurrent_futures import executor as of_executor
    from test.test_concurrent_futures import test_as_completed as of_as_completed
    from test.test_concurrent_futures import test_wait as of_wait

    Executor, Wait, AsCompleted = of_executor.ExecutorTest, of_wait.WaitTests, of_as_completed.AsCompletedTests
except ImportError:
    try:
        from test import test_concurrent_futures as of_all

        Executor, Wait, AsCompleted = of_all.ExecutorTest, of_all.WaitTests, of_all.AsCompletedTests
    except ImportError:
        pytest.skip("this Python comes without its tests", allow_module_level=True)


class Ours:
    executor_type = staticmethod(lambda max_workers: hq.Executor(max_workers, local=True))
    worker_count = 5

    def setUp(self):
        self.executor = self.executor_type(max_workers=self.worker_count)

    def tearDown(self):
        self.executor.shutdown(wait=True)
        self.executor = None


class TestExecutor(Ours, Executor, unittest.TestCase):
    pass


class TestWait(Ours, Wait, unittest.TestCase):
    pass


class TestAsCompleted(Ours, AsCompleted, unittest.TestCase):
    pass
