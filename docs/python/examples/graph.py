"""A graph of programs and functions: parts are generated, sorted and merged, and a function looks at what came out."""

import tempfile

import hq


def summary(path: str, parts: list) -> str:
    with open(path) as file:
        numbers = [int(line) for line in file]
    assert numbers == sorted(numbers) and sum(parts) == len(numbers)
    return f"{len(numbers)} numbers from {numbers[0]} to {numbers[-1]}"


def count(path: str) -> int:
    with open(path) as file:
        return sum(1 for _ in file)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        with hq.Job("graph", max_workers=2, local=True) as job:
            parts, counts = [], []
            for part in range(3):
                # A program among the words of another one is the file that it has written.
                made = job.program(["seq", part + 1, 3, 300], stdout=f"{directory}/part-{part}")
                parts.append(job.program(["sort", "-n", made], stdout=f"{directory}/sorted-{part}"))
                # Functions get values, also out of lists of futures.
                counts.append(job.function(lambda done: count(done.stdout), made))
            merged = job.program(["sort", "-n", "-m", *parts], stdout=f"{directory}/merged")
            found = job.function(lambda done, sizes: summary(done.stdout, sizes), merged, counts)
        print(found.result())


if __name__ == "__main__":
    main()
