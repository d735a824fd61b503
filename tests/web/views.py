"""Requirements of every view: accessible, and no wider than the screen. Also makes the pictures of docs/web.

Used by dashboard.py, which opens the browser.
"""

import os
import pathlib

SIZES = {"desktop": (1440, 900), "phone": (390, 844)}
THEMES = ("light", "dark")
# The rules of axe: those for WCAG 2.2 up to level AA, and the best practices of its authors.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
AXE = """async ([rules]) => (await axe.run(document, { runOnly: rules, resultTypes: ["violations"] })).violations.map(
    ({ id, impact, nodes }) => `${id} (${impact}): ${nodes.map((node) => node.target.join(" ")).slice(0, 5).join(", ")}`)"""


def axe_source():
    """Returns the program that looks for violations. HQ_WEB_TOOLS is where tests/web/tools/check fetched it."""
    folder = os.environ.get("HQ_WEB_TOOLS")
    assert folder, "HQ_WEB_TOOLS has to name the folder that `tests/web/tools/check FOLDER --fetch` has filled"
    return (pathlib.Path(folder) / "node_modules/axe-core/axe.min.js").read_text()


class Examiner:
    """Examines views in both themes and two sizes. `wrong` collects the violations."""

    def __init__(self, page, wrong):
        self.page = page
        self.wrong = wrong
        self.axe = axe_source()
        pictures = os.environ.get("HQ_WEB_PICTURES")
        self.pictures = pathlib.Path(pictures) if pictures else None

    def examine(self, name):
        """Examines the view that is open."""
        for size, (width, height) in SIZES.items():
            self.page.set_viewport_size({"width": width, "height": height})
            for theme in THEMES:
                self.page.emulate_media(color_scheme=theme)
                # Colors would otherwise be judged in the middle of a transition.
                self.page.evaluate("() => Promise.all(document.getAnimations().map((one) => one.finished))")
                where = f"{name}, {theme}, {size}"
                self.page.evaluate(self.axe)
                self.wrong += [f"{where}: {found}" for found in self.page.evaluate(AXE, [RULES])]
                wide = self.page.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    self.wrong.append(f"{where}: {wide} px wide")
                if self.pictures:
                    self.pictures.mkdir(parents=True, exist_ok=True)
                    # Canvases draw their own colors.
                    self.page.wait_for_timeout(300)
                    self.page.screenshot(path=self.pictures / f"{name}-{size}-{theme}.png")
        self.page.set_viewport_size({"width": 1280, "height": 800})
