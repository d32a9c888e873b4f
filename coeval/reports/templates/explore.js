"use strict";
// Filters: what is computed from scores is computed anew, rows and columns of all else are hidden.
const data = JSON.parse(document.getElementById("data").textContent);
const DIMENSIONS = ["task", "teacher", "student", "judge", "factor"];
// Rows [task, teacher, student, judge, factor, scores, total, high, medium, low] from runs of places in the cube.
const unpack = () => {
  const sizes = DIMENSIONS.map((name) => data.names[name].length);
  const rows = [];
  for (let run = 0; run < data.runs.length; run += 2)
    for (let step = 0; step < data.runs[run + 1]; step++) {
      const where = [];
      let rest = data.runs[run] + step;
      for (let index = sizes.length - 1; index >= 0; index--) {
        where[index] = rest % sizes[index];
        rest = Math.floor(rest / sizes[index]);
      }
      rows.push(where.concat(data.sums[data.sum[rows.length]]));
    }
  return rows;
};
data.rows = data.sums ? unpack() : [];
const chosen = Object.fromEntries(DIMENSIONS.map((name) => [name, new Set(data.names[name].keys())]));
let selves = "all";
const place = Object.fromEntries(DIMENSIONS.map((name) => [name, new Map(data.names[name].map((text, index) => [text, index]))]));
const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const number = (value, digits = 0) =>
  (Math.round(value * 10 ** digits) === 0 ? 0 : value)
    .toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })
    .replace("-", "\u2212");
const signed = (value, digits) => (value > 0 && Math.round(value * 10 ** digits) > 0 ? "+" : "") + number(value, digits);
const count = (value) => `${number(value)} ${value === 1 ? "score" : "scores"}`;
const isAll = (name) => chosen[name].size === data.names[name].length;
const unfiltered = () => DIMENSIONS.every(isAll) && selves === "all";
const named = (row, dimension) => data.names[dimension][row[DIMENSIONS.indexOf(dimension)]];
const takes = (row) =>
  DIMENSIONS.every((name, index) => chosen[name].has(row[index])) &&
  !((selves === "judge" || selves === "both") && named(row, "judge") === named(row, "student")) &&
  !((selves === "teacher" || selves === "both") && named(row, "teacher") === named(row, "student"));
const keptRows = () => data.rows.filter(takes);

// Sums of [scores, total, high, medium, low] by a key of the row.
const sums = (rows, key) => {
  const made = new Map();
  for (const row of rows) {
    const at = key(row);
    const sum = made.get(at) || [0, 0, 0, 0, 0];
    for (let index = 0; index < 5; index++) sum[index] += row[5 + index];
    made.set(at, sum);
  }
  return made;
};
const mean = (sum) => sum[1] / sum[0];
// Means of students weigh factors where the rubric does, counts do not.
const weigh = (row) => {
  const weight = (data.weights[named(row, "task")] || {})[named(row, "factor")] || 1;
  return [...row.slice(0, 5), weight * row[5], weight * row[6], ...row.slice(7)];
};
const weighedRows = (rows) => (data.weights ? rows.map(weigh) : rows);

const levelsTable = (rows, by) => {
  const found = [...sums(rows, (row) => row[DIMENSIONS.indexOf(by)])].filter(([, sum]) => sum[0]);
  found.sort(([, a], [, b]) => mean(b) - mean(a));
  const body = element("tbody");
  for (const [index, sum] of found) {
    const share = (amount) => `${number((100 * amount) / sum[0])}%`;
    const [scores, , high, medium, low] = sum;
    const stack = element("span", { class: "stack", "aria-hidden": "true" });
    for (const [name, amount] of [["high", high], ["medium", medium], ["low", low], ["numeric", scores - high - medium - low]])
      if (amount) stack.append(element("i", { class: name, style: `width:${(100 * amount) / scores}%` }));
    const cells = [share(high), share(medium), share(low), number(mean(sum), 3), number(scores)];
    const name = data.names[by][index];
    body.append(
      element("tr", {}, element("td", { title: (data.notes[by] || {})[name] || name }, name), element("td", {}, stack),
        ...cells.map((text) => element("td", { class: "number" }, text))),
    );
  }
  const heads = [by, "shares of levels", "High", "Medium", "Low", "mean", "scores"];
  const head = element("tr", {}, ...heads.map((text, index) => element("th", index > 1 ? { class: "number" } : {}, text)));
  return element("div", { class: "scroll", tabindex: "0" }, element("table", {}, element("thead", {}, head), body));
};

