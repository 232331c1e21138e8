// First script of a page that was written into a file: runs the others, which are compressed in it.

/**
 * What stands compressed in the page; static.js calls it, too.
 * @param {string} base64 zlib
 */
function inflated(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")));
}

(async () => {
  if (typeof DecompressionStream === "undefined") {
    const text = "This page needs a newer browser: Chrome or Edge 89, Firefox 113, Safari 16.4, or later.";
    return document.getElementById("main")?.append(text);
  }
  for (const place of document.querySelectorAll("script[data-compressed]")) {
    const script = document.createElement("script");
    if (place.id === "module") script.type = "module";
    script.textContent = await inflated(place.textContent ?? "").text();
    document.body.append(script);
  }
})();
