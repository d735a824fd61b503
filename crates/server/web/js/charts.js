// Bars, strips, charts over time and histograms.

import { colors } from "./colors.js";
import { h, setAttribute, setText, show } from "./dom.js";
import { STATES, clock, compact, duration, number, total } from "./format.js";

/** A bar of tasks by state. */
export class StateBar {
  constructor() {
    this.parts = ["finished", "failed", "canceled", "aborted", "running"].map((state) => h("span", { className: `part ${state}` }));
    this.element = h("span", { className: "statebar", role: "img" }, this.parts);
  }

  update(tasks) {
    const all = Math.max(1, total(tasks));
    const names = ["finished", "failed", "canceled", "aborted", "running"];
    names.forEach((state, at) => {
      const share = tasks[state] / all;
      // One failure among a million is seen.
      const width = tasks[state] > 0 ? `max(${(share * 100).toFixed(3)}%, ${state === "failed" ? 3 : 1}px)` : "0";
      if (this.parts[at].style.width !== width) this.parts[at].style.width = width;
    });
    const words = STATES.filter((state) => tasks[state] > 0).map((state) => `${number(tasks[state])} ${state}`).join(", ");
    setAttribute(this.element, "aria-label", words || "no tasks");
    setAttribute(this.element, "title", words);
  }
}

/** A bar of a part of a whole. */
export class Meter {
  constructor(label) {
    this.fill = h("span", { className: "fill" });
    this.text = h("span", { className: "figures" });
    this.element = h("div", { className: "meter" }, h("span", { className: "name" }, label), h("span", { className: "track" }, this.fill), this.text);
  }

  update(part, whole, text) {
    const width = `${whole > 0 ? Math.min(100, (part / whole) * 100).toFixed(1) : 0}%`;
    if (this.fill.style.width !== width) this.fill.style.width = width;
    setText(this.text, text ?? `${number(part)} of ${number(whole)}`);
  }
}

/** A canvas that has the size of its element; `draw(context, width, height)` in CSS pixels. */
export class Canvas {
  constructor(label, className, draw) {
    this.element = h("canvas", { className, role: "img", "aria-label": label });
    this.paint = draw;
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  close() {
    this.observer.disconnect();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (width === 0 || height === 0) return;
    const scale = Math.min(devicePixelRatio, 2);
    if (this.element.width !== Math.round(width * scale) || this.element.height !== Math.round(height * scale)) {
      this.element.width = Math.round(width * scale);
      this.element.height = Math.round(height * scale);
    }
    const context = /** @type {CanvasRenderingContext2D} */ (this.element.getContext("2d"));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    this.paint(context, width, height);
  }
}

const FONT = "11px system-ui, sans-serif";

/**
 * Numbers over time: `series` = [{name, values, color}], stacked; `limit` = {name, values}, a line that they stay below.
 */
export class TimeChart {
  constructor(label, { unit = "" } = {}) {
    this.data = null;
    this.unit = unit;
    this.label = label;
    this.canvas = new Canvas(label, "chart", (context, width, height) => this.paint(context, width, height));
    this.tip = h("div", { className: "tip", hidden: true });
    this.element = h("div", { className: "chartbox" }, this.canvas.element, this.tip);
    this.canvas.element.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.element.addEventListener("pointerleave", () => show(this.tip, false));
  }

  close() {
    this.canvas.close();
  }

  /** `from` and `to` in ms. */
  update(data) {
    this.data = data;
    this.canvas.draw();
    const last = data.series.map((one) => `${one.name} ${number(Number(one.values.at(-1).toPrecision(3)))}${this.unit}`);
    if (data.limit) last.push(`${data.limit.name} ${number(data.limit.values.at(-1))}${this.unit}`);
    setAttribute(this.canvas.element, "aria-label", `${this.label}, from ${clock(data.from)}: at the end ${last.join(", ")}`);
  }

