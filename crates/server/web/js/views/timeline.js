// Workers and their tasks over time.

import { report } from "../api.js";
import { h, setText, show } from "../dom.js";
import { count, duration, number, plain } from "../format.js";
import { loaders, state } from "../live.js";
import { suspectHosts } from "../problems.js";
import { STATE_NAMES } from "../timeline/bars.js";
import { followPointers, keysOf, taskAt } from "../timeline/input.js";
import { AXIS, Painter, fitCanvas, placesOf } from "../timeline/paint.js";
import { TimelineSource } from "../timeline/source.js";
import { TimeWindow } from "../timeline/window.js";
import { choose, chosen, oneOf } from "../url.js";
import { emptiness, view } from "./view.js";

const COLOURS = ["state", "job"];
/** Delay until the address follows the window. */
const ADDRESS_MS = 400;
const LABEL = "Timeline of workers and tasks. Arrow keys move, plus and minus zoom, 0 shows all, n follows the present.";

/** The server's time, extrapolated between two answers. */
class ServerClock {
  #seenAt = performance.now();
  #seenMs = 0;

  now() {
    const { summary } = state;
    if (!summary) return Date.now();
    if (report) return summary.now_ms;
    if (summary.now_ms !== this.#seenMs) [this.#seenAt, this.#seenMs] = [performance.now(), summary.now_ms];
    return summary.now_ms + (performance.now() - this.#seenAt);
  }
}

/** Choices on the page, and in the address. */
class Timeline {
  constructor() {
    const time = new ServerClock();
    this.window = new TimeWindow(() => time.now());
    this.isDirty = true;
    this.source = new TimelineSource(this.window, () => this.change());
    this.scroll = 0;
    /** @type {import("../timeline/paint.js").Places | null} */
    this.places = null;
    this.isFitted = false;
    this.addressAt = Infinity;
    const button = (label, name, act) => h("button", { type: "button", title: name, "aria-label": name, onclick: () => { act(); this.moved(); this.canvas.focus({ preventScroll: true }); } }, label);
    this.canvas = h("canvas", { className: "gantt", tabindex: 0, role: "application", "aria-label": LABEL });
    this.tip = h("div", { className: "tip", hidden: true });
    this.nothing = h("div", { className: "nothing", hidden: true });
    this.figures = h("span", { className: "muted", role: "status" });
    this.now = h("button", { type: "button", title: "Follow the present (n)", onclick: () => { this.follow(); this.canvas.focus({ preventScroll: true }); } }, "Now");
    this.palette = h("select", { "aria-label": "Colours", onchange: () => { choose({ colours: this.palette.value === COLOURS[0] ? "" : this.palette.value }); this.change(); } },
      COLOURS.map((name) => h("option", { value: name }, `colours: ${name}`)));
    this.palette.value = oneOf("colours", COLOURS);
    this.which = h("input", { type: "search", inputmode: "numeric", placeholder: "only job", size: 9, "aria-label": "Show only this job", value: chosen("job"), oninput: () => { choose({ job: this.onlyJob }, { isStep: false }); this.change(); } });
    const legend = h("span", { className: "legend" }, ["finished", "running", "failed", "canceled"].map((name) => h("span", { className: `key ${name}` }, name)));
    this.element = h("div", { className: "full timeline" },
      h("div", { className: "tools" }, h("h1", null, "Timeline"), button("−", "Zoom out (-)", () => this.window.zoom(1 / 0.6)), button("+", "Zoom in (+)", () => this.window.zoom(0.6)), button("All", "All (0)", () => this.fit()), this.now, this.palette, this.which, legend),
      h("div", { className: "ganttbox" }, this.canvas, this.tip, this.nothing), this.figures);
    this.painter = new Painter(this.canvas, this.source);
    const acts = {
      scrollBy: (y) => { this.scroll += y; },
      hover: (x, y) => this.#describe(x, y),
      leave: () => show(this.tip, false),
      pick: (x, y) => this.#pick(x, y),
      change: () => this.moved(),
    };
    this.pointers = followPointers(this.canvas, this.window, acts);
    this.keys = keysOf(this.window, acts);
    this.observer = new ResizeObserver(() => this.change());
    this.observer.observe(this.canvas);
    this.frame = requestAnimationFrame((at) => this.#tick(at));
  }

  get onlyJob() {
    return Number(this.which.value) || null;
  }

  change() {
    this.places = null;
    this.isDirty = true;
  }

  /** A user has moved the window. */
  moved() {
    this.isFitted = true;
    this.source.want();
    this.addressAt = performance.now() + ADDRESS_MS;
    this.change();
  }

  follow() {
    this.window.follow();
    this.moved();
  }

  fit() {
    this.window.fit(report?.from_ms ?? this.source.loaded?.first ?? this.window.now() - 600_000);
    this.moved();
  }

  /** Stores the visible period in the address, for links. */
  #address() {
    this.addressAt = Infinity;
    const { from, to, span, isFollowing } = this.window;
    choose(isFollowing ? { span: Math.round(span), from: "", to: "" } : { from: Math.round(from), to: Math.round(to), span: "" }, { isStep: false });
  }

  /** The visible period of the address, or the last minutes. */
  #begin() {
    const [from, to, span] = ["from", "to", "span"].map((name) => Number(chosen(name)));
    if (from > 0 && to > from) this.window.show(from, to);
    else this.window.begin(span > 0 ? span : undefined);
    this.isFitted = from > 0 || span > 0;
    void this.source.load();
  }

  #tick(at) {
    this.frame = requestAnimationFrame((next) => this.#tick(next));
    if (!this.window.isSet) {
      if (!state.summary) return;
      this.#begin();
    }
    const { loaded } = this.source;
    // A run that has just begun fills the picture.
    if (!this.isFitted && loaded) {
      this.isFitted = true;
      if (report || loaded.first > this.window.from) this.window.fit(report?.from_ms ?? loaded.first);
    }
    if (!this.pointers.isHeld() && this.window.tick(this.canvas.clientWidth)) this.isDirty = true;
    this.source.tick(at);
    if (at >= this.addressAt) this.#address();
    if (this.isDirty) this.#draw();
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (width === 0 || height === 0) return;
    this.isDirty = false;
    if (fitCanvas(this.canvas)) this.places = null;
    this.places ??= placesOf(this.source, height);
    this.scroll = Math.max(0, Math.min(this.scroll, this.places.total - (height - AXIS)));
    this.#tell(this.painter.draw(this.places, this.#look()));
  }

  #look() {
    return { byJob: this.palette.value === "job", onlyJob: this.onlyJob, scroll: this.scroll, suspects: suspectHosts(state.problems) };
  }

