// Elements from data. Text is always a text node: names chosen by tasks never become markup.

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name === "className" ? "class" : name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/**
 * An element; `props` are attributes, or listeners if they begin with `on`.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {Record<string, any> | null} [props] @param {...any} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/**
 * Likewise for SVG.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag @param {Record<string, any> | null} [props] @param {...any} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

/** A required element. @param {string} selector @returns {HTMLElement} */
export function find(selector) {
  const found = document.querySelector(selector);
  if (!(found instanceof HTMLElement)) throw new Error(`there is no ${selector}`);
  return found;
}

/** Sets a text if it differs: untouched nodes cost no layout. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute if it differs. */
export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Shows or hides. */
export function show(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

/** Replaces the children if `key` has changed since the last call. */
export function rebuild(element, key, make) {
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  const { activeElement } = document;
  const focused = activeElement !== null && element.contains(activeElement) ? activeElement.getAttribute("data-focus") : null;
  element.replaceChildren(...[make()].flat().filter(Boolean));
  if (focused) /** @type {HTMLElement | null} */ (element.querySelector(`[data-focus="${CSS.escape(focused)}"]`))?.focus();
}
