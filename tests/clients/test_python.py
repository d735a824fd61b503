"""Dask and joblib through `hq.Executor`."""

import sys
import textwrap
from pathlib import Path

import pytest
from conftest import ROOT, restart_when


@pytest.fixture
def python(engine):
    engine.env["PYTHONPATH"] = str(ROOT / "python")

    def run(text):
        Path("script.py").write_text(textwrap.dedent(text))
        ended = engine.run([sys.executable, "script.py"])
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    return run


WORK = """
import os, time
import hq

def work(x):
    open(f"begun-{x}-{os.getpid()}", "w").close()
    time.sleep(0.5)
    if x == 13:
        raise ValueError("an unlucky number")
    return x * x
"""


def begun():
    return list(Path(".").glob("begun-*"))


def test_joblib_with_failures_a_time_limit_and_a_killed_server(engine, python):
    pytest.importorskip("joblib")
    restarted = restart_when(engine, lambda: len(begun()) > 4)
    said = python(WORK + """
if __name__ == "__main__":
    import joblib
    import hq.joblib

    with hq.joblib.backend():
        print(sum(joblib.Parallel(n_jobs=8)(joblib.delayed(work)(x) for x in range(20) if x != 13)))
        try:
            joblib.Parallel(n_jobs=8)(joblib.delayed(work)(x) for x in (13, 14))
        except ValueError as error:
            print("failed:", error)
    with hq.Executor(time_limit=1.0) as executor:
        print("limit:", type(executor.submit(time.sleep, 100).exception()).__name__)
        future = executor.submit(time.sleep, 100)
        print("canceled:", future.cancel())
""")
    restarted.join()
    assert f"{sum(x * x for x in range(20) if x != 13)}\n" in said
    assert "failed: an unlucky number" in said and "limit: TimeLimitReached" in said and "canceled: True" in said, said
    assert len(begun()) in (20, 21)


def test_dask_with_failures_and_a_killed_server(engine, python):
    pytest.importorskip("dask")
    restarted = restart_when(engine, lambda: len(begun()) > 4)
    said = python(WORK + """
if __name__ == "__main__":
    import dask

    with hq.Executor() as executor:
        good = [dask.delayed(work)(x) for x in range(20) if x != 13]
        print(dask.delayed(sum)(good).compute(scheduler=executor))
        try:
            dask.delayed(work)(13).compute(scheduler=executor)
        except ValueError as error:
            print("failed:", error)
""")
    restarted.join()
    assert f"{sum(x * x for x in range(20) if x != 13)}\n" in said and "failed: an unlucky number" in said, said
