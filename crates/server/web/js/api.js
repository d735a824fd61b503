// Requests and the stream of events. The token stays in this tab and is never sent: see key.js.
// A report contains the answers itself and sends no requests.

import { Key, StrangerError } from "../key.js";

const TOKEN = "hq-token";
const BASE = "/api/v1";
const RETRY_MS_MAX = 5_000;
const FELLOW_WAIT_MS = 1_000;

/**
 * The contents of a report; null on the page of a server. `notes` say what is left out.
 * @type {{title: string, from_ms: number, to_ms: number, notes: string[], answers: Record<string, any>} | null}
 */
export const report = JSON.parse(document.querySelector("#recorded")?.textContent ?? "null");

const fellows = new BroadcastChannel("hq-token");
const kept = report ? null : sessionStorage.getItem(TOKEN);
let key = kept ? new Key(kept) : null;
/** Another program has the port: no further request goes to it. */
let isStranger = false;

fellows.addEventListener("message", ({ data }) => {
  if (data === "ask") tellFellow();
  else if (data?.token && !key) keep(data.token);
});

/** Another tab requests the token. Pages of another program on this port could do that as well, so the server must prove itself first. */
async function tellFellow() {
  if (!key || isStranger) return;
  key.doubt();
  const isOurs = await key.prove().then(() => true, () => false);
  if (isOurs) fellows.postMessage({ token: key.token });
}

function keep(text) {
  key = new Key(text);
  sessionStorage.setItem(TOKEN, text);
}

/** Finds the token in this tab, or in another tab of this server. Otherwise asks the user. */
export async function ready() {
  if (report) return;
  if (!key) {
    fellows.postMessage("ask");
    const until = performance.now() + FELLOW_WAIT_MS;
    while (!key && performance.now() < until) {
      await sleep(20);
    }
  }
  // The page came from the program that now asks for the token, so the request is as trustworthy as the page.
  const isOurs = await key?.prove().then(() => true, (error) => !(error instanceof StrangerError));
  if (!isOurs) {
    sessionStorage.removeItem(TOKEN);
    location.replace(`/login${location.hash}`);
  }
}

/** A failed request: `status` 0 = the server is unreachable. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const STRANGER = "another server or program answers now; `hq dashboard --web` prints a new link";

/** @param {number} ms */
const sleep = (ms) => new Promise((resume) => { setTimeout(resume, ms); });

/** @param {string} path @param {RequestInit} [options] @returns {Promise<Response>} */
async function send(path, options = {}, isAgain = false) {
  if (isStranger || !key) throw new ApiError(401, STRANGER);
  const url = new URL(BASE + path, location.origin);
  let answer;
  try {
    const authorization = await key.authorization(options.method ?? "GET", url.pathname + url.search);
    answer = await fetch(url, { cache: "no-store", ...options, headers: { ...options.headers, authorization } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    key.doubt();
    if (!(error instanceof StrangerError)) throw new ApiError(0, "the server cannot be reached");
    isStranger = true;
    sessionStorage.removeItem(TOKEN);
    throw new ApiError(401, STRANGER);
  }
  if (answer.status === 401 && !isAgain) {
    // The clock was set, or another server answers.
    key.doubt();
    return send(path, options, true);
  }
  if (!answer.ok) {
    const found = await answer.json().catch(() => null);
    throw new ApiError(answer.status, found?.error ?? `the server answered ${answer.status}`);
  }
  return answer;
}

/** The answer in a report. Its lists are whole, so they are filtered here. @param {string} path @returns {any} */
function recorded(path) {
  const [place, query] = path.split("?");
  const answer = report?.answers[place];
  if (answer === undefined) throw new ApiError(404, "the report leaves this out");
  const [list] = /(?:jobs|tasks)$/.exec(place) ?? [];
  const asked = new URLSearchParams(query);
  const [states, words] = [asked.get("state"), asked.get("q")?.toLowerCase()];
  if (!list || !(states || words)) return structuredClone(answer);
  const texts = ({ id, name, host, error, resources, params }) => [id, name, host, error, resources, ...Object.entries(params ?? {}).map((pair) => pair.join("="))];
  const has = (row) => texts(row).some((text) => String(text ?? "").toLowerCase().includes(words ?? ""));
  return { ...answer, [list]: answer[list].filter((row) => (!states || states.split(",").includes(row.state)) && (!words || has(row))) };
}

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} */
export const get = async (path, signal) => (report ? recorded(path) : (await send(path, { signal })).json());
/** @param {string} path @returns {Promise<any>} */
export const post = async (path) => (await send(path, { method: "POST" })).json();

/**
 * Follows the events. `onEvents` gets `[{seq, event, at_ms}]`, `onState` "live", "away", "polling", "none",
 * "stranger" or "report"; after the last two nothing follows. After an interruption it continues after
 * the last event; if that is too long ago, it calls `onGap`. Returns a function that
 * stops it.
 */
export function follow(onEvents, onState, onGap) {
  if (report) {
    onState("report");
    return () => {};
  }
  const stop = new AbortController();
  /** @type {number | null} */
  let last = null;
  let pause = 250;
  const read = (body) => readEvents(body, (events) => {
    last = events.at(-1).seq;
    onEvents(events);
  }, (seq) => {
    last = seq;
    onGap();
  });
  const run = async () => {
    while (!stop.signal.aborted) {
      let isBusy = false;
      try {
        /** @type {Record<string, string>} */
        const headers = last === null ? {} : { "last-event-id": String(last) };
        const answer = await send("/events?resync=true", { headers, signal: stop.signal });
        onState("live");
        pause = 250;
        await read(answer.body);
      } catch (error) {
        if (stop.signal.aborted) return;
        key?.doubt();
        if (isStranger) {
          onState("stranger");
          return;
        }
        if (error.status === 404 || error.status === 401) {
          onState("none");
          return;
        }
        // Too many readers follow the events: this page polls for changes instead.
        isBusy = error.status === 503;
      }
      if (stop.signal.aborted) return;
      if (!isBusy) key?.doubt();
      onState(isBusy ? "polling" : "away");
      await sleep(isBusy ? RETRY_MS_MAX : pause);
      pause = Math.min(pause * 2, RETRY_MS_MAX);
    }
  };
  run();
  return () => stop.abort();
}

/** Reads `id:`, `event:` and `data:` lines; passes on events that arrive together in one call. */
async function readEvents(body, onEvents, onGap) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  /** @type {number | null} */
  let seq = null;
  let kind = "";
  /** @type {string | null} */
  let data = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
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
