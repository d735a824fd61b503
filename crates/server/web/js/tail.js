// The end of what a task writes, followed as long as it runs.

import * as api from "./api.js";
import { h, setText, show } from "./dom.js";
import { plain } from "./format.js";

const POLL_MS = 500;
/** Characters that stay on the page. */
const TEXT_MAX = 200_000;
const KINDS = {
  "not-found": "There is no such task.",
  "not-started": "The task has not started yet.",
  none: "This output was not kept.",
  unreachable: "The worker that has it is gone.",
};

/** Shows stdout or stderr of one task of `job`. */
export class LogTail {
  constructor(job, { isStderr = false, lines = 200 } = {}) {
    Object.assign(this, { job, lines, task: null, stream: isStderr ? "stderr" : "stdout", generation: 0 });
    this.name = h("strong");
    this.buttons = ["stdout", "stderr"].map((stream) => h("button", { type: "button", "data-stream": stream, onclick: () => this.choose(stream) }, stream));
    this.follow = h("input", { type: "checkbox", checked: true });
    this.note = h("p", { className: "muted" });
    this.text = h("pre", { className: "log", tabindex: 0, "aria-label": "Output", onscroll: () => this.onScroll() });
    this.link = h("a", null, "details");
    this.element = h("div", { className: "tail" }, h("div", { className: "tools" }, this.name, this.buttons, h("label", null, this.follow, "follow"), this.link), this.text, this.note);
  }

  /** Shows another task. */
  open(task) {
    if (task === this.task) return;
    this.task = task;
    this.restart();
  }

  choose(stream) {
    this.stream = stream;
    this.restart();
  }

  close() {
    this.generation += 1;
  }

  restart() {
    this.generation += 1;
    this.text.replaceChildren();
    this.length = 0;
    this.position = null;
    setText(this.name, `Task ${this.task}`);
    this.link.href = `#/job/${this.job}/task/${this.task}`;
    show(this.link, !location.hash.includes("/task/"));
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.dataset.stream === this.stream));
    setText(this.note, "reading …");
    this.run(this.generation);
  }

  async run(generation) {
    while (generation === this.generation) {
      let isOver = false;
      try {
        if (!document.hidden) isOver = await this.step(generation);
      } catch (error) {
        setText(this.note, `It cannot be read: ${error.message}`);
      }
      if (isOver) return;
      await new Promise((resume) => setTimeout(resume, POLL_MS));
    }
  }

  /** Reads on; returns whether there is nothing more to come. */
  async step(generation) {
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
    this.position = { next: piece.next, instance: piece.instance };
    this.append(piece.text);
    const end = piece.is_complete ? "the end" : "still running";
    setText(this.note, this.length === 0 ? `Nothing on ${this.stream} · ${end}` : end);
    return piece.is_complete && piece.text === "" || piece.is_complete && this.isDrained(piece);
  }

  isDrained(piece) {
    return piece.next === piece.offset + new TextEncoder().encode(piece.text).length || piece.text.length === 0;
  }

  append(text) {
    if (text === "") return;
    this.text.append(document.createTextNode(plain(text)));
    this.length += text.length;
    while (this.length > TEXT_MAX && this.text.childNodes.length > 1) {
      this.length -= this.text.firstChild.length;
      this.text.firstChild.remove();
    }
    if (this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
  }

  onScroll() {
    const { scrollTop, clientHeight, scrollHeight } = this.text;
    this.follow.checked = scrollTop + clientHeight > scrollHeight - 8;
  }
}