  paint(context, width, height) {
    if (!this.data) return;
    const { from, to, series, limit } = this.data;
    const palette = colors();
    const steps = series[0].values.length;
    const sums = Array.from({ length: steps }, (_, at) => series.reduce((sum, one) => sum + one.values[at], 0));
    const most = Math.max(...sums, ...(limit?.values ?? []));
    // Without anything to show the axis has one number.
    const max = nice(Math.max(1, most));
    const [left, bottom, top] = [34, 16, 6];
    const [w, tall] = [width - left - 2, height - bottom - top];
    context.font = FONT;
    context.fillStyle = palette.muted;
    context.strokeStyle = palette.line;
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const part of most > 0 ? [0, 0.5, 1] : [0]) {
      const y = Math.round(top + tall * (1 - part)) + 0.5;
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(width, y);
      context.stroke();
      context.fillText(compact(Number((max * part).toPrecision(2))), left - 5, y);
    }
    const base = new Array(steps).fill(0);
    for (const one of series) {
      context.fillStyle = palette[one.color];
      for (let at = 0; at < steps; at += 1) {
        const value = one.values[at];
        if (value <= 0) continue;
        const x = left + (at / steps) * w;
        const bar = Math.max((value / max) * tall, one.color === "failed" ? 2 : 0.5);
        context.fillRect(x, top + tall - base[at] - bar, Math.max(1, w / steps - (w / steps > 4 ? 1 : 0)), bar);
        base[at] += bar;
      }
    }
    if (limit) {
      context.strokeStyle = palette.muted;
      context.beginPath();
      limit.values.forEach((value, at) => {
        const y = Math.round(top + tall * (1 - value / max)) + 0.5;
        context.lineTo(left + (at / steps) * w, y);
        context.lineTo(left + ((at + 1) / steps) * w, y);
      });
      context.stroke();
    }
    if (most === 0) {
      context.fillStyle = palette.muted;
      context.textAlign = "center";
      context.fillText("nothing in this time", left + w / 2, top + tall / 2);
    }
    context.fillStyle = palette.muted;
    context.textBaseline = "bottom";
    context.textAlign = "left";
    context.fillText(clock(from), left, height);
    context.textAlign = "right";
    context.fillText(clock(to), width, height);
  }

  point(event) {
    if (!this.data) return;
    const { from, to, series, limit } = this.data;
    const box = this.canvas.element.getBoundingClientRect();
    const part = (event.clientX - box.left - 34) / (box.width - 36);
    const steps = series[0].values.length;
    const at = Math.floor(part * steps);
    show(this.tip, at >= 0 && at < steps);
    if (this.tip.hidden) return;
    const words = series.map((one) => `${one.name ?? ""} ${number(Number(one.values[at].toPrecision(3)))}${this.unit}`.trim());
    if (limit) words.push(`${limit.name} ${number(limit.values[at])}`);
    setText(this.tip, `${clock(from + ((at + 0.5) / steps) * (to - from))}  ${words.join(", ")}`);
    this.tip.style.left = `${Math.min(Math.max(0, event.clientX - box.left - 60), box.width - 160)}px`;
  }
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value) ?? 10 * power;
}

/** All tasks of a job in the order of their ids: a cell stands for as many as fit, and a failure wins. */
export class Strip {
  constructor(onPick) {
    this.data = null;
    this.canvas = new Canvas("Tasks in the order of their ids", "strip", (context, width, height) => this.paint(context, width, height));
    this.canvas.element.addEventListener("click", (event) => {
      const bin = this.binAt(event);
      if (bin !== null) onPick(this.firstOf(bin));
    });
    this.canvas.element.addEventListener("pointermove", (event) => this.point(event));
    this.note = h("div", { className: "stripnote" });
    this.element = h("div", { className: "stripbox" }, this.canvas.element, this.note);
  }

  close() {
    this.canvas.close();
  }

  update(data) {
    this.data = data;
    this.layout = null;
    this.canvas.draw();
    const words = this.words();
    setText(this.note, words);
    setAttribute(this.canvas.element, "aria-label", `Tasks ${data.first} to ${data.last} in the order of their ids. ${words}`);
  }

  words() {
    const { first, last, bins } = this.data;
    const each = Math.max(1, Math.round((last - first + 1) / bins.length));
    return each > 1 ? `Each cell stands for about ${number(each)} tasks, from ${number(first)} to ${number(last)}; a failure always shows.` : `Tasks ${number(first)} to ${number(last)}, one a cell.`;
  }

  firstOf(bin) {
    const { first, last, bins } = this.data;
    return first + Math.ceil((bin * (last - first + 1)) / bins.length);
  }

