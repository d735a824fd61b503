"""The web dashboard in a browser. Called by the test `web` of tests/e2e, which starts the server.

    python3 dashboard.py URL TOKEN READ_TOKEN DIR

There is a worker with two cpus on `the-only-host`, and no job yet. HQ is the program, HQ_SERVER_DIR where its server is. DIR is
where the jobs look for the files `go` and `fixed`: job 1 runs until `go` is there, the tasks of job 2
fail until `fixed` is there, job 3 has a hostile name, job 4 is a graph, job 5 waits, job 6 has many tasks, a last one parameters. Ends with an exception
if anything is not as it should be.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

from playwright.sync_api import expect, sync_playwright

import keyboard
import states
from views import Examiner

HOSTILE = "<script>alert(1)</script>"
# The state of a job at the top of its page.
STATE = ".jobhead .chip"
expect.set_options(timeout=60_000)


def answer(url, **headers):
    """Returns status, headers and body of a request made without a browser."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as found:
            return found.status, found.headers, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def without_token(url):
    """Checks that without a token there is only a page that asks for it."""
    for path in ("/", "/login", "/app/index.html", "/app/js/main.js", "/api/v1/jobs", "/api/v1/events", "/metrics"):
        status, headers, body = answer(url + path)
        assert status == 401, (path, status)
        assert "script>alert" not in body and "Jobs" not in body, (path, body)
        assert "unsafe" not in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff", path
    # The key for the pages does not give access to data.
    for wrong in ("Bearer ", "Bearer " + "0" * 64):
        status, _, _ = answer(url + "/api/v1/jobs", Authorization=wrong)
        assert status == 401, wrong


def log_in(page, url, token):
    page.goto(url)
    page.get_by_label("Token").fill("0" * 64)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not the token")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Health")).to_be_visible()
    assert token not in page.url
    kept = {cookie["name"]: cookie for cookie in page.context.cookies()}
    assert kept and all(cookie["httpOnly"] and token not in cookie["value"] for cookie in kept.values())
    cookies = "; ".join(f"{name}={cookie['value']}" for name, cookie in kept.items())
    assert answer(url + "/app/js/main.js", Cookie=cookies)[0] == 200
    assert answer(url + "/api/v1/jobs", Cookie=cookies)[0] == 401, "the cookie opens no data"


GRAPH = """
[[task]]
id = 0
command = ["true"]
[[task]]
id = 1
command = ["echo", "1"]
deps = [0]
[[task]]
id = 2
command = ["echo", "1"]
deps = [0]
"""


