// Thresholds on the measures of teachers and judges; students are ranked by the scores that are left.
const byId = (id) => document.getElementById(id);
const median = (values) => {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return !sorted.length ? 0 : sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};
const groups = { teacher: data.teachers, judge: data.judges };
const limits = { ...data.thresholds };
const measure = (role) => Number(byId(`${role}-measure`).value);
// A judge without peers (of labels, of a metric) cannot be measured, and counts.
const unmeasured = (role, name) => !groups[role][name] || groups[role][name].every((value) => value === null);
// Rounding of JSON and of medians must not drop the one in the middle.
const keeps = (role, name) => {
  if (unmeasured(role, name)) return true;
  const value = groups[role][name][measure(role)];
  return value !== null && value >= limits[role] - 1e-12;
};
const setRange = (role) => {
  const values = Object.values(groups[role]).map((one) => one[measure(role)]).filter((value) => value !== null);
  const slider = byId(`${role}-threshold`);
  slider.min = values.length ? Math.min(...values) : 0;
  slider.max = values.length ? Math.max(...values) : 1;
  slider.value = limits[role];
  slider.disabled = slider.min === slider.max;
};
const drawChips = (role) => {
  const at = measure(role);
  const sorted = Object.entries(groups[role]).sort(([, a], [, b]) => (b[at] ?? -2) - (a[at] ?? -2));
  byId(`${role}-chips`).replaceChildren(...sorted.map(([name, values]) => {
    const value = unmeasured(role, name) ? "no peers" : values[at] === null ? "\u2013" : number(values[at], 3);
    return element("li", { class: keeps(role, name) ? "on" : "off", title: `${name}: ${value}` }, `${name} ${value}`);
  }));
  byId(`${role}-value`).textContent = number(limits[role], 3);
};
const standings = (rows) => {
  const counts = sums(rows, (row) => row[2]);
  const weighed = weighedRows(rows);
  const students = sums(weighed, (row) => row[2]);
  const tasks = sums(weighed, (row) => row[2] * data.names.task.length + row[0]);
  const made = [...students].filter(([, sum]) => sum[0]).map(([student, sum]) => {
    const parts = data.names.task.map((_, task) => tasks.get(student * data.names.task.length + task)).filter((one) => one && one[0]);
    const macro = parts.reduce((total, one) => total + mean(one), 0) / parts.length;
    return { name: data.names.student[student], mean: mean(sum), macro, scores: counts.get(student)[0] };
  });
  const by = byId("student-mean").value === "tasks" ? "macro" : "mean";
  return made.sort((a, b) => b[by] - a[by]);
};
const drawRanking = (rows) => {
  const kept = rows.filter((row) => keeps("teacher", named(row, "teacher")) && keeps("judge", named(row, "judge")));
  const scores = kept.reduce((sum, row) => sum + row[5], 0);
  byId("live-count").textContent = `${number(scores)} of ${count(total)} count.`;
  const found = standings(kept);
  if (!found.length) return byId("live-ranking").replaceChildren(element("p", { class: "problem" }, "No score is left: lower a threshold or reset the filters."));
  const body = element("tbody");
  found.forEach((one, index) => {
    const before = data.ranks[one.name];
    const moved = before === undefined ? 0 : before - (index + 1);
    const bar = element("span", { class: "stack", "aria-hidden": "true" }, element("i", { class: "high", style: `width:${100 * one.mean}%` }));
    const change = moved > 0 ? `\u2191 ${moved}` : moved < 0 ? `\u2193 ${-moved}` : "";
    body.append(element("tr", {}, element("td", { class: "number" }, String(index + 1)), element("td", { title: one.name }, one.name), element("td", {}, bar),
      ...[number(one.mean, 3), number(one.macro, 3), number(one.scores), before === undefined ? "\u2013" : String(before)].map((text) => element("td", { class: "number" }, text)),
      element("td", { class: moved > 0 ? "good" : "bad" }, change)));
  });
  const heads = ["rank", "student", "from 0 to 1", "mean", "mean over tasks", "scores", "rank on all", "moved"];
  const head = element("tr", {}, ...heads.map((text, index) => element("th", [0, 3, 4, 5, 6].includes(index) ? { class: "number" } : {}, text)));
  return byId("live-ranking").replaceChildren(element("div", { class: "scroll", tabindex: "0" }, element("table", {}, element("thead", {}, head), body)));
};
const redraw = () => {
  Object.keys(groups).forEach(drawChips);
  drawRanking(keptRows());
};
for (const role of Object.keys(groups)) {
  byId(`${role}-measure`).addEventListener("change", () => {
    limits[role] = median(Object.values(groups[role]).map((one) => one[measure(role)]));
    setRange(role);
    redraw();
  });
  byId(`${role}-threshold`).addEventListener("input", () => {
    limits[role] = Number(byId(`${role}-threshold`).value);
    redraw();
  });
  setRange(role);
}
byId("student-mean").addEventListener("change", redraw);
listeners.push(redraw);
redraw();
