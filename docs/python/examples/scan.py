"""A scan of two parameters: 400 calls, and the best of them. With NumPy if it is installed.

python scan.py              on this machine
HQ_SERVER_DIR=… python scan.py   on a cluster
"""

import itertools
import math

import hq


def energy(x: float, y: float) -> float:
    """Energy of a made-up molecule; takes a while in real life."""
    try:
        import numpy

        points = numpy.linspace(0.0, 2 * math.pi, 200)
        return float(numpy.mean((numpy.sin(points * x) + numpy.cos(points * y)) ** 2))
    except ImportError:
        points = [2 * math.pi * step / 199 for step in range(200)]
        return sum((math.sin(p * x) + math.cos(p * y)) ** 2 for p in points) / len(points)


def main() -> None:
    steps = [0.25 * step for step in range(20)]
    pairs = list(itertools.product(steps, steps))
    with hq.Executor(name="scan") as executor:
        # Several points in one message each: short calls get cheaper.
        energies = list(executor.map(energy, *zip(*pairs), chunksize=20))
    best, (x, y) = min(zip(energies, pairs))
    print(f"{len(energies)} points, the lowest is {best:.3f} at x={x}, y={y}")


if __name__ == "__main__":
    main()