const gridTable = (rows, down, across, deviation) => {
  const columns = data.names[across].length;
  const [first, second] = [DIMENSIONS.indexOf(down), DIMENSIONS.indexOf(across)];
  const counts = sums(rows, (row) => row[first] * columns + row[second]);
  const cells = sums(weighedRows(rows), (row) => row[first] * columns + row[second]);
  const overall = sums(rows, (row) => row[DIMENSIONS.indexOf("student")]);
  const used = (dimension, which) => [...new Set([...cells].filter(([, sum]) => sum[0]).map(([key]) => (which ? key % columns : Math.floor(key / columns))))].sort((a, b) => a - b);
  const value = (index, other) => {
    const sum = cells.get(index * columns + other);
    if (!sum || !sum[0]) return null;
    return mean(sum) - (deviation ? mean(overall.get(down === "student" ? index : other)) : 0);
  };
  const [downs, acrosses] = [used(down, false), used(across, true)];
  const most = deviation ? Math.max(0.01, ...downs.flatMap((index) => acrosses.map((other) => Math.abs(value(index, other) || 0)))) : 1;
  const head = element("tr", {}, element("th", {}, `${down} \\ ${across}`), ...acrosses.map((other) => {
    const name = data.names[across][other];
    return element("th", { class: "head", title: (data.notes[across] || {})[name] || name }, element("span", {}, name));
  }));
  const body = element("tbody");
  for (const index of downs) {
    const name = data.names[down][index];
    const row = element("tr", {}, element("th", { scope: "row", title: (data.notes[down] || {})[name] || name }, name));
    for (const other of acrosses) {
      const found = value(index, other);
      if (found === null) {
        row.append(element("td", { class: "none" }, "\u2013"));
        continue;
      }
      const own = name === data.names[across][other] && down !== "factor" && down !== "task" && across !== "factor" && across !== "task";
      const kind = `${found >= 0 ? "rise" : "fall"}${own ? " self" : ""}`;
      const text = deviation ? signed(found, 2) : number(found, 2);
      const note = `${name}, ${data.names[across][other]}: ${deviation ? signed(found, 4) : number(found, 4)} from ${count(counts.get(index * columns + other)[0])}`;
      row.append(element("td", { class: kind, style: `--a:${Math.min(1, Math.abs(found) / most) * 0.62}`, title: note }, text));
    }
    body.append(row);
  }
  const longest = Math.max(...acrosses.map((other) => data.names[across][other].length));
  const long = acrosses.length > 8 || longest > 18 || (acrosses.length > 4 && longest > 14);
  return element("div", { class: "scroll", tabindex: "0" }, element("table", { class: long ? "grid turned" : "grid" }, element("thead", {}, head), body));
};

