"""How many functions of the package `hyperqueue` run per second, each in a separate process.

usage: HQ_BINARY=target/release/hq PYTHONPATH=python python3 benchmarks/python/functions.py [FUNCTIONS [CPUS]]

Needs cloudpickle. For comparison, starts as many interpreters that do nothing, on as many cpus.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
from hyperqueue.task.function import PythonEnv

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 500
CPUS = int(sys.argv[2]) if len(sys.argv) > 2 else 2


def work(number):
    return number + 1


def bare():
    """Returns how many interpreters start per second."""

    def start():
        for _ in range(COUNT // CPUS):
            subprocess.run([sys.executable, "-c", "pass"], check=True)

    threads = [threading.Thread(target=start) for _ in range(CPUS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return COUNT / (time.perf_counter() - begin)


def main():
    # Tells tasks where to find the package.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with LocalCluster(worker_config=WorkerConfig(cores=CPUS)) as cluster:
            client = cluster.client(python_env=PythonEnv(sys.executable))
            job = Job()
            for number in range(COUNT):
                job.function(work, args=(number,), stdout=None, stderr=None)
            begin = time.perf_counter()
            client.wait_for_jobs([client.submit(job)])
            print(f"{COUNT} functions on {CPUS} cpus: {COUNT / (time.perf_counter() - begin):.0f}/s")
            client.connection.close()
    print(f"interpreters that do nothing: {bare():.0f}/s")


if __name__ == "__main__":
    main()
