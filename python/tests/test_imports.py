"""No modules of a package import each other, not even inside functions or for types."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "hq"


def imported(path):
    """Returns the modules of the package that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names.update([node.module] if node.module else (alias.name for alias in node.names))
    return names


@pytest.mark.parametrize("name", sorted(path.stem for path in ROOT.glob("*.py")))
def test_no_module_imports_itself_in_a_circle(name):
    reached, waiting = set(), [name]
    while waiting:
        new = imported(ROOT / f"{waiting.pop()}.py") - reached
        reached |= new
        waiting += new
    assert name not in reached
