"""An ensemble whose members share a context that takes long to load: it is loaded once in each interpreter."""

import random
import time

import hq

MODEL = {}


def load(seed: int) -> None:
    """Stands for a model of some gigabytes."""
    time.sleep(0.2)
    generator = random.Random(seed)
    MODEL["weights"] = [generator.random() for _ in range(1_000)]


def member(number: int) -> float:
    generator = random.Random(number)
    return sum(weight * generator.gauss(0.0, 1.0) for weight in MODEL["weights"])


def main() -> None:
    with hq.Executor(2, local=True, name="ensemble", init=load, initargs=(42,)) as executor:
        futures = [executor.submit(member, number) for number in range(200)]
        found = [future.result() for future in hq.progress(futures, "members")]
    mean = sum(found) / len(found)
    print(f"{len(found)} members, mean {mean:.2f}")


if __name__ == "__main__":
    main()
