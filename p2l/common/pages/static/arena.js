// The arena: both answers are read from one stream of events, and votes have keys.
"use strict";
(() => {
  const ask = document.getElementById("ask");
  const vote = document.getElementById("vote");
  const problem = document.getElementById("problem");
  const verdict = document.getElementById("verdict");
  const panes = [0, 1].map((side) => document.getElementById(`answer-${side}`));
  let running = null;

  function show(text) {
    problem.textContent = text;
    problem.hidden = !text;
  }

  // An event is "event: NAME" and "data: JSON", and ends with an empty line.
  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const [name, data] = text.slice(0, end).split("\n");
        text = text.slice(end + 2);
        yield [name.slice(7), JSON.parse(data.slice(6))];
      }
    }
  }

  // The first number that, behind the token, has a SHA-256 that begins with so many zero bits (32 at most).
  async function work(token, bits, signal) {
    const encoder = new TextEncoder();
    for (let number = 0; !signal.aborted; number += 1) {
      const hash = await crypto.subtle.digest("SHA-256", encoder.encode(`${token}.${number}`));
      if (Math.clz32(new DataView(hash).getUint32(0)) >= bits) return String(number);
    }
    return "";
  }

  async function open(token, signal) {
    const bits = Number(vote.dataset.workBits);
    if (bits) {
      if (!crypto.subtle) return show("Votes here carry a proof of work, which browsers do on https pages alone.");
      vote.elements.work.value = await work(token, bits, signal);
      if (signal.aborted) return undefined;
    }
    vote.elements.battle.value = token;
    vote.hidden = false;
    vote.querySelector("button").focus({ preventScroll: true });
    return undefined;
  }

  function take(name, content, signal) {
    if (name === "done") {
      return content ? open(content, signal) : show("There is nothing to vote on: a model did not answer.");
    }
    if (name === "problem") return show(content);
    panes[Number(name)].append(content);
    return undefined;
  }

  async function battle() {
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    show("");
    verdict.replaceChildren();
    vote.hidden = true;
    for (const pane of panes) pane.replaceChildren();
    document.getElementById("answers").hidden = false;
    try {
      const response = await fetch("/arena/answers", { method: "POST", body: new URLSearchParams(new FormData(ask)), signal });
      if (!response.ok) return show(await response.text());
      for await (const [name, content] of events(response.body)) await take(name, content, signal);
    } catch (error) {
      if (error.name !== "AbortError") show("The connection ended; ask again.");
    }
    return undefined;
  }

  ask.addEventListener("submit", (event) => {
    event.preventDefault();
    battle();
  });

  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.form === ask) ask.requestSubmit();
    if (vote.hidden || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("textarea, input")) return;
    vote.querySelector(`[aria-keyshortcuts="${CSS.escape(event.key.toLowerCase())}"]`)?.click();
  });

  document.addEventListener("htmx:afterSwap", () => {
    vote.hidden = true;
    verdict.focus({ preventScroll: true });
  });
})();
