// Keys that move the focus from link to link, on pages without a list.

/** Acts like a list: `j` and `k` move through the elements that `selector` matches in `element`. */
export class Steps {
  /** @param {Element} element @param {string} selector */
  constructor(element, selector) {
    this.element = element;
    this.selector = selector;
    /** Links already do what Enter does in a list. */
    this.isMoved = false;
  }

  /** The focused element, if it matches. @returns {Element | undefined} */
  get current() {
    const found = document.activeElement;
    return found !== null && this.element.contains(found) && found.matches(this.selector) ? found : undefined;
  }

  /** Moves by a key; returns whether the key moves. @param {string} key */
  move(key) {
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, g: -Infinity, G: Infinity };
    const all = /** @type {HTMLElement[]} */ ([...this.element.querySelectorAll(this.selector)].filter((one) => one.checkVisibility()));
    if (!(key in steps) || all.length === 0) return false;
    const at = all.findIndex((one) => one === this.current);
    const next = at < 0 ? (steps[key] > 0 && key !== "G" ? 0 : key === "G" ? all.length - 1 : 0) : Math.max(0, Math.min(all.length - 1, at + steps[key]));
    all[next].focus();
    return true;
  }

  open() {
    return false;
  }

  /** It has no focus itself: the selected element has it. */
  focus() {}
}
