// Choices on a view are in the address behind `?`: links, reloads and the way back show the same.

/** `#/job/3/task/7?x=y` as `["job", "3", "task", "7"]`. */
export function parts() {
  return location.hash.replace(/^#\/?/, "").split("?")[0].split("/").filter(Boolean);
}

/** The choices. */
export function choices() {
  return new URLSearchParams(location.hash.split("?")[1] ?? "");
}

/** One choice; "" if there is none. @param {string} name */
export const chosen = (name) => choices().get(name) ?? "";

/** A choice that is one of several, the first of which needs no mention. @param {string} name @param {readonly string[]} among */
export function oneOf(name, among) {
  const found = chosen(name);
  return among.includes(found) ? found : among[0];
}

/**
 * Changes choices; "" takes one away. A `step` is one that "back" undoes; what one types is not.
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
  // Neither is followed by an event: the view has changed already.
  if (isStep) history.pushState(null, "", next);
  else history.replaceState(null, "", next);
}
