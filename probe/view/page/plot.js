// What a heatmap and a chart of curves have in common: a place that has the focus, a readout, keys.
import { element } from "./dom.js";
import { whenColoured } from "./palette.js";

export class Plot {
  /** @param {Record<string, any>} look of the place @param {{ reset?: () => void, leave?: () => void }} actions */
  constructor(look, actions) {
    this.ends = actions;
    this.place = element("div", { tabIndex: 0, ...look });
    this.readout = element("output", { className: "readout", aria: { live: "polite" } });
    this.place.addEventListener("keydown", (event) => this.press(event));
    this.place.addEventListener("blur", () => this.leaveCursor());
    new ResizeObserver(() => this.resize()).observe(this.place);
    whenColoured(() => this.redraw());
  }

  redraw() {}
  resize() {}
  leaveCursor() {}
  chooseCursor() {}
  closer() {}
  /** @type {(lines: number, columns: number) => void} */
  moveCursor() {}

  /** @param {KeyboardEvent} event */
  press(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const far = event.shiftKey ? 10 : 1;
    const moves = /** @type {Record<string, [number, number]>} */ ({
      ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far],
      PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -Infinity], End: [0, Infinity],
    });
    if (event.key in moves) this.moveCursor(...moves[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.chooseCursor();
    else if (event.key === "Escape" && this.ends.leave) this.ends.leave();
    else if (event.key === "+" || event.key === "=") this.closer();
    else if (event.key === "0") this.ends.reset?.();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
