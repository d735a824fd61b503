// A list of any length with as many elements as fit on the screen. The Tab key stops at it once; other keys move in it.

import { h } from "./dom.js";

const OVERSCAN = 6;
/** Height of the borders of the box, in px. */
const BORDERS = 3;
/** Browsers cannot lay out much higher elements. */
const HEIGHT_MAX = 8_000_000;

/**
 * @typedef {object} Column
 * @property {string} label
 * @property {string} [name]
 * @property {boolean} [sort] Whether a click on its head sorts.
 * @property {string} [className]
 */
/**
 * @template T
 * @typedef {object} Row
 * @property {HTMLElement[]} cells
 * @property {(item: T) => void} update
 */
/**
 * @template T
 * @typedef {object} Options
 * @property {string} label
 * @property {Column[]} columns
 * @property {string} template Class that says how wide the columns are.
 * @property {() => Row<T>} row
 * @property {(item: T) => void} [onOpen] By a click or Enter.
 * @property {(name: string) => void} [onSort]
 * @property {() => void} [onEnd] The end is in sight.
 * @property {(item: T) => string | number} id What makes an item the same after an update.
 * @property {number} [rowHeight] In px.
 * @property {number} [tall] The same on narrow screens, where a row has two lines.
 */

/** The last selection by address and list: a returning user finds it again. */
const places = new Map();
const PLACES_MAX = 200;
let lists = 0;

