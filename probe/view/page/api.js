// Requests to the server, or to what stands in the page itself: at most one of each kind at a time.
import { unpacked } from "./binary.js";
import { STATIC, embedded } from "./static.js";

/** @typedef {import("./binary.js").Binary} Binary */

/** Address of a part of the interface; what is null or empty in `query` is left out.
 * @type {(path: string, query?: Record<string, string | number | null | undefined>) => string} */
export function address(path, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") search.set(name, String(value));
  }
  return `/api/${path}${search.size ? `?${search}` : ""}`;
}

/** @type {(url: string, signal?: AbortSignal, headers?: Record<string, string>) => Promise<Response>} */
async function asked(url, signal, headers) {
  const response = await fetch(url, { signal, headers });
  if (response.ok) return response;
  const text = await response.text();
  const message = /^\{/.test(text) ? JSON.parse(text).error : text;
  throw Object.assign(new Error(message || response.statusText), { status: response.status });
}

/** @type {(url: string, signal?: AbortSignal, headers?: Record<string, string>) => Promise<any>} */
export const json = async (url, signal, headers) => (STATIC ? embedded(url) : (await asked(url, signal, headers)).json());

/** @type {(url: string, signal?: AbortSignal) => Promise<Binary>} */
export const binary = async (url, signal) => (STATIC ? embedded(url) : unpacked(await (await asked(url, signal)).arrayBuffer()));

let pending = 0;

/** @param {number} change */
function count(change) {
  pending += change;
  document.body.dataset.pending = String(pending);
}

/** What one place of the page shows. `want` replaces a request under way by another one; `renew` asks again for the
 * same, after the request under way, so that a run that grows faster than the server answers is shown all the same.
 * @template T */
export class Source {
  /** @type {Set<Source<any>>} those of the page that is shown */
  static all = new Set();

  /** Give up the requests of a page that is no longer shown. */
  static forget() {
    for (const source of Source.all) source.clear();
    Source.all.clear();
  }

  /** @param {(url: string, signal?: AbortSignal) => Promise<T>} get
   * @param {(answer: T) => void} draw
   * @param {(problem: Error) => void} fail */
  constructor(get, draw, fail) {
    this.get = get;
    this.draw = draw;
    this.fail = fail;
    this.url = "";
    /** @type {AbortController | null} */
    this.flight = null;
    this.again = false;
    /** @type {T | null} */
    this.answer = null;
    Source.all.add(this);
  }

  /** @param {string} url */
  want(url) {
    if (url === this.url) return;
    this.url = url;
    this.load();
  }

  /** Ask for an address, or draw once more what it answered. @param {string} url */
  show(url) {
    if (url === this.url && this.answer && !this.flight) this.draw(this.answer);
    this.want(url);
  }

  renew() {
    if (!this.url) return;
    if (this.flight) this.again = true;
    else this.load();
  }

  clear() {
    this.url = "";
    this.flight?.abort();
    this.flight = null;
  }

  async load() {
    this.flight?.abort();
    const own = new AbortController();
    this.flight = own;
    this.again = false;
    count(1);
    try {
      const answer = await this.get(this.url, own.signal);
      if (own.signal.aborted) return;
      this.answer = answer;
      this.draw(answer);
    } catch (problem) {
      if (own.signal.aborted) return;
      this.answer = null;
      this.fail(/** @type {Error} */ (problem));
    } finally {
      count(-1);
      if (this.flight === own) {
        this.flight = null;
        if (this.again) this.load();
      }
    }
  }
}

/** Answers that are drawn together, as they come; null in place of one that has failed. */
export class Group {
  /** @param {() => void} draw */
  constructor(draw) {
    this.draw = draw;
    /** @type {Source<Binary>[]} */
    this.sources = [];
    /** @type {(Binary | null)[]} */
    this.answers = [];
  }

  /** @param {string[]} urls */
  want(urls) {
    urls.forEach((url, n) => {
      this.sources[n] ??= new Source(binary, (answer) => this.receive(n, answer), () => this.receive(n, null));
      this.sources[n].want(url);
    });
    this.draw();
  }

  /** @type {(n: number, answer: Binary | null) => void} */
  receive(n, answer) {
    this.answers[n] = answer;
    this.draw();
  }
}
