"""Runs the examples of the documentation."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs/python"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
WORDS = {
    "scan.py": "400 points, the lowest is",
    "ensemble.py": "200 members, mean",
    "graph.py": "300 numbers from 1 to 300",
}

#: Runs the cells of a notebook as a kernel does: in `__main__`, with the last expression of each shown.
NOTEBOOK = """
import ast, json, sys
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] != "code":
        continue
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), globals())
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), globals())
        show = getattr(value, "_repr_html_", None)
        print(show() if show else repr(value))
"""


def run(path, *command):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(path)}
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, cwd=path, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(tmp_path, example):
    assert WORDS[example.name] in run(tmp_path, str(example))


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_a_client_in_another_language_runs(tmp_path):
    command = ["node", str(DOCS / "examples/bridge.js"), "--local"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert ran.stdout == "3 of 3 programs finished\nthe sum is 155\n", ran.stderr


def test_the_notebook_runs(tmp_path):
    pytest.importorskip("cloudpickle")
    shown = run(tmp_path, "-c", NOTEBOOK, str(DOCS / "tour.ipynb"))
    for word in ("[0, 1, 4, 9, 16]", "ZeroDivisionError", "hq.Executor of job", "has finished", "Job "):
        assert word in shown, shown


def test_the_notebook_has_no_output_of_anybody():
    for cell in json.loads((DOCS / "tour.ipynb").read_text())["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
