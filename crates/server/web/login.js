// Proves that the user has the token, for a cookie that only opens the pages; the browser stores nothing else
// for other requests. The token stays in this tab and is not sent: see key.js.

import { Key, StrangerError } from "./key.js";

const TOKEN = "hq-token";
const form = /** @type {HTMLFormElement} */ (document.querySelector("form"));
const input = /** @type {HTMLInputElement} */ (document.querySelector("#token"));
const problem = /** @type {HTMLElement} */ (document.querySelector("#problem"));

async function logIn(token) {
  const authorization = await new Key(token).authorization("POST", "/login");
  const answer = await fetch("/login", { method: "POST", headers: { authorization } });
  if (answer.status === 401) throw new Error("This is not the token of this server.");
  if (!answer.ok) throw new Error(`The server refused: ${answer.status}`);
  sessionStorage.setItem(TOKEN, token);
  location.replace(`/${location.hash.startsWith("#/") ? location.hash : ""}`);
  // A document with only a new fragment would not be loaded again.
  if (location.pathname === "/") location.reload();
}

async function attempt(token) {
  problem.textContent = "";
  try {
    await logIn(token);
  } catch (error) {
    sessionStorage.removeItem(TOKEN);
    const isStranger = error instanceof StrangerError;
    const words = error instanceof TypeError ? "The server cannot be reached." : error.message;
    problem.textContent = isStranger ? "This is not the token of this server. Each start of the server has a new one." : words;
    input.select();
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  // A header cannot contain other characters.
  attempt(input.value.trim().replace(/[^\x21-\x7e]/g, ""));
});

/** A link with the token after `#token=`: browsers do not send that part, and it is removed at once. */
function takeLink() {
  const given = /^#token=([0-9a-f]+)$/.exec(location.hash);
  if (!given) return false;
  history.replaceState(null, "", location.pathname);
  attempt(given[1]);
  return true;
}

// Pasting a link while this page is open loads nothing.
addEventListener("hashchange", takeLink);
const kept = sessionStorage.getItem(TOKEN);
if (!takeLink() && kept) attempt(kept);