const panels = [...document.querySelectorAll(".live")].map((panel) => [panel, [...panel.childNodes]]);
const drawPanels = (rows) => {
  for (const [panel, first] of panels) {
    const { kind, rows: down, cols: across, deviation } = panel.dataset;
    if (unfiltered()) panel.replaceChildren(...first);
    else if (!rows.length) panel.replaceChildren(element("p", { class: "quiet" }, "No score is left by these filters."));
    else panel.replaceChildren(kind === "levels" ? levelsTable(rows, down) : gridTable(rows, down, across, Boolean(deviation)));
  }
};
const allowed = (dimension, name) => {
  const index = dimension in place ? place[dimension].get(name) : undefined;
  return index === undefined || chosen[dimension].has(index);
};
const nameOf = (cell) => (cell.dataset.name === undefined ? cell.textContent.trim() : cell.dataset.name);
const hideRows = () => {
  for (const table of document.querySelectorAll("[data-names]")) {
    const dimensions = Object.entries(JSON.parse(table.dataset.names));
    for (const row of table.querySelectorAll("tbody tr"))
      row.classList.toggle("out", !dimensions.every(([index, name]) => allowed(name, nameOf(row.cells[Number(index)]))));
  }
  for (const table of document.querySelectorAll("table.grid[data-rows]")) {
    const heads = [...table.tHead.rows[0].cells].slice(1);
    const shown = heads.map((head) => allowed(table.dataset.cols, nameOf(head)));
    heads.forEach((head, index) => head.classList.toggle("out", !shown[index]));
    for (const row of table.tBodies[0].rows) {
      row.classList.toggle("out", !allowed(table.dataset.rows, nameOf(row.cells[0])));
      shown.forEach((show, index) => row.cells[index + 1].classList.toggle("out", !show));
    }
  }
};

const listeners = [];
const bar = document.querySelector(".filters");
const told = element("span", { class: "kept", role: "status" });
const total = data.rows.reduce((sum, row) => sum + row[5], 0);
const update = () => {
  const rows = keptRows();
  drawPanels(rows);
  hideRows();
  for (const listener of listeners) listener(rows);
  const kept = rows.reduce((sum, row) => sum + row[5], 0);
  told.textContent = unfiltered() ? count(total) : `${number(kept)} of ${count(total)}`;
};
const picker = (dimension) => {
  const names = data.names[dimension];
  const label = element("b", {}, "all");
  const made = element("details", { class: "pick" }, element("summary", {}, `${dimension}: `, label));
  const boxes = names.map((name, index) => {
    const box = element("input", { type: "checkbox" });
    box.checked = true;
    box.addEventListener("change", () => {
      if (box.checked) chosen[dimension].add(index);
      else chosen[dimension].delete(index);
      changed();
    });
    return box;
  });
  const changed = () => {
    label.textContent = isAll(dimension) ? "all" : chosen[dimension].size === 1 ? names[[...chosen[dimension]][0]] : `${chosen[dimension].size} of ${names.length}`;
    made.classList.toggle("some", !isAll(dimension));
    update();
  };
  const every = (checked) => () => {
    boxes.forEach((box, index) => {
      box.checked = checked;
      if (checked) chosen[dimension].add(index);
      else chosen[dimension].delete(index);
    });
    changed();
  };
  const [all, none] = ["all", "none"].map((text) => element("button", { type: "button" }, text));
  all.addEventListener("click", every(true));
  none.addEventListener("click", every(false));
  const lines = names.map((name, index) => element("label", { title: (data.notes[dimension] || {})[name] || name }, boxes[index], ` ${name}`));
  made.append(element("div", {}, all, none, ...lines));
  return [made, every(true)];
};
const resets = [];
for (const dimension of bar.dataset.dimensions.split(" ")) {
  if (data.names[dimension].length < 2) continue;
  const [made, reset] = picker(dimension);
  bar.append(made);
  resets.push(reset);
}
const choices = { all: "self scores: with", judge: "without self-judging", teacher: "without self-teaching", both: "without either" };
const choice = element("select", { "aria-label": "Self scores" }, ...Object.entries(choices).map(([value, text]) => element("option", { value }, text)));
choice.addEventListener("change", () => {
  selves = choice.value;
  update();
});
const reset = element("button", { type: "button" }, "reset");
reset.addEventListener("click", () => {
  selves = choice.value = "all";
  resets.forEach((one) => one());
});
// Where nothing is computed anew, leaving out self scores and counting would promise too much.
bar.append(...(document.querySelector(".live, #live-ranking") ? [choice, reset, told] : [reset]));
document.addEventListener("click", (event) => {
  for (const open of document.querySelectorAll(".pick[open]")) if (!open.contains(event.target)) open.open = false;
});
update();
