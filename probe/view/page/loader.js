// First script of a page that was written into a file: runs the others, which are compressed in it.

const SIGNS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";

/** What stands compressed in the page; static.js calls it, too.
 * @param {string} text zlib in base 85: five signs for four bytes */
function inflated(text) {
  const values = new Map([...SIGNS].map((sign, n) => [sign, n]));
  const words = new DataView(new ArrayBuffer(Math.ceil(text.length / 5) * 4));
  for (let word = 0; word * 5 < text.length; word++) {
    let value = 0;
    for (let n = 0; n < 5; n++) value = value * 85 + (values.get(text[word * 5 + n]) ?? 84);
    words.setUint32(word * 4, value);
  }
  const bytes = new Uint8Array(words.buffer, 0, Math.floor((text.length * 4) / 5));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")));
}

(async () => {
  if (typeof DecompressionStream === "undefined") {
    const text = "This page needs a newer browser: Chrome or Edge 89, Firefox 113, Safari 16.4, or later.";
    return document.getElementById("main")?.append(text);
  }
  for (const place of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-compressed]"))) {
    const { compressed = "", type } = place.dataset;
    const made = Object.assign(document.createElement(compressed), type ? { type } : {});
    made.textContent = await inflated(place.textContent ?? "").text();
    document.body.append(made);
  }
})();
