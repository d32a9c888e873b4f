// What pages do beyond htmx: rows slide to their new places, boards are copied as JSON or as a link.
// A link holds its prompts behind the #, which browsers send to no server.
"use strict";
(() => {
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let places = new Map();

  const rows = () => [...document.querySelectorAll(".board tbody tr")];

  document.addEventListener("htmx:beforeSwap", () => {
    places = new Map(rows().map((row) => [row.id, row.getBoundingClientRect().top]));
  });

  document.addEventListener("htmx:afterSwap", () => {
    reveal();
    if (calm.matches || !places.size) return;
    const moves = rows()
      .map((row) => [row, places.get(row.id), row.getBoundingClientRect().top])
      .filter(([, before, now]) => before !== undefined && before !== now && (now < innerHeight || before < innerHeight));
    for (const [row, before, now] of moves) {
      row.animate([{ transform: `translateY(${before - now}px)` }, { transform: "none" }], { duration: 180, easing: "ease-out" });
    }
  });

  // The next keystroke cancels a request on purpose, but htmx writes that to the console as an error.
  document.addEventListener("htmx:beforeSend", ({ detail: { xhr } }) => {
    const { onabort } = xhr;
    xhr.onabort = (event) => {
      const { error } = console;
      console.error = () => {};
      try {
        onabort.call(xhr, event);
      } finally {
        console.error = error;
      }
    };
  });

  const texts = (name) => [...document.querySelectorAll(`#prompt textarea[name=${name}]`)].map((area) => area.value);

  async function copy(kind) {
    let text;
    if (kind === "json") {
      const fields = new URLSearchParams([...new FormData(document.getElementById("prompt"))]);
      fields.append("as", "json");
      text = await (await fetch("page/board", { method: "POST", body: fields })).text();
    } else {
      const prompts = JSON.stringify({ turn: texts("turn"), other: texts("other") });
      text = `${location.href.split("#")[0]}#board=${encodeURIComponent(prompts)}`;
    }
    const status = document.getElementById("copied");
    try {
      await navigator.clipboard.writeText(text);
      status.textContent = "Copied";
    } catch {
      status.textContent = "The browser does not let this page copy";
    }
    setTimeout(() => { status.textContent = ""; }, 2500);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    event.preventDefault();
    copy(button.dataset.copy);
  });

  function reveal() {
    for (const button of document.querySelectorAll("[data-copy=link]")) button.hidden = false;
  }

  function open() {
    if (!location.hash.startsWith("#board=") || !document.getElementById("prompt")) return;
    let prompts;
    try {
      prompts = JSON.parse(decodeURIComponent(location.hash.slice(7)));
    } catch {
      return;
    }
    const values = { turn: prompts.turn, other: prompts.other };
    htmx.ajax("POST", "./", { values, target: "#main", select: "#main", swap: "outerHTML" });
  }

  reveal();
  addEventListener("hashchange", open);
  document.addEventListener("DOMContentLoaded", open);
})();
