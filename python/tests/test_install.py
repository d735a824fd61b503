"""The package finds the program of its own wheel, wherever pip puts both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import ROOT

import hq

PROGRAM = """#!/bin/sh
echo hq 9.8.7 from $0
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    path = tmp_path_factory.mktemp("wheel")
    (path / "hq").write_text(PROGRAM)
    words = [path / "hq", "9.8.7", "manylinux2014_x86_64", ROOT / "LICENSE", ROOT / "README.md", path, "1"]
    command = [sys.executable, ROOT / "packaging/wheel/make_wheel.py", *words]
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
    (made,) = path.glob("*.whl")
    return made


def shown(site, path):
    """Returns what `python -m hq` prints with this package and these directories of programs."""
    env = {"PYTHONPATH": str(site), "PATH": path}
    return subprocess.run([sys.executable, "-m", "hq"], capture_output=True, text=True, env=env, cwd="/")


@pytest.mark.parametrize("option", ["--target", "--prefix"])
def test_the_program_of_the_same_wheel_is_found(wheel, tmp_path, option):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-warn-script-location", option, tmp_path]
    if subprocess.run([*pip, wheel]).returncode:
        pytest.skip("pip cannot install a wheel here")
    (package,) = tmp_path.glob("**/hq/_bridge.py")
    site = package.parent.parent
    # Another project's program, which would be found otherwise.
    other = Path(sys.executable).parent
    ran = shown(site, str(other))
    assert ran.stdout == f"hq 9.8.7 from {tmp_path / 'bin/hq'}\n", ran.stderr
    (tmp_path / "bin/hq").chmod(0o644)
    ran = shown(site, "/nowhere")
    assert "install hq-runtime" in ran.stderr and f"{tmp_path / 'bin/hq'} (cannot be run)" in ran.stderr


def test_another_program_of_the_name_is_refused_with_its_words(tmp_path, monkeypatch):
    program = tmp_path / "hq"
    monkeypatch.setenv("HQ_BINARY", str(program))
    with pytest.raises(hq.HqError, match=r"\$HQ_BINARY names .*/hq, which is not a program"):
        hq.Executor(1, local=True)
    program.write_text("#!/bin/sh\necho error: unrecognized subcommand $1 >&2; exit 2\n")
    program.chmod(0o755)
    with pytest.raises(hq.HqError) as caught:
        hq.Executor(1, local=True)
    assert f"{program} is refused" in str(caught.value) and "unrecognized subcommand bridge" in str(caught.value)
