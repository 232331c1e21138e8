// Changes of runs as they come: one stream, for the runs on the screen, closed while the tab is hidden.

/** @typedef {{ number: number, last_step: number | null, findings: number | null, alive: boolean, analysis: string }} Change */
/** @typedef {{ cursor: string, listed: boolean, runs: Change[] }} Changes */

const RETRY = 5000;

/** Follow runs: what is returned takes the numbers of those to follow, none for all of them.
 * @param {(changes: Changes) => void} changed
 * @param {(state: "live" | "paused" | "lost") => void} become */
export function live(changed, become) {
  let [runs, cursor, timer] = ["", "", 0];
  /** @type {EventSource | null} */
  let stream = null;

  /** Open the stream where the last one ended, or close it if nobody looks. */
  function open() {
    clearTimeout(timer);
    stream?.close();
    stream = null;
    if (document.hidden) return become("paused");
    const query = new URLSearchParams([...(runs ? [["runs", runs]] : []), ...(cursor ? [["cursor", cursor]] : [])]);
    const own = new EventSource(`/api/events?${query}`);
    own.addEventListener("open", () => become("live"));
    own.addEventListener("change", ({ data }) => {
      const changes = JSON.parse(data);
      cursor = changes.cursor;
      changed(changes);
    });
    own.addEventListener("error", () => {
      if (stream !== own) return;
      become("lost"); // the browser connects again by itself, unless the server refused
      if (own.readyState === EventSource.CLOSED) timer = setTimeout(open, RETRY);
    });
    stream = own;
  }

  document.addEventListener("visibilitychange", open);
  return (/** @type {number[]} */ numbers) => {
    if (stream && numbers.join(",") === runs) return;
    runs = numbers.join(",");
    open();
  };
}
