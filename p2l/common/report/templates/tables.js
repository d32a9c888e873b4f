"use strict";
document.documentElement.classList.add("scripted");
for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0];
  const limit = body.querySelectorAll("tr:not(.more)").length;
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, place) => {
    const cell = row.cells[place];
    const text = "sort" in cell.dataset ? cell.dataset.sort : cell.textContent.trim();
    const number = text === "" ? NaN : Number(text);
    return { empty: text === "", number: Number.isNaN(number) ? null : number, text };
  };
  const order = (a, b) =>
    a.number !== null && b.number !== null ? a.number - b.number : a.text.localeCompare(b.text, undefined, { numeric: true });
  heads.forEach((head, place) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const first = head.classList.contains("number") ? "descending" : "ascending";
      const now = head.getAttribute("aria-sort");
      const next = now === null ? first : now === "ascending" ? "descending" : "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const rows = [...body.rows].map((row) => [value(row, place), row]);
      rows.sort(([a], [b]) => a.empty - b.empty || sign * order(a, b));
      rows.forEach(([, row], index) => row.classList.toggle("more", index >= limit));
      body.append(...rows.map(([, row]) => row));
    });
  });
  const unfold = table.closest(".scroll").nextElementSibling;
  if (unfold && unfold.classList.contains("unfold")) {
    unfold.addEventListener("click", () => {
      table.classList.add("open");
      unfold.remove();
    });
  }
}
// Filters of a page share what is typed: rows stay whose name holds one of the texts between its commas.
const filters = [...document.querySelectorAll(".filter input")];
const filter = (typed) => {
  const texts = typed.toLowerCase().split(",").map((text) => text.trim()).filter(Boolean);
  for (const input of filters) {
    if (input.value !== typed) input.value = typed;
    const table = input.closest(".filter").nextElementSibling.querySelector("table");
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) {
      const name = row.cells[input.dataset.column].textContent.toLowerCase();
      row.hidden = texts.length > 0 && !texts.some((text) => name.includes(text));
    }
    table.classList.toggle("filtered", texts.length > 0);
    const kept = rows.filter((row) => !row.hidden).length;
    input.closest(".filter").querySelector("[role=status]").textContent = texts.length ? `${kept} of ${rows.length}` : "";
  }
};
for (const input of filters) input.addEventListener("input", () => filter(input.value));
// What a link leads to must not stay folded.
const reveal = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", reveal);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));
if (location.hash) reveal();
