"""R's batchtools with the cluster functions of `integrations/batchtools`."""

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, processes_with, restart_when, wait_for

pytestmark = pytest.mark.skipif(shutil.which("Rscript") is None, reason="needs R with batchtools")

SETUP = f"""
suppressMessages(library(batchtools))
source("{ROOT}/integrations/batchtools/makeClusterFunctionsHq.R")
options(batchtools.progress = FALSE)
if (dir.exists("registry")) {{
  reg = loadRegistry("registry", writeable = TRUE)
}} else {{
  reg = makeRegistry("registry", seed = 1)
}}
reg$cluster.functions = makeClusterFunctionsHq(scheduler.latency = 0.2, fs.latency = 5)
"""


@pytest.fixture
def r(engine):
    def run(text):
        Path("script.R").write_text(SETUP + text)
        ended = engine.run(["Rscript", "script.R"])
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    return run


def test_fifty_jobs_with_failures_and_a_killed_server(engine, r):
    # A submit without a server fails.
    restarted = restart_when(engine, Path("submitted").exists)
    said = r("""
work = function(x) {
  file.create(sprintf("begun-%i-%i", x, Sys.getpid()))
  if (x == 13) stop("an unlucky number")
  x * x
}
ids = batchMap(work, x = 1:50)
submitJobs(ids, resources = list(ncpus = 1, memory = 512, walltime = 300))
invisible(file.create("submitted"))
ok = waitForJobs(sleep = 0.5)
cat("ok:", ok, "\\n")
cat("errors:", findErrors()$job.id, "\\n")
cat("expired:", nrow(findExpired()), "\\n")
cat("sum:", sum(unlist(reduceResultsList(findDone()))), "\\n")
cat("log:", any(grepl("an unlucky number", getLog(13))), "\\n")
""")
    restarted.join()
    assert "ok: FALSE" in said and "errors: 13 " in said and "expired: 0" in said, said
    assert f"sum: {sum(x * x for x in range(1, 51) if x != 13)}" in said, said
    assert "log: TRUE" in said, said
    assert len(list(Path(".").glob("begun-*"))) == 50
    asked = engine.ask_json("job", "info", "1")[0]["submits"][0]["array"]
    entries = {entry["resource"]: entry["request"]["Compact"] for entry in asked["resources"][0]["resources"]}
    assert entries == {"cpus": 10_000, "mem": 512 * 10_000} and asked["time_limit"] == 300


def test_jobs_are_killed_expire_and_can_be_submitted_again(engine, r):
    # The one that runs too long starts no program: R would go on when that is ended, and be done before its own end.
    said = r("""
ids = batchMap(function(x) if (x == 10) Sys.sleep(1000) else system2("sleep", "1000"), x = 1:10)
submitJobs(ids[1:9], resources = list(walltime = 600))
submitJobs(ids[10], resources = list(walltime = 1))
while (nrow(findRunning()) < 8) Sys.sleep(0.2)
cat("queued or running:", nrow(findOnSystem(ids[1:9])), "\\n")
invisible(killJobs(ids[1:9]))
while (nrow(findOnSystem()) > 0) Sys.sleep(0.2)
cat("expired:", nrow(findExpired()), "\\n")
cat("known:", nrow(findSubmitted()), "\\n")
""")
    assert "queued or running: 9" in said, said
    # Killed jobs are as if they had never been submitted; the one that ran too long has expired.
    assert "expired: 1" in said and "known: 1" in said, said
    wait_for(lambda: not processes_with(engine, "sleep\x001000"), "nothing is left")
    failed = engine.ask_json("job", "list", "--filter", "failed")
    assert len(failed) == 1
    said = r("""
ids = findNotSubmitted()
submitJobs(ids[1], resources = list(hq = "--priority=3"))
invisible(killJobs(ids[1]))
cat("again:", nrow(ids), "\\n")
""")
    assert "again: 9" in said, said


def test_what_is_refused_is_told(engine):
    Path("script.R").write_text(SETUP + 'ids = batchMap(identity, 1:2)\nsubmitJobs(ids, resources = list(hq = "--no-such-option"))\n')
    ended = engine.run(["Rscript", "script.R"])
    assert ended.returncode == 1 and "no-such-option" in ended.stdout, ended.stdout


def test_batchtools_is_the_published_one():
    said = subprocess.run(
        ["Rscript", "-e", 'cat(as.character(packageVersion("batchtools")))'], capture_output=True, text=True
    ).stdout
    assert said, "needs the Debian package r-cran-batchtools"
