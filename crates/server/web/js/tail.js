// The end of a task's output, followed while it runs, and searchable.

import * as api from "./api.js";
import { h, setText, show } from "./dom.js";
import { number, plain } from "./format.js";
import { copy, copyButton } from "./views/view.js";

const POLL_MS = 500;
/** Maximum characters on the page. */
const TEXT_MAX = 200_000;
const MARKS = "found";
const MARK = "found-now";
const KINDS = {
  "not-found": "There is no such task.",
  "not-started": "The task has not started yet.",
  none: "This output was not kept.",
  unreachable: "The worker that has it is gone.",
};

/** Shows stdout or stderr of one task of `job`. */
export class LogTail {
  /** @param {number} job @param {{isStderr?: boolean, lines?: number, isAlone?: boolean}} [options] */
  constructor(job, { isStderr = false, lines = 200, isAlone = false } = {}) {
    this.job = job;
    this.lines = lines;
    /** @type {number | null} */
    this.task = null;
    this.stream = isStderr ? "stderr" : "stdout";
    /** Number of the current reading: another task or stream ends it. */
    this.generation = 0;
    /** Characters on the page. */
    this.length = 0;
    /** Position of the next read. @type {{next: number, instance: number} | null} */
    this.position = null;
    /** @type {() => void} */
    this.onChoose = () => {};
    /** File of each stream, if known. @type {Record<string, string | null>} */
    this.paths = { stdout: null, stderr: null };
    /** Matches of the search. @type {Range[]} */
    this.hits = [];
    this.hit = -1;
    this.name = h("strong");
    this.buttons = ["stdout", "stderr"].map((stream) => h("button", { type: "button", "data-stream": stream, onclick: () => { this.choose(stream); this.onChoose(); } }, stream));
    this.follow = h("input", { type: "checkbox", checked: true, onchange: () => { if (this.follow.checked) this.#toEnd(); } });
    this.search = h("input", { type: "search", placeholder: isAlone ? "Search the output (/)" : "Search the output", "aria-label": "Search the output", oninput: () => this.#find(), onkeydown: (event) => this.#onSearchKey(event) });
    this.found = h("span", { className: "muted", role: "status" });
    this.note = h("p", { className: "muted" });
    this.text = h("pre", { className: "log", tabindex: 0, role: "log", "aria-live": "off", "aria-label": "Output", onscroll: () => this.#onScroll() });
    this.link = h("a", null, "details");
    this.path = h("span", { className: "path" });
    const label = h("label", { className: "inline" }, this.follow, " follow");
    this.element = h("div", { className: "tail" }, h("div", { className: "tools" }, isAlone ? null : this.name, this.buttons, label, this.search, this.found, isAlone ? null : this.link), isAlone ? this.path : null, this.text, this.note);
  }

  /** Shows another task. @param {number} task */
  open(task) {
    if (task === this.task) return;
    this.task = task;
    this.#restart();
  }

  /** @param {string} stream */
  choose(stream) {
    this.stream = stream;
    this.#restart();
  }

  close() {
    this.generation += 1;
    CSS.highlights?.delete(MARKS);
    CSS.highlights?.delete(MARK);
  }

  /** Its key commands. @returns {import("./views/view.js").Command[]} */
  commands() {
    const other = this.stream === "stdout" ? "stderr" : "stdout";
    const commands = [
      { name: `Show ${other}`, key: "o", act: () => { this.choose(other); this.onChoose(); } },
      { name: "Follow the output, or stop", key: "F", act: () => { this.follow.checked = !this.follow.checked; if (this.follow.checked) this.#toEnd(); } },
    ];
    const path = this.paths[this.stream];
    if (path) commands.push({ name: `Copy the path of ${this.stream}`, key: "y", act: () => void copy(path).then((isDone) => setText(this.found, isDone ? "path copied" : "copying is not possible here")) });
    if (this.hits.length > 0) {
      commands.push({ name: "Next place that was found", key: "n", act: () => this.#step(1) }, { name: "Place before that was found", key: "N", act: () => this.#step(-1) });
    }
    return commands;
  }

  /** @param {Record<string, string | null>} paths */
  setPaths(paths) {
    this.paths = paths;
    this.#showPath();
  }

  #showPath() {
    const path = this.paths[this.stream];
    show(this.path, Boolean(path));
    if (path && this.path.dataset.path !== path) {
      this.path.dataset.path = path;
      this.path.replaceChildren(h("code", null, plain(path)), " ", copyButton(path, "path"));
    }
  }

  #restart() {
    this.generation += 1;
    this.text.replaceChildren();
    this.length = 0;
    this.position = null;
    this.#find();
    setText(this.name, `Task ${number(this.task ?? 0)}`);
    this.link.href = `#/job/${this.job}/task/${this.task}?stream=${this.stream}`;
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.dataset.stream === this.stream));
    this.#showPath();
    setText(this.note, "reading …");
    void this.#run(this.generation);
  }

  async #run(generation) {
    while (generation === this.generation) {
      let isOver = false;
      try {
        if (!document.hidden) isOver = await this.#readOn(generation);
      } catch (error) {
        if (error.status === 404) {
          setText(this.note, KINDS["not-found"]);
          return;
        }
        setText(this.note, `It cannot be read: ${error.message}`);
      }
      if (isOver) return;
      await new Promise((resume) => { setTimeout(resume, POLL_MS); });
    }
  }

  /** Reads on; returns whether the output is complete. */
  async #readOn(generation) {
    const where = this.position ? `from=${this.position.next}&instance=${this.position.instance}` : `lines=${this.lines}`;
    const piece = await api.get(`/jobs/${this.job}/tasks/${this.task}/output?stream=${this.stream}&${where}`);
    if (generation !== this.generation) return true;
    if (piece.kind !== "data") {
      setText(this.note, piece.error ?? KINDS[piece.kind] ?? piece.kind);
      return piece.kind !== "not-started";
    }
    if (this.position && piece.instance !== this.position.instance) {
      this.text.replaceChildren();
      this.length = 0;
    }
    const isCut = !this.position && piece.offset > 0;
    this.position = { next: piece.next, instance: piece.instance };
    this.#append(piece.text);
    const end = piece.is_complete ? "end of output" : "still running";
    const from = isCut || this.text.dataset.cut ? `the last ${number(this.lines)} lines and what follows · ` : "";
    if (isCut) this.text.dataset.cut = "";
    setText(this.note, this.length === 0 ? `Nothing on ${this.stream} · ${end}` : `${from}${end}`);
    return piece.is_complete && (piece.text === "" || this.#isDrained(piece));
  }

  #isDrained(piece) {
    return piece.next === piece.offset + new TextEncoder().encode(piece.text).length;
  }

  #append(text) {
    if (text === "") return;
    this.text.append(document.createTextNode(plain(text)));
    this.length += text.length;
    while (this.length > TEXT_MAX && this.text.childNodes.length > 1) {
      const first = /** @type {Text} */ (this.text.firstChild);
      this.length -= first.length;
      first.remove();
    }
    if (this.search.value) this.#find();
    if (this.follow.checked) this.#toEnd();
  }

  #toEnd() {
    this.text.scrollTop = this.text.scrollHeight;
  }

  #onScroll() {
    const { scrollTop, clientHeight, scrollHeight } = this.text;
    this.follow.checked = scrollTop + clientHeight > scrollHeight - 8;
  }

  /** Highlights the matches. Highlights are not elements: the text stays unchanged. */
  #find() {
    const asked = this.search.value.toLowerCase();
    this.hits = [];
    if (asked) {
      this.text.normalize();
      for (const node of /** @type {NodeListOf<Text>} */ (this.text.childNodes)) {
        const words = node.data.toLowerCase();
        for (let at = words.indexOf(asked); at >= 0; at = words.indexOf(asked, at + asked.length)) {
          const range = new Range();
          range.setStart(node, at);
          range.setEnd(node, at + asked.length);
          this.hits.push(range);
        }
      }
    }
    CSS.highlights?.set(MARKS, new Highlight(...this.hits));
    this.hit = -1;
    CSS.highlights?.delete(MARK);
    setText(this.found, asked ? (this.hits.length === 0 ? "not found" : `found ${number(this.hits.length)} times`) : "");
  }

  /** @param {number} by */
  #step(by) {
    if (this.hits.length === 0) return;
    this.hit = (this.hit + by + this.hits.length) % this.hits.length;
    const range = this.hits[this.hit];
    CSS.highlights?.set(MARK, new Highlight(range));
    const [box, place] = [this.text.getBoundingClientRect(), range.getBoundingClientRect()];
    this.follow.checked = false;
    this.text.scrollTop += place.top - box.top - box.height / 2;
    setText(this.found, `${number(this.hit + 1)} of ${number(this.hits.length)}`);
  }

  #onSearchKey(event) {
    if (event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    this.#step(event.shiftKey ? -1 : 1);
  }
}
