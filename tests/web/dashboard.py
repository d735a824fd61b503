"""The web dashboard in a browser. Called by the test `web` of tests/e2e, which starts the server.

    python3 dashboard.py URL TOKEN DIR

DIR is where the jobs look for the files `go` and `fixed`: job 1 runs until `go` is there, the tasks of job 2
fail until `fixed` is there, job 3 has a hostile name. Ends with an exception if anything is not as it should be.
"""

import os
import pathlib
import re
import shutil
import sys
import time
import urllib.error
import urllib.request

from playwright.sync_api import expect, sync_playwright

HOSTILE = "<script>alert(1)</script>"
# What a job shows at the top of its page.
STATE = ".jobhead .chip"
expect.set_options(timeout=60_000)


def answer(url, **headers):
    """Status, headers and body of a request without a browser."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as found:
            return found.status, found.headers, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def without_token(url):
    """Nothing but a page that asks for the token."""
    for path in ("/", "/login", "/app/index.html", "/app/js/main.js", "/api/v1/jobs", "/api/v1/events", "/metrics"):
        status, headers, body = answer(url + path)
        assert status == 401, (path, status)
        assert "script>alert" not in body and "Jobs" not in body, (path, body)
        assert "unsafe" not in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff", path
    # What opens the pages does not open the data.
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
    expect(page.get_by_role("heading", name="What is wrong")).to_be_visible()
    assert token not in page.url
    kept = {cookie["name"]: cookie for cookie in page.context.cookies()}
    assert kept and all(cookie["httpOnly"] and token not in cookie["value"] for cookie in kept.values())
    cookies = "; ".join(f"{name}={cookie['value']}" for name, cookie in kept.items())
    assert answer(url + "/app/js/main.js", Cookie=cookies)[0] == 200
    assert answer(url + "/api/v1/jobs", Cookie=cookies)[0] == 401, "the cookie opens no data"


def watch_a_job(page, url, folder):
    page.goto(url + "/#/job/1")
    expect(page.locator(STATE)).to_have_text("running")
    expect(page.locator(".counts")).to_contain_text("running")
    (folder / "go").touch()
    expect(page.locator(STATE)).to_have_text("finished")
    expect(page.locator(".counts")).to_have_text("4 finished")


def mend_a_failure(page, url, folder):
    page.goto(url + "/#/overview")
    problem = page.locator(".problem", has_text="2 broken")
    expect(problem).to_contain_text("mostly: exit code 7")
    problem.get_by_role("link").click()
    expect(page.locator(STATE)).to_have_text("failed")
    # Failures come first, with the end of what the last one wrote.
    expect(page.locator(".failurebox .log")).to_contain_text("the disk is gone")
    row = page.locator(".failures .rows .row").first
    expect(row).to_contain_text("exit code 7")
    row.get_by_role("link").click()
    expect(page.locator(".why")).to_have_text("exit code 7")
    expect(page.locator(".log")).to_contain_text("the disk is gone <b>for good</b>")
    page.get_by_role("button", name="stdout").click()
    expect(page.locator(".log")).to_contain_text("begun")
    (folder / "fixed").touch()
    page.get_by_role("button", name="Resubmit failed").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="No, leave it").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Resubmit failed").click()
    page.get_by_role("dialog").get_by_role("button", name="Submit again").click()
    expect(page).to_have_url(re.compile(r"#/job/\d+$"))
    assert not page.url.endswith("/2"), page.url
    expect(page.locator(STATE)).to_have_text("finished")
    expect(page.locator(".counts")).to_have_text("3 finished")


def show_every_view(page, url):
    page.goto(url + "/#/jobs")
    # As text: a script would have opened a dialog, which is an error below.
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    page.get_by_role("searchbox").fill("SCRIPT")
    expect(page.locator(".jobs .rows .row")).to_have_count(1)
    page.get_by_role("searchbox").fill("")
    page.get_by_role("searchbox").blur()
    for key, heading in (("3", "Workers"), ("4", "Timeline"), ("5", "Allocations"), ("6", "Events"), ("2", "Jobs")):
        page.keyboard.press(key)
        expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    page.locator(".jobs .rows").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".jobhead")).to_be_visible()
    page.goto(url + "/#/job/4/graph")
    expect(page.locator(".node")).to_have_count(2)
    expect(page.locator(".edgecount")).to_have_text("2")
    page.goto(url + "/#/timeline")
    expect(page.locator(".timeline > [role=status]")).to_contain_text(re.compile(r"\d+ tasks on 1 worker"))
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", re.compile("dark|light"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("dark or light")
    page.keyboard.press("Escape")


def begin_anew_after_a_gap(page, url):
    """The server does not have the missing events at hand, and says so."""
    asked = []

    def say_so(route):
        asked.append(route.request.headers.get("last-event-id"))
        if len(asked) == 1:
            route.fulfill(content_type="text/event-stream", body="event: resync\nid: 1\ndata: {}\n\n")
        else:
            route.continue_()

    page.route("**/api/v1/events*", say_so)
    page.goto(url + "/#/events")
    # From the address on, with new connections.
    page.reload()
    expect(page.locator(".events .rows .row").first).to_be_visible()
    until = time.monotonic() + 60
    while len(asked) < 2:
        assert time.monotonic() < until, "it does not come back"
        page.wait_for_timeout(50)
    expect(page.locator("#live")).to_have_text("live")
    assert asked[:2] == [None, "1"], asked
    page.unroute("**/api/v1/events*")


def on_a_phone(page, url):
    page.set_viewport_size({"width": 390, "height": 844})
    for view in ("overview", "jobs", "job/2", "workers", "timeline", "allocations", "events"):
        page.goto(f"{url}/#/{view}")
        expect(page.locator("main > *")).to_be_visible()
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, f"{view} is {width} px wide"


def main():
    url, token, folder = sys.argv[1].rstrip("/"), sys.argv[2], pathlib.Path(sys.argv[3])
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
            log_in(page, url, token)
            watch_a_job(page, url, folder)
            mend_a_failure(page, url, folder)
            show_every_view(page, url)
            begin_anew_after_a_gap(page, url)
            on_a_phone(page, url)
        finally:
            browser.close()
    assert not wrong, wrong
    print("all as it should be")


main()
