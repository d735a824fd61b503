// Requests and the stream of events. The token is sent in a header and lives in this tab only.

const TOKEN = "hq-token";
const BASE = "/api/v1";
const RETRY_MS_MAX = 5_000;
const FELLOW_WAIT_MS = 400;

const fellows = new BroadcastChannel("hq-token");
let token = sessionStorage.getItem(TOKEN);

fellows.addEventListener("message", ({ data }) => {
  if (data === "ask" && token) fellows.postMessage({ token });
  else if (data?.token && !token) keep(data.token);
});

function keep(text) {
  token = text;
  sessionStorage.setItem(TOKEN, text);
}

/** Finds the token: of this tab, or of another tab of this server. Otherwise the user is asked. */
export async function ready() {
  if (token) return;
  fellows.postMessage("ask");
  const until = performance.now() + FELLOW_WAIT_MS;
  while (!token && performance.now() < until) {
    await new Promise((resume) => setTimeout(resume, 20));
  }
  if (!token) logOut();
}

/** Forgets the token and asks for it. */
export function logOut() {
  sessionStorage.removeItem(TOKEN);
  location.replace(`/login${location.hash}`);
}

/** An answer that is none: `status` 0 = the server was not reached. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function send(path, options = {}) {
  const headers = { authorization: `Bearer ${token}`, ...options.headers };
  let answer;
  try {
    answer = await fetch(BASE + path, { cache: "no-store", ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the server cannot be reached");
  }
  if (answer.status === 401) {
    logOut();
    throw new ApiError(401, "the token is wrong");
  }
  if (!answer.ok) {
    const found = await answer.json().catch(() => null);
    throw new ApiError(answer.status, found?.error ?? `the server answered ${answer.status}`);
  }
  return answer;
}

export const get = async (path, signal) => (await send(path, { signal })).json();
export const post = async (path) => (await send(path, { method: "POST" })).json();

/**
 * Follows the events. `onEvents` gets `[{seq, event, at_ms}]`, `onState` "live", "away", "polling" or "none". Goes on behind
 * the last event after an interruption; if that is too long ago, `onGap` is called. Returns what
 * ends it.
 */
export function follow(onEvents, onState, onGap) {
  const stop = new AbortController();
  let last = null;
  let pause = 250;
  const run = async () => {
    while (!stop.signal.aborted) {
      let isBusy = false;
      try {
        const headers = last === null ? {} : { "last-event-id": String(last) };
        const answer = await send("/events?resync=true", { headers, signal: stop.signal });
        onState("live");
        pause = 250;
        await readEvents(answer.body, (events) => {
          last = events.at(-1).seq;
          onEvents(events);
        }, (seq) => {
          last = seq;
          onGap();
        });
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error.status === 404 || error.status === 401) {
          onState("none");
          return;
        }
        // Too many others follow the events: what changed is asked for without them.
        isBusy = error.status === 503;
      }
      if (stop.signal.aborted) return;
      onState(isBusy ? "polling" : "away");
      await new Promise((resume) => setTimeout(resume, isBusy ? RETRY_MS_MAX : pause));
      pause = Math.min(pause * 2, RETRY_MS_MAX);
    }
  };
  run();
  return () => stop.abort();
}

/** Reads `id:`, `event:` and `data:` lines; events that arrive together are handed on together. */
async function readEvents(body, onEvents, onGap) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let [seq, kind, data] = [null, "", null];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    const events = [];
    for (const line of lines) {
      if (line.startsWith("id:")) seq = Number(line.slice(3));
      else if (line.startsWith("event:")) kind = line.slice(6).trim();
      else if (line.startsWith("data:")) data = line.slice(5);
      else if (line.trim() === "" && data !== null) {
        const found = JSON.parse(data);
        if (kind === "resync") onGap(seq);
        else events.push({ seq, event: found.event, at_ms: Date.parse(found.time) });
        [kind, data] = ["", null];
      }
    }
    if (events.length > 0) onEvents(events);
  }
}
