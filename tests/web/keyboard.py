"""Everything on the pages can be done without a mouse. Used by dashboard.py.

Jobs: 1 and 5 wait or run, 2 has failed tasks, 4 is a graph.
"""

import re

from playwright.sync_api import expect

SELECTED = "[aria-selected=true]"


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def selected(page, label):
    return page.get_by_role("grid", name=label).locator(SELECTED)


# Faster than the browser reports the address that the first key opens.
TWO_KEYS = """keys => keys.forEach(key => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })))"""


def move_in_lists(page, url):
    page.goto(url + "/#/events")
    expect(page).to_have_title(re.compile("^Events"))
    page.evaluate(TWO_KEYS, ["2", "/"])
    expect(page).to_have_title(re.compile("^Jobs"))
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.goto(url + "/#/events")
    expect(page).to_have_title(re.compile("^Events"))
    press(page, "2")
    # The list gets the focus without Tab or a click.
    expect(page.get_by_role("grid", name="Jobs", exact=True)).to_be_focused()
    press(page, "j")
    first = selected(page, "Jobs").inner_text()
    press(page, "j")
    assert selected(page, "Jobs").inner_text() != first
    press(page, "k")
    assert selected(page, "Jobs").inner_text() == first
    press(page, "G", "g", "Enter")
    expect(page.locator(".jobhead")).to_be_visible()
    press(page, "Backspace")
    # When users return, the row is still selected.
    expect(selected(page, "Jobs")).to_have_count(1)
    # The keys of a list work wherever the focus is.
    page.evaluate("document.activeElement.blur()")
    press(page, "ArrowDown")
    expect(page.get_by_role("grid", name="Jobs", exact=True)).to_be_focused()
    press(page, "/")
    page.keyboard.type("broken")
    expect(page.locator(".jobs .space .row")).to_have_count(1)
    press(page, "Escape", "j", "Enter")
    expect(page).to_have_url(re.compile("#/job/2$"))
    expect(page.locator(".jobhead")).to_be_visible()


def act_on_jobs(page, url):
    page.goto(url + "/#/jobs?q=spare&sort=-id")
    expect(page.locator(".jobs .space .row")).to_have_count(1)
    press(page, "Escape")
    page.get_by_role("grid", name="Jobs", exact=True).focus()
    press(page, "j", "c")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("waiting")
    # The focus moves from the safe answer, which has it first, to the reason, and on to the other answer.
    expect(dialog.get_by_role("button", name="No, leave it")).to_be_focused()
    press(page, "Shift+Tab")
    page.keyboard.type("not needed")
    press(page, "Tab", "Tab", "Enter")
    expect(dialog).to_have_count(0)
    press(page, "Enter")
    expect(page.locator(".jobhead .chip")).to_have_text("canceled")
    expect(page.locator(".jobhead .facts")).to_contain_text("not needed")
    page.goto(url + "/#/job/2")
    expect(page.locator(".failurebox")).to_be_visible()
    press(page, "R")
    expect(page.get_by_role("dialog").get_by_role("button", name="Submit again")).to_be_focused()
    press(page, "Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def act_on_tasks(page, url):
    page.goto(url + "/#/job/2")
    expect(page.locator(".failures .space .row").first).to_be_visible()
    # The first Enter shows what the task wrote, the second one everything about it.
    press(page, "j", "j", "Enter")
    expect(page.locator(".failurebox .tail strong")).to_contain_text("Task")
    press(page, "Enter")
    # The job's view has such a button too.
    expect(page).to_have_title(re.compile(r"^Task \d+ of job 2"))
    expect(page).to_have_url(re.compile(r"#/job/2/task/\d+"))
    expect(page.get_by_role("button", name="stderr")).to_have_attribute("aria-pressed", "true")
    press(page, "o")
    expect(page.get_by_role("button", name="stdout")).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_url(re.compile("stream=stdout"))
    press(page, "/")
    page.keyboard.type("begun")
    expect(page.locator(".tail")).to_contain_text("found 1 times")
    press(page, "Escape", "n")
    expect(page.locator(".tail")).to_contain_text("1 of 1")
    press(page, "u")
    expect(page).to_have_url(re.compile("#/job/2$"))


def act_on_the_rest(page, url):
    page.goto(url + "/#/workers")
    expect(page.locator(".workers .space .row")).to_have_count(1)
    for key, title in (("d", "Drain worker 1?"), ("s", "Stop worker 1?")):
        press(page, "j", key)
        expect(page.get_by_role("dialog")).to_contain_text(title)
        press(page, "Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
    press(page, "Enter")
    expect(page.get_by_role("region", name="Selected worker")).to_contain_text("Worker 1 on")
    press(page, "1")
    expect(page.locator(".problem").first).to_be_visible()
    press(page, "j", "Enter")
    expect(page).to_have_url(re.compile("#/(job|workers)"))
    page.goto(url + "/#/job/4")
    expect(page.get_by_role("link", name="Graph")).to_be_visible()
    press(page, "v")
    expect(page.locator(".node")).to_have_count(2)
    press(page, "j", "Enter")
    expect(page.get_by_role("region", name="Selected step")).to_contain_text("first")
    press(page, "4")
    expect(page.locator(".timeline > [role=status]")).to_contain_text("worker")
    press(page, "-", "ArrowLeft")
    expect(page).to_have_url(re.compile("from="))
    press(page, "n")
    expect(page).to_have_url(re.compile("span="))
    press(page, "0", "j", "k")


def find_by_name(page, url):
    page.goto(url + "/#/overview")
    expect(page.get_by_role("heading", name="What is wrong")).to_be_visible()
    press(page, "Control+k")
    field = page.get_by_role("combobox", name="Action")
    expect(field).to_be_focused()
    page.keyboard.type("brok")
    expect(page.locator(".palette [aria-selected=true]")).to_contain_text("Job 2: broken")
    press(page, "Enter")
    expect(page).to_have_url(re.compile("#/job/2$"))
    expect(page.locator(".failurebox")).to_be_visible()
    press(page, "Control+k")
    page.keyboard.type("again")
    expect(page.locator(".palette [aria-selected=true]")).to_contain_text("Submit the failed tasks")
    press(page, "Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    press(page, "?")
    # The keys of this view take precedence over the keys of all views.
    expect(page.get_by_role("dialog")).to_contain_text("Submit the failed tasks of job 2 again")
    expect(page.get_by_role("dialog")).to_contain_text("Dark or light")
    press(page, "Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)


def use_the_keyboard(page, url):
    move_in_lists(page, url)
    act_on_jobs(page, url)
    act_on_tasks(page, url)
    act_on_the_rest(page, url)
    find_by_name(page, url)