  #tell({ shown, failed, canceled }) {
    const { loaded, problem } = this.source;
    const words = () => {
      if (problem) return problem;
      if (!loaded) return "reading …";
      const workers = this.places?.order.length ?? 0;
      const parts = [`${count(shown, "task")} on ${count(workers, "worker")} in ${duration(this.window.span)}`];
      if (failed) parts.push(`${number(failed)} failed`);
      if (canceled) parts.push(`${number(canceled)} canceled`);
      return `${parts.join(", ")}${loaded.steps && !report ? " · zoom in for single tasks" : ""}${loaded.isCut ? " · some workers are left out: there are too many" : ""}`;
    };
    setText(this.figures, words());
    const isEmpty = loaded !== null && this.places?.order.length === 0;
    show(this.nothing, isEmpty);
    if (isEmpty && this.nothing.childElementCount === 0) this.nothing.append(emptiness("No worker was there in this time.", "hq worker start"));
    this.now.setAttribute("aria-pressed", String(this.window.isFollowing));
  }

  #at(x, y) {
    return this.places ? taskAt(this.source, this.places, this.scroll, this.canvas.clientWidth, x, y) : -1;
  }

  #describe(x, y) {
    const found = this.#at(x, y);
    show(this.tip, found >= 0);
    this.canvas.style.cursor = found >= 0 ? "pointer" : "grab";
    if (found < 0) return;
    const { bars } = this.source;
    const name = state.jobs.get(bars.job[found])?.name ?? "";
    const until = bars.end[found] === Infinity ? this.window.now() : bars.end[found];
    setText(this.tip, `${plain(name)} · job ${bars.job[found]}, task ${number(bars.task[found])} · ${STATE_NAMES[bars.state[found]]}${bars.state[found] > 3 ? " after" : ""} ${duration(until - bars.begin[found])}`);
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, this.canvas.clientWidth - 330))}px`;
    this.tip.style.top = `${y + 16}px`;
  }

  #pick(x, y) {
    const found = this.#at(x, y);
    if (found >= 0) location.hash = `#/job/${this.source.bars.job[found]}/task/${this.source.bars.task[found]}`;
  }

  onKey(event) {
    if (!(event.key in this.keys)) return false;
    this.keys[event.key]();
    this.moved();
    return true;
  }

  render() {
    if (this.source.problem && state.link === "live") {
      this.source.problem = "";
      this.source.want();
    }
    this.isDirty = true;
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.observer.disconnect();
    this.source.close();
  }
}

export function timeline() {
  const shown = new Timeline();
  return view({
    title: "Timeline",
    element: shown.element,
    render: () => shown.render(),
    commands: () => [
      { name: "Follow the present", key: "n", act: () => shown.follow() },
      { name: "All since the first job", key: "0", act: () => shown.fit() },
    ],
    onKey: (event) => shown.onKey(event),
    focus: () => shown.canvas.focus({ preventScroll: true }),
    fresh: [loaders.workers, loaders.jobs],
    parts: [shown],
  });
}