def submit_jobs(folder):
    def hq(*args):
        subprocess.run([os.environ["HQ"], *args], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    hq("submit", "--array=1-4", "--cpus=0.25", "--name=patient", "--", "bash", "-c", "until [ -e go ]; do sleep 0.1; done")
    fails = "echo begun; [ -e fixed ] && exit; echo 'the disk is gone <b>for good</b>' >&2; exit 7"
    hq("submit", "--array=1-3", "--cpus=0.1", "--name=broken", "--env", "COLOUR=red", "--", "bash", "-c", fails)
    hq("submit", "--array=1-9", "--cpus=0.1", f"--name={HOSTILE}", "--", "true")
    (folder / "graph.toml").write_text(GRAPH)
    hq("job", "submit-file", "graph.toml")
    hq("submit", "--name=spare", "--cpus=64", "--", "sleep", "1000")
    (folder / "items").write_text("".join(f"item-{number}\n" for number in range(3_000)))
    hq("submit", "--name=many", "--cpus=64", "--each-line=items", "--", "true")


def watch_a_job(page, url, folder):
    page.goto(url + "/#/job/1")
    expect(page.locator(STATE)).to_have_text("running")
    expect(page.locator(".counts")).to_contain_text("running")
    (folder / "go").touch()
    expect(page.locator(STATE)).to_have_text("finished")
    expect(page.locator(".counts")).to_have_text("4 finished")


def mend_a_failure(page, url, folder):
    page.goto(url + "/#/overview")
    # Its job has ended: users can still open it.
    page.locator(".quiet summary").click()
    problem = page.locator(".quiet .problem", has_text="2 broken")
    expect(problem).to_contain_text("mostly: exit code 7")
    expect(problem).to_contain_text("the last words: the disk is gone")
    expect(problem).to_contain_text(" ago")
    # The whole card leads there, not its title alone.
    problem.get_by_role("paragraph").click()
    expect(page.locator(STATE)).to_have_text("failed")
    # Failures come first, with what they have in common and the end of what the last one wrote.
    expect(page.locator(".group .said")).to_have_text("the disk is gone <b>for good</b> seen in 3 of the 3 logs read")
    expect(page.locator(".failurebox .log")).to_contain_text("the disk is gone")
    row = page.locator(".failures .space .row").first
    expect(row).to_contain_text("exit code 7")
    row.get_by_role("link").click()
    expect(page.locator(".why")).to_have_text("exit code 7")
    expect(page.locator(".log")).to_contain_text("the disk is gone <b>for good</b>")
    expect(page.locator(".facts").first).to_contain_text("exit 7")
    expect(page.locator(".env")).to_contain_text("COLOUR")
    page.get_by_role("button", name="stdout").click()
    expect(page.locator(".log")).to_contain_text("begun")
    expect(page.locator(".path")).to_contain_text(".stdout")
    (folder / "fixed").touch()
    again = page.get_by_role("button", name="Resubmit all 3 failed of job 2")
    again.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="No, leave it").click()
    expect(dialog).to_have_count(0)
    again.click()
    page.get_by_role("dialog").get_by_role("button", name="Submit again").click()
    expect(page).to_have_url(re.compile(r"#/job/\d+$"))
    assert not page.url.endswith("/2"), page.url
    expect(page.locator(STATE)).to_have_text("finished")
    expect(page.locator(".counts")).to_have_text("3 finished")
    again = page.url.rsplit("/", 1)[1]
    page.goto(url + "/#/overview")
    page.locator(".quiet summary").click()
    problem.get_by_role("link", name=f"submitted again as job {again}").click()
    expect(page).to_have_url(re.compile(rf"#/job/{again}$"))