  place(width, height) {
    const cells = this.data.bins.length;
    let size = Math.floor(Math.sqrt((width * height) / cells));
    while (size > 2 && Math.floor(width / size) * Math.floor(height / size) < cells) size -= 1;
    size = Math.max(2, Math.min(size, 22));
    return { size, columns: Math.max(1, Math.floor(width / size)) };
  }

  paint(context, width, height) {
    if (!this.data) return;
    const palette = colors();
    const { size, columns } = this.place(width, height);
    this.layout = { size, columns };
    const gap = size > 5 ? 1 : 0;
    this.data.bins.forEach((bin, at) => {
      const [waiting, running, finished, failed, canceled, aborted] = bin;
      const all = waiting + running + finished + failed + canceled + aborted;
      const x = (at % columns) * size;
      const y = Math.floor(at / columns) * size;
      const rest = [["finished", finished], ["waiting", waiting], ["canceled", canceled], ["aborted", aborted]];
      const most = rest.reduce((a, b) => (b[1] > a[1] ? b : a))[0];
      context.fillStyle = palette[failed > 0 ? "failed" : running > 0 ? "running" : most];
      if (failed > 0 && failed < all && size >= 6) {
        // How much of it has failed is the height of the red part.
        const part = Math.max(3, ((size - gap) * failed) / all);
        context.fillStyle = palette[running > 0 ? "running" : most === "waiting" ? "waiting" : "finished"];
        context.fillRect(x, y, size - gap, size - gap);
        context.fillStyle = palette.failed;
        context.fillRect(x, y + size - gap - part, size - gap, part);
      } else {
        context.fillRect(x, y, size - gap, size - gap);
      }
    });
  }

  binAt(event) {
    if (!this.layout) return null;
    const box = this.canvas.element.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.layout.size);
    const bin = Math.floor((event.clientY - box.top) / this.layout.size) * this.layout.columns + column;
    return column < this.layout.columns && bin >= 0 && bin < this.data.bins.length ? bin : null;
  }

  point(event) {
    const bin = this.binAt(event);
    if (bin === null) return;
    const [from, to] = [this.firstOf(bin), Math.max(this.firstOf(bin), Math.min(this.data.last, this.firstOf(bin + 1) - 1))];
    const words = STATES.map((state, at) => [state, this.data.bins[bin][at]]).filter(([, count]) => count > 0).map(([state, count]) => `${number(count)} ${state}`);
    setText(this.note, `${from === to ? `Task ${number(from)}` : `Tasks ${number(from)} to ${number(to)}`}: ${words.join(", ")}`);
  }
}

/** Run times in bins: [{up_to_us, count}]. */
export function histogram(bins) {
  const sum = (bin) => bin.count + bin.canceled;
  const used = bins.map((bin) => sum(bin) > 0);
  const [first, last] = [used.indexOf(true), used.lastIndexOf(true)];
  if (first < 0) return h("p", { className: "muted" }, "No task has ended yet.");
  const shown = bins.slice(first, last + 1);
  const most = Math.max(...shown.map(sum));
  return h("div", { className: "histogram", role: "list", "aria-label": "Run times" }, shown.map((bin) => {
    const all = sum(bin);
    const parts = [["finished", bin.count - bin.failed], ["failed", bin.failed], ["canceled", bin.canceled]].filter(([, part]) => part > 0);
    const fill = h("span", { className: "fill" }, parts.map(([name, part]) => {
      const element = h("span", { className: `fill-${name}` });
      element.style.width = `${(part / all) * 100}%`;
      return element;
    }));
    fill.style.width = `${Math.max(all > 0 ? 0.5 : 0, (all / most) * 100)}%`;
    const label = bin.up_to_us === null ? "longer" : `≤ ${duration(bin.up_to_us / 1000)}`;
    const bad = [["timed out", bin.timed_out], ["failed", bin.failed - bin.timed_out], ["canceled", bin.canceled]].filter(([, part]) => part > 0).map(([name, part]) => `${number(part)} ${name}`);
    return h("div", { role: "listitem" }, h("span", { className: "name" }, label), h("span", { className: "track" }, fill), h("span", { className: "figures" }, bad.length > 0 ? `${number(all)} (${bad.join(", ")})` : number(all)));
  }));
}
