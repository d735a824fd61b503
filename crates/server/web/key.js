// Proves the token without sending it: the server proves first that it has the token, and requests
// are signed with it. After the server's end, another program may use the port, so nothing is sent to a program
// that has not proved itself.

const PROOF_MS_MAX = 10_000;

const encoder = new TextEncoder();
const hex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
const random = () => hex(crypto.getRandomValues(new Uint8Array(16)));

/** Browsers compute signatures only for pages of the local machine (or with TLS); elsewhere the token itself is sent. */
const CAN_SIGN = crypto.subtle !== undefined;

/** The answering program does not have the token: it is another program, or a later run of the server. */
export class StrangerError extends Error {}

export class Key {
  #secret = /** @type {Promise<CryptoKey> | null} */ (null);
  /** The server's clock minus ours; null = the server must prove itself. */
  #offset = /** @type {number | null} */ (null);
  #proving = /** @type {Promise<void> | null} */ (null);

  constructor(token) {
    this.token = token;
    if (!CAN_SIGN) return;
    this.#secret = crypto.subtle.importKey("raw", encoder.encode(token), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  }

  /** The connection broke or a request was rejected: the server must prove itself again before anything else is sent. */
  doubt() {
    this.#offset = null;
  }

  /** Makes the server prove itself, unless it has. */
  async prove() {
    if (!CAN_SIGN || this.#offset !== null) return;
    this.#proving ??= this.#ask().finally(() => {
      this.#proving = null;
    });
    await this.#proving;
  }

  async #ask() {
    const nonce = random();
    /** @type {RequestInit} */
    const options = { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(PROOF_MS_MAX) };
    const answer = await fetch(`/login/proof?nonce=${nonce}`, options);
    const found = answer.ok ? await answer.json().catch(() => null) : null;
    const expected = await this.#sign(`hq-server\n${nonce}\n${found?.now_ms}`);
    // The server does not know which token this is, and proves that it has each of its own.
    if (found?.proof !== expected && found?.read_proof !== expected) throw new StrangerError("this is not the server of this page");
    this.#offset = found.now_ms - Date.now();
  }

  async #sign(text) {
    if (this.#secret === null) throw new Error("this page cannot sign");
    return hex(await crypto.subtle.sign("HMAC", await this.#secret, encoder.encode(text)));
  }

  /** The header of one request; `target` is its path with the query. */
  async authorization(method, target) {
    if (!CAN_SIGN) return `Bearer ${this.token}`;
    await this.prove();
    const stamp = `${Date.now() + (this.#offset ?? 0)}.${random()}`;
    return `HQ ${stamp}.${await this.#sign(`hq-request\n${method}\n${target}\n${stamp}`)}`;
  }
}
