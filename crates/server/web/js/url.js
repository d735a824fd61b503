// Choices of a view are stored in the address after `?`: links, reloads and "back" show the same.

/** `#/job/3/task/7?x=y` as `["job", "3", "task", "7"]`. */
export function parts() {
  return location.hash.replace(/^#\/?/, "").split("?")[0].split("/").filter(Boolean);
}

/** The choices. */
export function choices() {
  return new URLSearchParams(location.hash.split("?")[1] ?? "");
}

/** One choice; "" if unset. @param {string} name */
export const chosen = (name) => choices().get(name) ?? "";

/** A choice among several; the first one is the default. @param {string} name @param {readonly string[]} among */
export function oneOf(name, among) {
  const found = chosen(name);
  return among.includes(found) ? found : among[0];
}

/**
 * Changes choices; "" removes one. A `step` can be undone with "back"; typing cannot.
 * @param {Record<string, string | number | null | undefined>} changed
 * @param {{isStep?: boolean}} [how]
 */
export function choose(changed, { isStep = true } = {}) {
  const all = choices();
  for (const [name, value] of Object.entries(changed)) {
    if (value === "" || value === null || value === undefined) all.delete(name);
    else all.set(name, String(value));
  }
  const path = location.hash.split("?")[0] || "#/overview";
  const query = all.toString();
  const next = query ? `${path}?${query}` : path;
  if (next === location.hash) return;
  // Neither triggers an event: the view has changed already.
  if (isStep) history.pushState(null, "", next);
  else history.replaceState(null, "", next);
}
