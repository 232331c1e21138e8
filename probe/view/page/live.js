// Changes of runs as they come: one stream, for the runs on the screen, closed while the tab is hidden.

/** @typedef {{ number: number, last_step: number | null, findings: number | null, alive: boolean, analysis: string }} Change */
/** @typedef {{ cursor: string, listed: boolean, runs: Change[] }} Changes */

const RETRY = 5000;

export class Live {
  /**
   * @param {(changes: Changes) => void} changed
   * @param {(state: "live" | "paused" | "lost") => void} become
   */
  constructor(changed, become) {
    this.changed = changed;
    this.become = become;
    this.runs = "";
    this.cursor = "";
    /** @type {EventSource | null} */
    this.stream = null;
    this.timer = 0;
    document.addEventListener("visibilitychange", () => this.open());
  }

  /**
   * Follow these runs; an empty list follows all of them.
   * @param {number[]} numbers
   */
  watch(numbers) {
    const runs = numbers.join(",");
    if (this.stream && runs === this.runs) return;
    this.runs = runs;
    this.open();
  }

  /** Open the stream where the last one ended, or close it if nobody looks. */
  open() {
    clearTimeout(this.timer);
    this.stream?.close();
    this.stream = null;
    if (document.hidden) return this.become("paused");
    const query = new URLSearchParams();
    if (this.runs) query.set("runs", this.runs);
    if (this.cursor) query.set("cursor", this.cursor);
    const stream = new EventSource(`/api/events?${query}`);
    stream.addEventListener("open", () => this.become("live"));
    stream.addEventListener("change", (event) => this.receive(/** @type {MessageEvent} */ (event)));
    stream.addEventListener("error", () => this.lose(stream));
    this.stream = stream;
  }

  /** @param {MessageEvent} event */
  receive(event) {
    const changes = JSON.parse(event.data);
    this.cursor = changes.cursor;
    this.changed(changes);
  }

  /**
   * The browser connects again by itself, unless the server refused.
   * @param {EventSource} stream
   */
  lose(stream) {
    if (stream !== this.stream) return;
    this.become("lost");
    if (stream.readyState === EventSource.CLOSED) this.timer = setTimeout(() => this.open(), RETRY);
  }
}
