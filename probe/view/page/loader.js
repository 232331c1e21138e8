// First script of a page that was written into a file: runs the others, which are compressed in it.
(async () => {
  if (typeof DecompressionStream === "undefined") {
    const text = "This page needs a newer browser: Chrome or Edge 89, Firefox 113, Safari 16.4, or later.";
    return document.getElementById("main")?.append(text);
  }
  for (const place of document.querySelectorAll("script[data-compressed]")) {
    const bytes = Uint8Array.from(atob(place.textContent ?? ""), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const script = document.createElement("script");
    if (place.id === "module") script.type = "module";
    script.textContent = await new Response(stream).text();
    document.body.append(script);
  }
})();
