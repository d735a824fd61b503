"""The site of the manual in a browser: no request to another host, accessible, and no wider than the screen.

    python3 manual.py FOLDER

FOLDER is what `cargo xtask site` has made. Needs Playwright for Python, Chromium and HQ_WEB_TOOLS (see views.py);
HQ_WEB_PICTURES=FOLDER keeps pictures of the pages.
"""

import functools
import http.server
import os
import shutil
import sys
import threading

from playwright.sync_api import expect, sync_playwright

from views import Examiner

# The home page, long code, pictures with tables, and code in lists.
PAGES = ("index", "jobs", "web", "slurm")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def search(page):
    """Opens the search with at least one result."""
    page.keyboard.press("Control+k")
    page.keyboard.type("walltime")
    expect(page.get_by_role("option").first).to_contain_text("walltime", timeout=300_000)


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=sys.argv[1]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    wrong = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("HQ_CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox"] if os.getuid() == 0 else [],
        )
        try:
            page = browser.new_page()
            # A busy machine takes more than a minute for the first page.
            page.set_default_timeout(300_000)
            page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
            page.on("request", lambda asked: asked.url.startswith((url, "data:")) or wrong.append(f"{page.url} asks for {asked.url}"))
            page.on("response", lambda got: got.status < 400 or wrong.append(f"{got.url}: {got.status}"))
            examiner = Examiner(page, wrong)
            for name in PAGES:
                page.goto(f"{url}{name}.html")
                examiner.examine(name)
            search(page)
            examiner.examine("search")
        finally:
            browser.close()
    assert not wrong, "\n".join(wrong)


main()
