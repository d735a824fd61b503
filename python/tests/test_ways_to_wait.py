"""Ways to wait for calls that the standard library does not have."""

import asyncio
import os
import time
from concurrent.futures import TimeoutError

import pytest
from conftest import wait_for

import hq


@pytest.fixture
def local():
    with hq.Executor(2, local=True) as executor:
        yield executor


def after(path, value):
    while not os.path.exists(path):
        time.sleep(0.01)
    return value


def fail():
    raise KeyError("failed")


def test_a_future_can_be_awaited(local, tmp_path):
    async def main():
        assert await local.submit(pow, 2, 5) == 32
        assert await asyncio.gather(*map(local.submit, [abs] * 3, [-1, -2, -3])) == [1, 2, 3]
        assert len(await local.submit(bytes, 100_000)) == 100_000
        with pytest.raises(KeyError, match="failed"):
            await local.submit(fail)
        future = local.submit(after, tmp_path / "never", 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(_wait(future)), 0.2)
        wait_for(future.cancelled, "the call is canceled with its task")

    async def _wait(future):
        return await future

    asyncio.run(main())


def test_futures_as_they_end(local, tmp_path):
    late, early = local.submit(after, tmp_path / "go", "late"), local.submit(abs, -1)
    pairs = hq.as_completed([late, early], with_results=True)
    assert next(pairs) == (early, 1)
    (tmp_path / "go").touch()
    assert next(pairs) == (late, "late")
    assert set(hq.as_completed([late, early])) == {late, early}


@pytest.mark.parametrize("buffersize", [None, 2])
@pytest.mark.parametrize("chunksize", [1, 2])
def test_results_without_an_order(local, tmp_path, buffersize, chunksize):
    paths = [tmp_path / "go", tmp_path / "go", *[tmp_path] * 4]
    results = local.map(after, paths, range(6), chunksize=chunksize, buffersize=buffersize, ordered=False)
    # In chunks, only the first call waits, and the other interpreter runs the rest.
    if chunksize == 2:
        assert sorted(next(results) for _ in range(4)) == [2, 3, 4, 5]
    (tmp_path / "go").touch()
    assert sorted(results) == ([0, 1] if chunksize == 2 else list(range(6)))


def test_results_without_an_order_end_early(local, tmp_path):
    with pytest.raises(TimeoutError):
        next(local.map(after, [tmp_path / "soon"], [1], timeout=0.1, ordered=False))
    (tmp_path / "soon").touch()
    results = local.options(priority=1).map(after, [tmp_path / "go", *[tmp_path] * 3], range(4), ordered=False)
    assert next(results) in (1, 2, 3)
    results.close()
    (tmp_path / "go").touch()
    assert local.submit(abs, -1).result(60) == 1