def look_at_parameters(page, url, folder, examiner):
    """Checks parameters by state, next to failures, and as columns of the tasks."""
    unlucky = "[ {seed} != 13 ] || { echo 'seed {seed} is unlucky at {lr}' >&2; exit 1; }"
    command = ["submit", "--output-mode=quiet", "--cpus=0.1", "--param", "lr=0.1,0.01", "--param", "seed=11-13", "--", "bash", "-c", unlucky]
    job = subprocess.run([os.environ["HQ"], *command], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    page.goto(f"{url}/#/job/{job}")
    expect(page.locator(STATE)).to_have_text("failed")
    row = page.locator(".parameters tr", has_text="seed=13")
    expect(row.locator("td").last).to_have_text("2")
    expect(page.locator(".parameters tbody tr")).to_have_count(5)
    said = page.locator(".group .said")
    expect(said).to_contain_text(re.compile("^seed 13 is unlucky at 0.1? with seed=13 seen in 2 of the 2 logs"))
    expect(page.locator(".failures .space .row").first).to_contain_text(re.compile("lr=0\\.0?1, seed=13"))
    heads = page.get_by_role("grid", name="Tasks", exact=True).get_by_role("columnheader")
    expect(heads.nth(2)).to_have_text("lrseed")
    row.get_by_role("button").click()
    expect(page).to_have_url(re.compile("q=seed%3D13"))
    expect(page.locator(".tasks .space .row")).to_have_count(2)
    expect(page.locator(".tasks .space .row").first).to_contain_text("0.113")
    examiner.examine("parameters")


def hold_and_signal(page, url, folder, examiner):
    """Holds and releases a job and a task, with buttons and keys, and sends a signal to a task."""
    head, toasts, dialog = page.locator(".jobhead"), page.locator("#toasts"), page.get_by_role("dialog")
    page.goto(url + "/#/job/6")
    page.get_by_role("button", name="Hold").click()
    expect(dialog).to_contain_text(re.compile("3.?000 waiting tasks do not start"))
    page.keyboard.press("Enter")
    expect(toasts).to_contain_text(re.compile("Job 6 held: 3.?000 tasks will wait"))
    expect(head.locator(".facts")).to_contain_text(re.compile("held *3.?000 tasks"))
    expect(head.locator(".why")).to_contain_text("is held by a user")
    page.get_by_role("button", name="Release").click()
    dialog.get_by_role("button", name="Release").click()
    expect(page.get_by_role("button", name="Hold")).to_be_visible()
    expect(page.get_by_role("button", name="Release")).to_have_count(0)
    page.goto(url + "/#/job/6/task/7")
    expect(page.get_by_role("button", name="Hold")).to_be_enabled()
    page.keyboard.press("h")
    dialog.get_by_role("button", name="Hold").click()
    expect(page.locator(".why")).to_contain_text("it is held by a user")
    page.keyboard.press("H")
    expect(dialog).to_contain_text("Release task 7 of job 6?")
    page.keyboard.press("Enter")
    expect(page.locator(".why")).not_to_contain_text("held")
    traps = "trap 'echo caught; exit' USR1; echo up; while :; do sleep 0.1; done"
    command = ["submit", "--output-mode=quiet", "--cpus=0.1", "--", "bash", "-c", traps]
    job = subprocess.run([os.environ["HQ"], *command], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    page.goto(f"{url}/#/job/{job}/task/0")
    expect(page.locator(".log")).to_contain_text("up")
    page.get_by_role("button", name="Signal").click()
    examiner.examine("signal")
    dialog.get_by_label("Signal", exact=True).select_option("SIGUSR1")
    dialog.get_by_role("button", name="Send").click()
    expect(toasts).to_contain_text(f"Signal sent to task 0 of job {job}")
    expect(page.locator(".log")).to_contain_text("caught")
    expect(page.locator(".task .chip")).to_have_text("finished")
    expect(page.get_by_role("button", name="Signal")).to_have_count(0)


def see_limits(page, url, folder, examiner):
    """Checks limits on the overview, which shows them only if there are any, and on the page of a job."""
    def hq(*args):
        return subprocess.run([os.environ["HQ"], *args], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    page.goto(url + "/#/overview")
    expect(page.get_by_role("heading", name="Cluster")).to_be_visible()
    limits = page.locator(".limits")
    expect(limits).to_be_hidden()
    hq("limit", "set", "db", "1")
    job = hq("submit", "--output-mode=quiet", "--limit=db", "--array=1-3", "--cpus=0.1", "--", "sleep", "1000")
    row = limits.get_by_role("row", name="db")
    expect(row.get_by_role("cell")).to_have_text(["db", "1", "1", "2", f"{job} (1)"])
    examiner.examine("limits")
    row.get_by_role("link", name=job).click()
    expect(page).to_have_url(re.compile(f"#/job/{job}$"))
    expect(page.locator(".jobhead .why")).to_contain_text(f"Tasks wait for limit db: 1 of 1 in use by job {job} (1)")
    hq("job", "cancel", job)
    hq("limit", "remove", "db")
    expect(page.locator(".jobhead .why")).to_be_hidden()
    page.goto(url + "/#/overview")
    expect(page.get_by_role("heading", name="Cluster")).to_be_visible()
    expect(limits).to_be_hidden()


def acknowledge_a_problem(page, url):
    """Acknowledges a problem with the mouse, and takes that back with keys."""
    page.goto(url + "/#/overview")
    problem = page.locator(".problem", has_text="5 spare")
    expect(problem).to_contain_text("no worker has more")
    expect(problem).to_contain_text(re.compile(r"for \d"))
    problem.get_by_role("button", name="Acknowledge").click()
    page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
    summary = page.locator(".quiet summary")
    expect(summary).to_contain_text("1 acknowledged")
    expect(problem).not_to_be_visible()
    summary.focus()
    page.keyboard.press("Enter")
    expect(problem).to_be_visible()
    problem.get_by_role("link", name="5 spare").focus()
    page.keyboard.press("A")
    expect(page.get_by_role("dialog")).to_contain_text("as an open one again")
    page.keyboard.press("Enter")
    expect(page.locator(".problems:not(.quiet *) > .problem", has_text="5 spare")).to_be_visible()
    expect(summary).not_to_contain_text("acknowledged")


def show_every_view(page, url):
    page.goto(url + "/#/jobs")
    # The name is shown as text. A script would have opened a dialog, which is an error below.
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    page.get_by_role("searchbox").fill("SCRIPT")
    expect(page.locator(".jobs .space .row")).to_have_count(1)
    page.get_by_role("searchbox").fill("")
    page.get_by_role("searchbox").blur()
    for key, heading in (("3", "Workers"), ("4", "Timeline"), ("5", "Allocations"), ("6", "Events"), ("2", "Jobs")):
        page.keyboard.press(key)
        expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
    page.goto(url + "/#/job/4/graph")
    expect(page.locator(".node")).to_have_count(2)
    expect(page.locator(".edgecount")).to_have_text("2")
    page.goto(url + "/#/timeline")
    expect(page.locator(".timeline > [role=status]")).to_contain_text(re.compile(r"\d+ tasks on 1 worker"))
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", re.compile("dark|light"))


def begin_anew_after_a_gap(page, url):
    """Checks that the page starts anew if the server does not have the missing events at hand."""
    asked = []

    def say_so(route):
        asked.append(route.request.headers.get("last-event-id"))
        if len(asked) == 1:
            route.fulfill(content_type="text/event-stream", body="event: resync\nid: 1\ndata: {}\n\n")
        else:
            route.continue_()

    page.route("**/api/v1/events*", say_so)
    page.goto(url + "/#/events")
    # Start from the address again, with new connections.
    page.reload()
    expect(page.locator(".events .space .row").first).to_be_visible()
    until = time.monotonic() + 60
    while len(asked) < 2:
        assert time.monotonic() < until, "it does not come back"
        page.wait_for_timeout(50)
    expect(page.locator("#live")).to_have_text("live")
    assert asked[:2] == [None, "1"], asked
    page.unroute("**/api/v1/events*")


def examine_every_view(page, url, wrong):
    """Checks both themes, on a desktop and on a phone: no violation of the rules of accessibility, and nothing is wider than the screen."""
    examiner = Examiner(page, wrong)
    views = {
        "overview": ("overview", ".problem"), "jobs": ("jobs", ".jobs .space .row"), "job": ("job/2", ".failures .space .row"), "task": ("job/2/task/1", ".log"),
        "workers": ("workers?worker=1", "dl.facts"), "timeline": ("timeline", ".timeline > [role=status]"), "allocations": ("allocations", ".emptiness"),
        "events": ("events", ".events .space .row"), "graph": ("job/4/graph?template=0", ".graphdetails .log"), "unknown": ("job/999", ".absence"),
    }
    for name, (path, sign) in views.items():
        page.goto(f"{url}/#/{path}")
        expect(page.locator(sign).first).to_be_visible()
        page.keyboard.press("j")
        examiner.examine(name)
    page.goto(url + "/#/job/1")
    expect(page.get_by_role("button", name="Cancel")).to_be_enabled()
    for name, key in (("keys", "?"), ("commands", "Control+k"), ("question", "c")):
        page.keyboard.press(key)
        expect(page.get_by_role("dialog")).to_be_visible()
        examiner.examine(name)
        page.keyboard.press("Escape")
    return examiner


def main():
    url, token, read_token, folder = sys.argv[1].rstrip("/"), sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4])
    without_token(url)
    wrong = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("HQ_CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox"] if os.getuid() == 0 else [],
        )
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.set_default_timeout(60_000)
            page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
            page.on("dialog", lambda dialog: (wrong.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
            refused = "Refused|Content Security Policy|TrustedHTML"
            page.on("console", lambda line: re.search(refused, line.text) and wrong.append(line.text))
            page.goto(url)
            Examiner(page, wrong).examine("login")
            log_in(page, url, token)
            states.at_the_beginning(page, url)
            submit_jobs(folder)
            states.not_there(page, url)
            states.without_the_server(page, url)
            states.addresses(page, url)
            states.searches(page, url)
            examiner = examine_every_view(page, url, wrong)
            acknowledge_a_problem(page, url)
            keyboard.use_the_keyboard(page, url)
            watch_a_job(page, url, folder)
            mend_a_failure(page, url, folder)
            show_every_view(page, url)
            look_at_parameters(page, url, folder, examiner)
            hold_and_signal(page, url, folder, examiner)
            see_limits(page, url, folder, examiner)
            begin_anew_after_a_gap(page, url)
            states.reading_only(page, url, read_token)
        finally:
            browser.close()
    assert not wrong, wrong
    print("all as it should be")


main()
