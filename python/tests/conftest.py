import pytest
from cluster import Cluster, wait_for

__all__ = ["Cluster", "wait_for"]


@pytest.fixture(autouse=True)
def in_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    made.start_server()
    made.start_worker()
    yield made
    made.end()
