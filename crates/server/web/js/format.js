// Numbers, times and names for people.

const GROUPS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const STATES = ["waiting", "running", "finished", "failed", "canceled", "aborted"];

/** `12 345`, as the server writes it in sentences. */
export const number = (value) => GROUPS.format(value).replaceAll(",", "\u202f");
/** `12.3K`. */
export const compact = (value) => (value < 10_000 ? number(value) : COMPACT.format(value));
/** `1 task`, `2 tasks`. */
export const count = (value, what) => `${number(value)} ${what}${value === 1 ? "" : "s"}`;

/** Milliseconds as `350 ms`, `4.2 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`. */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 1) return `${Math.max(0, ms * 1000).toFixed(0)} µs`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const [minutes, hours] = [Math.floor(s / 60), Math.floor(s / 3600)];
  if (s < 3600) return `${minutes} min ${Math.floor(s % 60)} s`;
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const two = (value) => String(value).padStart(2, "0");

/** Time of day in the viewer's time zone: `08:15:50`. For axes that show the date separately. */
export function clock(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** Date in the viewer's time zone: `2026-11-28`. */
export function day(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/** Date and time in the viewer's time zone: `2026-11-28 08:15:50`. For lists whose header names the zone. */
export const moment = (ms) => (ms === null || ms === undefined ? "–" : `${day(ms)} ${clock(ms)}`);

/** The viewer's time zone at some time: `UTC+01:00`. */
export function zone(ms = Date.now()) {
  const minutes = -new Date(ms).getTimezoneOffset();
  const size = Math.abs(minutes);
  return minutes === 0 ? "UTC" : `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

/** Date, time and zone: `2026-11-28 08:15:50 UTC+01:00`. */
export const zoned = (ms) => (ms === null || ms === undefined ? "–" : `${moment(ms)} ${zone(ms)}`);

/** `3 min ago`. */
export const ago = (ms, now) => (ms === null ? "–" : now - ms < 1000 ? "just now" : `${duration(now - ms)} ago`);

/** Bytes as `1.5 GiB`. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let [rest, at] = [value, 0];
  while (rest >= 1024 && at < units.length - 1) {
    rest /= 1024;
    at += 1;
  }
  return `${at === 0 ? rest : rest.toFixed(1)} ${units[at]}`;
}

/** A smaller measured peak may be the worker's own memory, which the kernel counts as well. */
const WORKER_MEMORY_MAX = 64 * 1024 * 1024;

/** The peak memory of a task: `1.5 GiB`, `< 22.0 MiB`. */
export const peakMemory = (value) => (value > 0 && value < WORKER_MEMORY_MAX ? `< ${bytes(value)}` : bytes(value));

/** Names and values of parameters: `lr=0.1, seed=3`. @param {Record<string, string> | null | undefined} params */
export const paramsText = (params) => plain(Object.entries(params ?? {}).map(([name, value]) => `${name}=${value}`).join(", "));

/** Tasks that ended by themselves. */
export const done = (tasks) => tasks.finished + tasks.failed;
/** Tasks that have ended in any way. */
export const ended = (tasks) => tasks.finished + tasks.failed + tasks.canceled + tasks.aborted;
export const total = (tasks) => STATES.reduce((sum, state) => sum + tasks[state], 0);

/** The first line, shortened. */
export function brief(text, length = 160) {
  const line = String(text ?? "").split("\n", 1)[0];
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}

/** Makes control characters visible; characters that change the direction of text could fake it. */
export function plain(text) {
  return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

/** A word quoted for a shell. @param {string} word */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** A short description of an error. */
export function failure(text) {
  const signal = /Received signal \d+ \((\w+)\)/.exec(text ?? "");
  if (signal) return `killed by ${signal[1]}`;
  return brief(plain(text ?? "").replace(/^(?:Error: )?Program terminated with /, "").replace(/\.$/, ""));
}
