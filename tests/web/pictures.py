"""Makes the pictures of docs: a run with everything that can go wrong, on the web, on a terminal and as a report, in light and dark.

    python3 pictures.py HQ FOLDER [--quick]

HQ is the program, and FOLDER contains the folders with pictures (docs). With --quick the run is short and each picture is made once,
in a second or two. A test in tests/e2e does that, so that this script keeps working. Needs Playwright for Python and Chromium.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from playwright.sync_api import expect, sync_playwright

from terminal import Terminal

expect.set_options(timeout=60_000)
DESKTOP = {"width": 1200, "height": 780}
PHONE = {"width": 390, "height": 844}
REFUSAL = "#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpux' >&2\nexit 1\n"
WORKERS = [
    ("node01", "--cpus=4"), ("node02", "--cpus=4"), ("node03", "--cpus=8"),
    ("gpu01", "--cpus=8", "--resource=gpus/nvidia=[0,1]"),
]
GRAPH = """
name = "variants"
[[task]]
id = 0
command = ["bash", "-c", "split reference.fa regions/"]
""" + "".join(f"""
[[task]]
id = {number}
command = ["/opt/tools/bin/call-variants", "regions/{number}.bed"]
deps = [0]
""" for number in range(1, 5)) + """
[[task]]
id = 20
command = ["python3", "/opt/tools/lib/merge.py", "--all"]
deps = [1, 2, 3, 4]
[[task]]
id = 21
command = ["bash", "-c", "report --html merged.vcf"]
deps = [20]
"""
# Tools that the tasks of the graph call; a cluster would have real ones.
TOOLS = {
    "split": "echo 8 regions", "call-variants": "sleep $((RANDOM % 3)); echo called $1",
    "merge": "sleep 600",
    # Runs merge.py; the real one would name the place where it is installed here.
    "python3": "exec merge",
}


class Run:
    """A server with jobs and workers; one worker is broken."""

    def __init__(self, hq, folder):
        self.hq_path, self.folder, self.started = hq, folder, []
        tools = folder / "bin"
        tools.mkdir()
        for name, body in {**{name: f"#!/bin/bash\n{body}\n" for name, body in TOOLS.items()}, "sbatch": REFUSAL}.items():
            (tools / name).write_text(body)
            (tools / name).chmod(0o755)
        self.env = {**os.environ, "HQ_SERVER_DIR": str(folder / "server"), "PATH": f"{tools}:{os.environ['PATH']}"}

    def hq(self, *args):
        done = subprocess.run([self.hq_path, *args], cwd=self.folder, env=self.env, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return done.stdout.strip()

    def start(self, name, *args):
        with open(self.folder / f"{name}.log", "w") as log:
            self.started.append(subprocess.Popen([self.hq_path, *args], cwd=self.folder, env=self.env, stdout=log, stderr=log))

    def tasks(self, state):
        """Returns how many tasks are in one of the states, by the name of their job."""
        jobs = json.loads(self.hq("job", "list", "--all", "--output-mode=json"))
        return {job["name"]: sum(job["task_stats"][name] for name in state) for job in jobs}

    def ended(self):
        return sum(self.tasks(["finished", "failed"]).values())

    def wait(self, what, condition):
        until = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < until, f"still not: {what}"
            time.sleep(0.1)

    def begin(self, is_quick):
        self.start("server", "server", "start", "--http", "--journal=run.db")
        self.wait("a server", lambda: (self.folder / "server/hq-current/http-token").exists())
        for host, *args in WORKERS:
            self.start(host, "worker", "start", "--detect-resources=cpus", f"--hostname={host}", "--heartbeat=1s", *args)
        listed = lambda: len(self.hq("worker", "list", "--output-mode=quiet").splitlines())
        self.wait("four workers", lambda: listed() == len(WORKERS))
        count, pause = ("30", "0.0") if is_quick else ("600", "0.")
        script = f"sleep {pause}$((RANDOM % 9 + 1)); echo chunk $HQ_TASK_ID"
        self.hq("submit", "--name=prepare", f"--array=1-{count}", "--cpus=2", "--", "bash", "-c", script)
        fails = "sleep 0.$((RANDOM % 9 + 1)); if [ $((HQ_TASK_ID % 23)) = 7 ]; then echo 'Traceback (most recent call last):' >&2; " \
                "echo \"ValueError: reference index missing for chr$HQ_TASK_ID\" >&2; exit 2; fi; echo aligned $HQ_TASK_ID"
        self.hq("submit", "--name=align", "--array=1-30" if is_quick else "--array=1-2000", "--", "bash", "-c", fails)
        self.hq("submit", "--name=train", "--array=1-60", "--cpus=1", "--resource=gpus/nvidia=1", "--time-limit=2s", "--", "bash", "-c",
                "echo epoch $HQ_TASK_ID; sleep $((HQ_TASK_ID % 4 + 1)).5")
        self.hq("submit", "--name=assemble", "--cpus=64", "--", "assemble", "--all")
        (self.folder / "graph.toml").write_text(GRAPH.replace("/opt/tools/bin/", str(self.folder / "bin") + "/"))
        self.hq("job", "submit-file", "graph.toml")
        self.hq("alloc", "add", "slurm", "--time-limit=1h", "--name=gpu", "--no-dry-run")
        # This job is canceled early, to appear in the timeline.
        mistake = self.hq("submit", "--output-mode=quiet", "--name=mistake", "--array=1-4", "--cpus=2", "--priority=9", "--", "sleep", "600")
        self.wait("all of the mistake runs", lambda: self.tasks(["running"])["mistake"] == 4)
        self.wait("there is something to cancel", lambda: self.ended() >= (5 if is_quick else 200))
        self.hq("job", "cancel", mistake, "--reason", "wrong parameters")
        if not is_quick:
            self.wait("there is something to see", lambda: self.ended() >= 900)
        # This node is lost.
        self.started[2].kill()
        self.wait("a failed task", lambda: "FAILED" in self.hq("job", "list", "--all", "--output-mode=cli"))

    def end(self):
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


# The names and addresses of views, and what they show once they are drawn.
VIEWS = [
    ("overview", "overview", ".problem"), ("jobs", "jobs", ".jobs .space .row"), ("job", "job/2", ".failures .space .row"),
    ("task", "job/2/task/7", ".log"), ("workers", "workers?worker=1", "dl.facts"), ("timeline", "timeline", ".timeline > [role=status]"),
    ("allocations", "allocations", ".queue"), ("events", "events", ".events .space .row"), ("graph", "job/5/graph", ".node"),
]


def save(picture, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture)
    # Where Pillow is installed, the size is reduced to a third, without a visible difference.
    with contextlib.suppress(ImportError):
        from PIL import Image

        with Image.open(path) as found:
            found.convert("RGB").quantize(128).save(path, optimize=True)


def shoot(page, url, folder, is_quick):
    for name, path, sign in VIEWS:
        page.goto(f"{url}/#/{path}")
        expect(page.locator(sign).first).to_be_visible()
        # Pictures, charts and lists come after the first answers.
        page.wait_for_timeout(200 if is_quick else 2_000)
        for theme in ("light",) if is_quick else ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.wait_for_timeout(50 if is_quick else 700)
            save(page.screenshot(), folder / f"{name}{'' if theme == 'light' else '-dark'}.png")
    page.set_viewport_size(PHONE)
    page.goto(f"{url}/#/overview")
    expect(page.locator(".problem").first).to_be_visible()
    save(page.screenshot(), folder / "phone.png")


# The names of screens, the keys that lead to them, and what they then show.
SCREENS = [
    ("overview", "1", "Failing job"), ("job", "2/align\r\r", "last first"), ("tasks", "a/failed\r", "), matching"),
    ("log", "\r", "ValueError"), ("workers", "3", "node02"), ("allocations", "4", "gpu"),
]


def shoot_terminal(page, run, folder, is_quick):
    terminal = Terminal([run.hq_path, "dashboard"], run.env, 118, 34)
    try:
        for name, keys, sign in SCREENS:
            terminal.press(keys)
            terminal.shows(sign)
            terminal.settle()
            for theme in ("light",) if is_quick else ("light", "dark"):
                page.set_content(terminal.as_html(theme))
                save(page.locator("pre").screenshot(), folder / f"{name}{'' if theme == 'light' else '-dark'}.png")
    finally:
        terminal.end()


# The headings at the top of the pictures of the report.
PARTS = [("costs", "Costs"), ("jobs", "Jobs by cost")]


def shoot_report(page, run, folder, is_quick):
    run.hq("journal", "report", "run.db", "run.html")
    page.goto((run.folder / "run.html").as_uri())
    for name, heading in PARTS:
        page.locator("h1, h2", has_text=re.compile(f"^{heading}")).evaluate("heading => heading.parentElement.scrollIntoView()")
        for theme in ("light",) if is_quick else ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.wait_for_timeout(50 if is_quick else 700)
            save(page.screenshot(), folder / f"{name}{'' if theme == 'light' else '-dark'}.png")


def main():
    hq, folder, is_quick = sys.argv[1], pathlib.Path(sys.argv[2]), "--quick" in sys.argv
    with tempfile.TemporaryDirectory() as place:
        run = Run(str(pathlib.Path(hq).resolve()), pathlib.Path(place))
        try:
            run.begin(is_quick)
            link = run.hq("dashboard", "--web", "--output-mode=quiet")
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=os.environ.get("HQ_CHROMIUM") or shutil.which("chromium"),
                    args=["--no-sandbox"] if os.getuid() == 0 else [],
                )
                page = browser.new_page(viewport=DESKTOP, color_scheme="light")
                page.goto(link)
                expect(page.locator("#live")).to_have_text("live")
                shoot(page, link.split("/login")[0], folder / "web", is_quick)
                page.set_viewport_size(DESKTOP)
                page.emulate_media(color_scheme="light")
                shoot_terminal(browser.new_page(viewport=DESKTOP), run, folder / "dashboard", is_quick)
                shoot_report(browser.new_page(viewport=DESKTOP), run, folder / "report", is_quick)
                browser.close()
        finally:
            run.end()
    print(f"pictures are in {folder}")


main()
