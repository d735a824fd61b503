"""Runs a program on a terminal, and returns its screen as text and as HTML. Supports only the output of `hq dashboard`."""

import fcntl
import html
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

CONTROL = re.compile(rb"\x1b\[([?<>=]?)([0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[=>()].?")
# The background, the text, and the eight colors.
THEMES = {
    "dark": ["#16181d", "#d8dade", "#16181d", "#d9685a", "#6cc46c", "#d8a23c", "#6aa5e8", "#c07ad0", "#52bfd4", "#d8dade"],
    "light": ["#ffffff", "#22262c", "#22262c", "#b3261e", "#1f7a3a", "#8f5a0f", "#1f5fb5", "#7a3a8c", "#0f6f80", "#8a9099"],
}
GREY = {"dark": "#868b94", "light": "#646b75"}


class Terminal:
    """Runs a command on a separate terminal."""

    def __init__(self, command, env, columns, rows):
        self.columns, self.rows = columns, rows
        self.cells = {}
        self.at, self.style, self.rest = (0, 0), (None, False, False), b""
        self.master, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.child = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, start_new_session=True,
            env={**env, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"},
        )
        os.close(other)

    def press(self, keys):
        os.write(self.master, keys.encode())

    def shows(self, sign):
        """Waits until a text is on the screen."""
        until = time.monotonic() + 60
        while sign not in self.text():
            assert time.monotonic() < until, f"still no {sign!r} in\n{self.text()}"
            if select.select([self.master], [], [], 0.2)[0]:
                self.feed(os.read(self.master, 65_536))

    def settle(self):
        """Reads output until there has been none for a moment."""
        until = time.monotonic() + 2
        while time.monotonic() < until and select.select([self.master], [], [], 0.3)[0]:
            self.feed(os.read(self.master, 65_536))

    def end(self):
        self.child.terminate()
        self.child.wait()
        os.close(self.master)

    def feed(self, data):
        data = self.rest + data
        # Bytes that end in the middle of a sequence or a character wait for the rest.
        cut = len(data)
        for mark in range(max(0, len(data) - 32), len(data)):
            if data[mark] == 0x1B and not CONTROL.match(data, mark):
                cut = mark
                break
        while cut > 0 and cut == len(data):
            try:
                data[max(0, cut - 4):cut].decode(errors="strict")
                break
            except UnicodeDecodeError as error:
                if error.reason != "unexpected end of data":
                    break
                cut -= 1
                data, self.rest = data[:cut], data[cut:]
                return self.feed_whole(data)
        data, self.rest = data[:cut], data[cut:]
        return self.feed_whole(data)

    def feed_whole(self, data):
        place = 0
        for found in CONTROL.finditer(data):
            self.write(data[place:found.start()].decode(errors="replace"))
            place = found.end()
            if found[3] and not found[1]:
                self.control(found[3].decode(), [int(part or 0) for part in found[2].split(b";")])
        self.write(data[place:].decode(errors="replace"))

    def write(self, text):
        row, column = self.at
        for char in text:
            if char == "\r":
                column = 0
            elif char == "\n":
                row += 1
            elif char >= " ":
                self.cells[row, column] = (char, self.style)
                column += 1
        self.at = (row, column)

    def control(self, letter, numbers):
        if letter == "H":
            self.at = (max(1, numbers[0]) - 1, (max(1, numbers[1]) if len(numbers) > 1 else 1) - 1)
        elif letter == "J":
            self.cells.clear()
        elif letter == "K":
            for column in range(self.at[1], self.columns):
                self.cells.pop((self.at[0], column), None)
        elif letter == "m":
            self.paint(numbers)

    def paint(self, numbers):
        color, is_bold, is_reversed = self.style
        numbers = iter(numbers)
        for number in numbers:
            if number == 0:
                color, is_bold, is_reversed = None, False, False
            elif number in (1, 22):
                is_bold = number == 1
            elif number in (7, 27):
                is_reversed = number == 7
            elif number in (38, 48):
                next(numbers, None)
                chosen = next(numbers, None)
                color = chosen if number == 38 else color
            elif 30 <= number <= 37 or 90 <= number <= 97:
                color = number - 30 if number < 90 else number - 82
            elif number == 39:
                color = None
        self.style = (color, is_bold, is_reversed)

    def text(self):
        lines = ("".join(self.cells.get((row, column), " ")[0] for column in range(self.columns)) for row in range(self.rows))
        return "\n".join(line.rstrip() for line in lines)

    def as_html(self, theme):
        back, front, *colors = THEMES[theme]
        lines = []
        for row in range(self.rows):
            line = []
            for column in range(self.columns):
                char, (color, is_bold, is_reversed) = self.cells.get((row, column), (" ", (None, False, False)))
                shade = front if color is None else GREY[theme] if color == 8 else colors[color % 8]
                ink, paper = (back, shade) if is_reversed else (shade, back)
                line.append(f'<b style="color:{ink};background:{paper};font-weight:{700 if is_bold else 400}">{html.escape(char)}</b>')
            lines.append(f"<div>{''.join(line)}</div>")
        return (
            f'<body style="margin:0;background:{back}"><pre style="display:inline-block;margin:0;padding:10px;background:{back};'
            f'font:14px/17px DejaVu Sans Mono,monospace">{"".join(lines)}</pre></body>'
        )