/** @template T */
export class List {
  /** @param {Options<T>} options */
  constructor({ label, columns, template, row, onOpen, onSort, rowHeight = 34, tall = 58, onEnd, id }) {
    this.makeRow = row;
    this.onOpen = onOpen;
    this.onEnd = onEnd;
    this.columns = columns;
    this.idOf = id;
    this.rowHeight = rowHeight;
    this.tall = tall;
    /** Height of a row; 0 = no row was shown yet. */
    this.height = 0;
    /** @type {T[]} */
    this.items = [];
    /** @type {any[]} */
    this.rows = [];
    this.prefix = `list${lists += 1}`;
    this.place = `${location.hash} ${label}`;
    const before = places.get(this.place);
    this.selected = 0;
    this.selectedId = before?.id;
    /** Whether the user has chosen a row: before that, none is marked. */
    this.isMoved = before !== undefined;
    this.scrollTo = before?.top;
    this.narrow = matchMedia("(max-width: 700px)");
    this.onNarrow = () => this.update(this.items);
    this.narrow.addEventListener("change", this.onNarrow);
    this.space = h("div", { className: "space", role: "rowgroup" });
    this.heads = columns.map((column) => h(
      "div",
      { role: "columnheader", className: column.className },
      onSort && column.sort && column.name !== undefined
        ? h("button", { type: "button", tabindex: -1, onclick: () => onSort(column.name ?? "") }, column.label)
        : column.label,
    ));
    this.head = h("div", { className: "row head", role: "row" }, this.heads);
    this.body = h("div", {
      className: "rows", tabindex: 0, role: "grid", "aria-label": label, "data-list": label,
      onscroll: () => this.draw(), onkeydown: (event) => this.onKey(event),
    }, this.head, this.space);
    /** Shown instead of rows in an empty list. */
    this.nothing = h("div", { className: "nothing", hidden: true });
    this.element = h("div", { className: `list ${template}` }, this.body, this.nothing);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.body);
  }

  /** Removes it. */
  close() {
    if (this.isMoved) {
      places.delete(this.place);
      places.set(this.place, { id: this.selectedId, top: this.body.scrollTop });
      if (places.size > PLACES_MAX) places.delete(places.keys().next().value);
    }
    this.observer.disconnect();
    this.narrow.removeEventListener("change", this.onNarrow);
  }

  focus() {
    this.body.focus({ preventScroll: true });
  }

  /** The item that keys act on. @returns {T | undefined} */
  get current() {
    return this.items[this.selected];
  }

  /** Shows the sort column. */
  showSort(name, isDown) {
    this.columns.forEach((column, at) => {
      if (!column.sort) return;
      const value = column.name === name ? (isDown ? "descending" : "ascending") : "none";
      this.heads[at].setAttribute("aria-sort", value);
    });
  }

  /** Element for an empty list; `null` = none. @param {HTMLElement | null} element */
  explain(element) {
    this.nothing.hidden = this.items.length > 0 || element === null;
    if (!this.nothing.hidden && element && this.nothing.textContent !== element.textContent) this.nothing.replaceChildren(element);
  }

  /** Shows these items, which still belong to the caller. @param {T[]} items */
  update(items) {
    this.items = items;
    this.height = this.narrow.matches ? this.tall : this.rowHeight;
    // The chosen item stays chosen, even if a new one is inserted before it.
    if (this.isMoved && this.selectedId !== undefined && (items.length <= this.selected || this.idOf(items[this.selected]) !== this.selectedId)) {
      const found = items.findIndex((item) => this.idOf(item) === this.selectedId);
      if (found >= 0) this.selected = found;
    }
    this.selected = Math.min(this.selected, Math.max(0, items.length - 1));
    const height = Math.min(items.length * this.height, HEIGHT_MAX);
    this.space.style.height = `${height}px`;
    // The box ends at its last row.
    const whole = `${height + this.head.offsetHeight + BORDERS}px`;
    this.element.style.maxHeight = items.length > 0 ? whole : "";
    this.element.style.minHeight = items.length > 0 ? `min(12rem, ${whole})` : "";
    this.body.setAttribute("aria-rowcount", String(items.length + 1));
    if (this.scrollTo !== undefined && items.length > 0) {
      this.body.scrollTop = this.scrollTo;
      this.scrollTo = undefined;
    }
    this.draw();
  }

  /** Rebuilds the rows with other cells. */
  remake() {
    for (const row of this.rows.splice(0)) row.element.remove();
    this.draw();
  }

  draw() {
    if (!this.height) return;
    const { scrollTop, clientHeight } = this.body;
    const first = Math.max(0, Math.floor(scrollTop / this.height) - OVERSCAN);
    const last = Math.min(this.items.length, Math.ceil((scrollTop + clientHeight) / this.height) + OVERSCAN);
    while (this.rows.length < last - first) this.rows.push(this.make());
    while (this.rows.length > last - first) this.rows.pop().element.remove();
    this.rows.forEach((row, at) => this.put(row, first + at));
    const isShown = this.isMoved && this.selected >= first && this.selected < last;
    if (isShown) this.body.setAttribute("aria-activedescendant", `${this.prefix}-${this.selected}`);
    else this.body.removeAttribute("aria-activedescendant");
    if (last >= this.items.length && this.items.length > 0) this.onEnd?.();
  }

  make() {
    const made = /** @type {any} */ (this.makeRow());
    made.element = h("div", { className: "row", role: "row", onclick: (event) => this.onClick(event, made) }, made.cells.map((cell, at) => {
      cell.setAttribute("role", "gridcell");
      const extra = this.columns[at]?.className;
      if (extra) cell.classList.add(...extra.split(" "));
      // Tab leaves the list; Enter and action keys act like links and buttons.
      for (const inner of cell.querySelectorAll("a, button")) inner.tabIndex = -1;
      return cell;
    }));
    this.space.append(made.element);
    return made;
  }

  put(row, index) {
    const { element } = row;
    const isSelected = this.isMoved && index === this.selected;
    row.index = index;
    element.id = `${this.prefix}-${index}`;
    element.style.transform = `translateY(${index * this.height}px)`;
    element.style.height = `${this.height}px`;
    element.setAttribute("aria-rowindex", String(index + 2));
    element.setAttribute("aria-selected", String(isSelected));
    element.classList.toggle("selected", isSelected);
    // The row that keys act on; it is marked while the list has the focus.
    element.classList.toggle("current", index === this.selected);
    row.update(this.items[index]);
  }

  /** @param {number} index */
  select(index) {
    this.isMoved = true;
    this.selected = Math.max(0, Math.min(this.items.length - 1, index));
    const item = this.items[this.selected];
    this.selectedId = item === undefined ? undefined : this.idOf(item);
  }

  onClick(event, row) {
    if (event.target.closest("a, button")) return;
    this.select(row.index);
    this.draw();
    this.onOpen?.(this.items[row.index]);
  }

  /** Moves by a key; returns whether the key moves. @param {string} key */
  move(key) {
    const room = this.body.clientHeight - this.head.offsetHeight;
    const page = Math.max(1, Math.floor(room / this.height) - 1);
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, g: -Infinity, End: Infinity, G: Infinity };
    if (!(key in steps) || this.items.length === 0) return false;
    // The first step marks the first row.
    this.select(this.isMoved ? this.selected + steps[key] : Math.max(0, steps[key] - 1));
    const top = this.selected * this.height;
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    else if (top + this.height > this.body.scrollTop + room) this.body.scrollTop = top + this.height - room;
    this.draw();
    return true;
  }

  /** Opens the selected item; returns whether one is selected. */
  open() {
    if (!this.current || !this.onOpen) return false;
    this.select(this.selected);
    this.onOpen(this.current);
    return true;
  }

  onKey(event) {
    if (event.target !== this.body || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" ? this.open() : this.move(event.key)) event.preventDefault();
  }
}
