"""Tests pages without problems, without content, without data, and without a server. Used by dashboard.py."""

import re

from playwright.sync_api import expect


def at_the_beginning(page, url):
    """Checks the pages for a server with a worker and without jobs."""
    page.goto(url + "/#/overview")
    expect(page.locator(".problems[aria-live]")).to_have_text("✓ Nothing is wrong.")
    expect(page.locator(".overview")).to_contain_text("hq submit -- hostname")
    page.goto(url + "/#/jobs")
    expect(page.locator(".jobs .nothing")).to_contain_text("There is no job yet")
    page.goto(url + "/#/allocations")
    expect(page.locator(".queues")).to_contain_text("hq alloc add")


def not_there(page, url):
    page.goto(url + "/#/job/999")
    expect(page.get_by_role("heading", name="There is no job 999")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    page.goto(url + "/#/job/2/task/999")
    expect(page.get_by_role("heading", name="There is no task 999 in job 2")).to_be_visible()
    page.goto(url + "/#/nonsense")
    expect(page.get_by_role("heading", name="There is nothing here")).to_be_visible()


def without_the_server(page, url):
    """The stream of events breaks for good. Known data stays, with the time from which it is."""
    page.goto(url + "/#/job/1")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    page.route("**/api/v1/events*", lambda route: route.abort())
    page.reload()
    expect(page.locator("#away")).to_contain_text(re.compile(r"as of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"))
    expect(page.locator(".jobhead")).to_contain_text("Job 1")
    expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
    page.unroute("**/api/v1/events*")
    expect(page.locator("#away")).to_be_hidden()
    expect(page.get_by_role("button", name="Cancel")).to_be_enabled()


def addresses(page, url):
    """Choices are in the address, so they survive a reload and going back."""
    page.goto(url + "/#/jobs")
    expect(page.locator(".jobs .space .row").first).to_be_visible()
    all_jobs = page.locator(".jobs .space .row").count()
    page.get_by_label("State of tasks").select_option("failed")
    expect(page).to_have_url(re.compile("state=failed"))
    expect(page.locator(".jobs .space .row")).to_have_count(1)
    page.get_by_role("columnheader", name="Name").get_by_role("button").click()
    expect(page).to_have_url(re.compile("sort=name"))
    page.reload()
    expect(page.locator(".jobs .space .row")).to_have_count(1)
    expect(page.get_by_role("columnheader", name="Name")).to_have_attribute("aria-sort", "ascending")
    page.go_back()
    page.go_back()
    expect(page.get_by_label("State of tasks")).to_have_value("")
    expect(page.locator(".jobs .space .row")).to_have_count(all_jobs)
    page.goto(url + "/#/overview?span=1h")
    expect(page.get_by_label("Time shown")).to_have_value("1h")


def searches(page, url):
    """Searches for texts that are not in names."""
    page.goto(url + "/#/jobs")
    expect(page.locator(".jobs .space .row").first).to_be_visible()
    search = page.get_by_role("searchbox")
    # The search finds the command, the host and the failure of jobs.
    search.fill("fixed ]")
    expect(page.locator(".jobs .space .row")).to_have_count(1)
    search.fill("the-only-host")
    expect(page.locator("[role=status].muted")).not_to_contain_text("searching")
    assert page.locator(".jobs .space .row").count() >= 2
    search.fill("exit code 7")
    expect(page.locator(".jobs .space .row")).to_have_count(1)
    search.fill("nobody is called so")
    expect(page.locator(".jobs .nothing")).to_contain_text("No job is like that")
    # Tasks are found by their failure, far beyond the first page.
    page.goto(url + "/#/job/6")
    expect(page.locator(".tasks .space .row").first).to_be_visible()
    page.get_by_label("Search tasks").fill("item-2999")
    expect(page.locator(".tasks .space .row")).to_have_count(1)
    expect(page).to_have_url(re.compile("q=item-2999"))
    page.reload()
    expect(page.locator(".tasks .space .row")).to_have_count(1)
    page.get_by_label("Search tasks").fill("")
    # The list also leads beyond the first page.
    grid = page.get_by_role("grid", name="Tasks", exact=True)
    expect(page.locator(".tasks .space .row").nth(3)).to_be_visible()
    grid.focus()
    for _ in range(60):
        page.keyboard.press("End")
        if page.locator(".tasks .space .row", has_text=re.compile("^2.?999")).count() > 0:
            break
        page.wait_for_timeout(100)
    else:
        raise AssertionError("the last task is not reached")


def reading_only(page, url, token):
    """Checks a link that shows everything but cannot change anything."""
    page.evaluate("sessionStorage.clear()")
    page.goto(f"{url}/login#token={token}")
    expect(page.get_by_role("heading", name="What is wrong")).to_be_visible()
    page.goto(url + "/#/job/6")
    for action in ("Hold", "Cancel"):
        expect(page.get_by_role("button", name=action)).to_be_disabled()
    expect(page.locator("#server")).to_contain_text("read only")
    page.goto(url + "/#/workers")
    expect(page.locator(".workers .space .row").first).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("s")
    expect(page.locator("#toasts")).to_contain_text("for reading only")
