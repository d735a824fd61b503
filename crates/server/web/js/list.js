// A list of any length with as many elements as fit on the screen.

import { h } from "./dom.js";

const OVERSCAN = 6;
/** Browsers cannot lay out elements that are much higher. */
const HEIGHT_MAX = 8_000_000;

/**
 * `columns`: [{name, label, sort?, className?}]; `row()` makes `{cells, update(item)}`; `onOpen(item)` is called by a
 * click or by Enter. `rowHeight` in px, `tall` on narrow screens, where a row has two lines.
 */
export class List {
  constructor({ label, columns, template, row, onOpen, onSort, rowHeight = 34, tall = 58, onEnd }) {
    Object.assign(this, { row, onOpen, rowHeight, tall, onEnd });
    this.items = [];
    this.rows = [];
    this.selected = 0;
    this.narrow = matchMedia("(max-width: 700px)");
    this.onNarrow = () => this.update(this.items);
    this.narrow.addEventListener("change", this.onNarrow);
    this.space = h("div", { className: "space", role: "rowgroup" });
    this.body = h("div", { className: "rows", tabindex: 0, role: "presentation", onscroll: () => this.draw(), onkeydown: (event) => this.onKey(event) }, this.space);
    this.heads = columns.map((column) => h(
      "div",
      { role: "columnheader", className: column.className },
      onSort && column.sort
        ? h("button", { type: "button", onclick: () => onSort(column.name), "data-focus": column.name }, column.label)
        : column.label,
    ));
    this.columns = columns;
    this.head = h("div", { className: "row head", role: "row" }, this.heads);
    this.element = h("div", { className: `list ${template}`, role: "table", "aria-label": label }, this.head, this.body);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.body);
  }

  /** Ends it. */
  close() {
    this.observer.disconnect();
    this.narrow.removeEventListener("change", this.onNarrow);
  }

  /** Shows by which column the items are sorted. */
  showSort(name, isDown) {
    this.columns.forEach((column, at) => {
      if (!column.sort) return;
      const value = column.name === name ? (isDown ? "descending" : "ascending") : "none";
      this.heads[at].setAttribute("aria-sort", value);
    });
  }

  /** Shows these items, which stay in the hands of the caller. */
  update(items) {
    this.items = items;
    this.height = this.narrow.matches ? this.tall : this.rowHeight;
    this.selected = Math.min(this.selected, Math.max(0, items.length - 1));
    const height = Math.min(items.length * this.height, HEIGHT_MAX);
    this.space.style.height = `${height}px`;
    this.element.setAttribute("aria-rowcount", String(items.length));
    this.draw();
  }

  draw() {
    if (!this.height) return;
    const { scrollTop, clientHeight } = this.body;
    const first = Math.max(0, Math.floor(scrollTop / this.height) - OVERSCAN);
    const last = Math.min(this.items.length, Math.ceil((scrollTop + clientHeight) / this.height) + OVERSCAN);
    while (this.rows.length < last - first) this.rows.push(this.make());
    while (this.rows.length > last - first) this.rows.pop().element.remove();
    this.rows.forEach((row, at) => this.place(row, first + at));
    if (last >= this.items.length && this.items.length > 0) this.onEnd?.();
  }

  make() {
    const made = this.row();
    made.element = h("div", { className: "row", role: "row", onclick: (event) => this.onClick(event, made) }, made.cells.map((cell, at) => {
      cell.setAttribute("role", "cell");
      const extra = this.columns[at]?.className;
      if (extra) cell.classList.add(...extra.split(" "));
      return cell;
    }));
    this.space.append(made.element);
    return made;
  }

  place(row, index) {
    row.index = index;
    row.element.style.transform = `translateY(${index * this.height}px)`;
    row.element.style.height = `${this.height}px`;
    row.element.setAttribute("aria-rowindex", String(index + 1));
    row.element.classList.toggle("selected", index === this.selected && this.isMoved === true);
    row.update(this.items[index]);
  }

  onClick(event, row) {
    if (event.target.closest("a, button")) return;
    this.selected = row.index;
    this.isMoved = true;
    this.draw();
    this.onOpen?.(this.items[row.index]);
  }

  onKey(event) {
    const page = Math.max(1, Math.floor(this.body.clientHeight / this.height) - 1);
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.target !== this.body || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && this.items[this.selected]) {
      this.onOpen?.(this.items[this.selected]);
    } else if (event.key in steps) {
      event.preventDefault();
      this.isMoved = true;
      this.selected = Math.max(0, Math.min(this.items.length - 1, this.selected + steps[event.key]));
      const top = this.selected * this.height;
      if (top < this.body.scrollTop) this.body.scrollTop = top;
      else if (top + this.height > this.body.scrollTop + this.body.clientHeight) this.body.scrollTop = top + this.height - this.body.clientHeight;
      this.draw();
    }
  }
}
