"""An open dashboard whose port another process takes over. Called by the test `web` of tests/e2e, which starts the server.

    python3 stranger.py URL TOKEN PID

Kills the server PID and listens on its port in its place, as any user of the machine could. Prints what the pages sent as
`Authorization`, one line each. Ends with an exception if the token was sent, or if the page does not say what
happened.
"""

import http.server
import os
import shutil
import signal
import sys
import threading
import urllib.parse

from playwright.sync_api import expect, sync_playwright

expect.set_options(timeout=60_000)
# A page that reads the secrets of an origin that was taken over.
THIEF = b"""<!doctype html><title>thief</title><script>
const channel = new BroadcastChannel("hq-token");
window.stolen = [JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie];
channel.onmessage = ({ data }) => stolen.push(JSON.stringify(data));
channel.postMessage("ask");
</script>"""


class Stranger(http.server.BaseHTTPRequestHandler):
    """Answers every request, and records it."""

    said = []

    def answer(self):
        head = f"{self.requestline}\n{self.headers}"
        self.said.append((head, self.headers.get("Authorization")))
        self.send_response(200)
        is_page = self.path.startswith("/thief")
        self.send_header("Content-Type", "text/html" if is_page else "application/json")
        body = THIEF if is_page else b'{"now_ms": 1, "proof": "00"}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True


def take_over(page, url, pid):
    """Kills the server and takes over its port before the page notices."""
    port = urllib.parse.urlparse(url).port
    os.kill(pid, signal.SIGKILL)
    while True:
        try:
            server = Server(("127.0.0.1", port), Stranger)
            break
        except OSError:
            page.wait_for_timeout(1)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main():
    url, token, pid = sys.argv[1].rstrip("/"), sys.argv[2], int(sys.argv[3])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("HQ_CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox"] if os.getuid() == 0 else [],
        )
        try:
            context = browser.new_context()
            context.set_default_timeout(60_000)
            page = context.new_page()
            page.goto(f"{url}/login#token={token}")
            expect(page.locator("#live")).to_have_text("live")
            second = context.new_page()
            second.goto(url + "/#/jobs")
            expect(second.locator("#live")).to_have_text("live")
            server = take_over(page, url, pid)
            for tab in (page, second):
                expect(tab.locator("#away")).to_contain_text("hq dashboard --web")
            thief = context.new_page()
            thief.goto(url + "/thief")
            # By now, an honest page would have answered a second tab.
            thief.wait_for_timeout(1_500)
            stolen = thief.evaluate("stolen")
            page.goto(url + "/thief")
            stolen += page.evaluate("stolen")
            server.shutdown()
        finally:
            browser.close()
    assert Stranger.said, "nobody came"
    for text in [head for head, _ in Stranger.said] + stolen:
        assert token not in text, text
    for _, shown in Stranger.said:
        if shown:
            print(shown)


main()
