// The viewer of a run: filters and search over files of JSON, and keys that lead from item to item.
// Texts of others become text nodes alone. The state of a list stands behind the #, which browsers send to no server.
"use strict";
(() => {
  const up = document.getElementById("main").dataset.up;
  const ORDER = `coeval-order:${new URL(`${up}/`, location.href).pathname}`;
  const element = (tag, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };
  const typing = (event) => event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey;

  for (const box of document.querySelectorAll(".text, .scroll, .answers")) {
    // What does not scroll needs no stop of the Tab key.
    if (box.scrollHeight <= box.clientHeight && box.scrollWidth <= box.clientWidth) box.removeAttribute("tabindex");
  }

  const form = document.getElementById("filters");
  if (form) list(form);
  else if (document.getElementById("around")) item();

  // An item: its neighbours are those of the list that it was opened from.

  function item() {
    const key = location.pathname.replace(/^.*\/|\.html$/g, "");
    let order;
    try {
      order = JSON.parse(sessionStorage.getItem(ORDER));
    } catch {
      order = null;
    }
    const at = order ? order.keys.indexOf(key) : -1;
    if (at >= 0) {
      const nav = document.getElementById("around");
      document.getElementById("back").href = `${up}/items.html#${order.state}`;
      document.getElementById("place").textContent = `${(at + 1).toLocaleString("en-US")} of ${order.keys.length.toLocaleString("en-US")} of the list`;
      for (const [rel, name, step] of [["prev", "Previous", -1], ["next", "Next", 1]]) {
        const old = nav.querySelector(`[rel=${rel}]`);
        if (old) old.remove();
        const other = order.keys[at + step];
        if (!other) continue;
        const link = element("a", { rel, href: `${other}.html` }, `${name} `, element("kbd", {}, step < 0 ? "k" : "j"));
        if (step < 0) nav.prepend(link);
        else document.getElementById("back").after(link);
      }
    }
    const targets = { j: "#around [rel=next]", k: "#around [rel=prev]", l: "#back" };
    document.addEventListener("keydown", (event) => {
      const link = !typing(event) && targets[event.key] && document.querySelector(targets[event.key]);
      if (link) link.click();
    });
  }

  // The list.

  function list(form) {
    const rows = document.getElementById("list");
    const pager = document.getElementById("pager");
    const count = document.getElementById("count");
    const first = [rows, pager, count].map((node) => [...node.childNodes]);
    let run = null;
    let all = null;
    let turn = 0;
    let waiting = 0;

    const fetched = async (path) => {
      const response = await fetch(`data/${path}`);
      if (!response.ok) throw new Error(`${path}: ${response.status}`);
      return response.json();
    };

    async function load(now) {
      run ??= await fetched("run.json");
      if (all) return;
      const items = [];
      for (let part = 0; part * run.part < run.items; part++) {
        items.push(...(await fetched(`items-${part}.json`)));
        if (now === turn) count.textContent = `Reading ${items.length.toLocaleString("en-US")} of ${run.items.toLocaleString("en-US")} items …`;
      }
      all = items.map(([key, task, teacher, attributes, prompt, cells, verdicts], number) => (
        { number, key, task, teacher, attributes, prompt, cells, verdicts }));
    }

    const state = () => new URLSearchParams(location.hash.slice(1));
    const code = (kind, name) => (name === null ? -1 : run.names[kind].indexOf(name));

    // Scores that count by student, and the largest distance among them.
    function counted(row, student, judge) {
      const scores = new Map();
      let gap = 0;
      for (let at = 0; at < row.cells.length; at += 4) {
        const one = row.cells[at], other = row.cells[at + 1], score = row.cells[at + 2], far = row.cells[at + 3];
        if ((student >= 0 && one !== student) || (judge >= 0 && other !== judge)) continue;
        if (!scores.has(one)) scores.set(one, []);
        scores.get(one).push([other, score]);
        gap = Math.max(gap, far);
      }
      return { scores, gap };
    }
    // Verdicts that count, and those of them that flip with the order.
    function compared(row, student, judge) {
      let [verdicts, flips] = [0, 0];
      for (let at = 0; at < row.verdicts.length; at += 4) {
        const [one, other, by, flip] = row.verdicts.slice(at, at + 4);
        if ((student >= 0 && one !== student && other !== student) || (judge >= 0 && by !== judge)) continue;
        verdicts++;
        flips += flip;
      }
      return { verdicts, flips };
    }
    const mean = (pairs) => pairs.reduce((sum, [, score]) => sum + score, 0) / pairs.length;

    function chosen(query) {
      const [task, teacher, attribute, student, judge] = ["task", "teacher", "attribute", "student", "judge"].map((kind) => code(kind, query.get(kind)));
      const apart = query.get("apart");
      const narrow = query.has("student") || query.has("judge");
      const lines = [];
      for (const row of all) {
        if (query.has("task") && row.task !== task) continue;
        if (query.has("teacher") && row.teacher !== teacher) continue;
        if (query.has("attribute") && !row.attributes.includes(attribute)) continue;
        const who = [query.has("student") && student < 0 ? Infinity : student, query.has("judge") && judge < 0 ? Infinity : judge];
        const { scores, gap } = counted(row, ...who);
        const { verdicts, flips } = compared(row, ...who);
        if (narrow && !scores.size && !verdicts) continue;
        if (apart === "flip" ? !flips : gap < Number(apart || 0)) continue;
        const means = [...scores.values()].map(mean);
        lines.push({ row, scores, gap, verdicts, flips, low: Math.min(...means), high: Math.max(...means) });
      }
      const sort = query.get("sort");
      const by = { low: (one) => one.low, high: (one) => -one.high, apart: (one) => -one.gap }[sort];
      if (by) lines.sort((one, other) => by(one) - by(other) || one.row.number - other.row.number);
      return lines;
    }

    // Search reads the texts of the items that the filters leave, a file at a time.
    async function search(lines, words, now) {
      const files = new Map();
      for (const line of lines) {
        const file = Math.floor(line.row.number / run.texts);
        if (!files.has(file)) files.set(file, []);
        files.get(file).push(line);
      }
      const hits = new Set();
      let done = 0;
      for (const [file, within] of files) {
        const texts = await fetched(`texts-${file}.json`);
        if (now !== turn) return null;
        for (const line of within) {
          line.matches = texts[line.row.number % run.texts].map((entry) => match(entry, words)).filter(Boolean);
          if (line.matches.length) hits.add(line);
        }
        count.textContent = `Searching ${(++done).toLocaleString("en-US")} of ${files.size.toLocaleString("en-US")} files …`;
      }
      return lines.filter((line) => hits.has(line));
    }

    function match([anchor, label, text], words) {
      const at = text.toLowerCase().indexOf(words);
      return at < 0 ? null : { anchor, label, before: text.slice(Math.max(0, at - 60), at), hit: text.slice(at, at + words.length), after: text.slice(at + words.length, at + words.length + 90) };
    }

    async function update() {
      const now = ++turn;
      const query = state();
      fill(query);
      const page = Math.max(1, Number(query.get("page")) || 1);
      const filters = [...query.keys()].filter((name) => name !== "page");
      if (!filters.length && page === 1) {
        [rows, pager, count].forEach((node, place) => node.replaceChildren(...first[place]));
        keep(null);
        return;
      }
      const words = (query.get("search") || "").trim().toLowerCase();
      if (words) count.textContent = "Searching …";
      try {
        await load(now);
        if (now !== turn) return;
        let lines = chosen(query);
        if (words) lines = await search(lines, words, now);
        if (now === turn && lines) show(lines, query, page);
      } catch (error) {
        if (now === turn) count.textContent = `The scores cannot be read (${error.message}). Open this folder through a web server: coeval view, or python -m http.server.`;
      }
    }

    function show(lines, query, page) {
      const pages = Math.max(1, Math.ceil(lines.length / run.listed));
      const at = (Math.min(page, pages) - 1) * run.listed;
      const part = lines.slice(at, at + run.listed);
      rows.replaceChildren(...part.map((line) => entry(line, query)));
      const number = (value) => value.toLocaleString("en-US");
      count.textContent = lines.length ? `Items ${number(at + 1)} to ${number(at + part.length)} of ${number(lines.length)} that fit` : "No item fits. Show all, or choose less.";
      const link = (text, rel, to) => {
        const other = new URLSearchParams(query);
        other.set("page", to);
        return element("a", { rel, href: `#${other}` }, text);
      };
      const current = Math.min(page, pages);
      pager.replaceChildren(
        ...(current > 1 ? [link("Previous", "prev", current - 1)] : []),
        element("span", {}, `page ${number(current)} of ${number(pages)}`),
        ...(current < pages ? [link("Next", "next", current + 1)] : []),
      );
      keep({ state: String(query), keys: lines.map((line) => line.row.key) });
    }

    function keep(order) {
      try {
        if (order) sessionStorage.setItem(ORDER, JSON.stringify(order));
        else sessionStorage.removeItem(ORDER);
      } catch {
        // A browser without storage leads on in the order of the run.
      }
    }

    const grade = (row, student, label, score) =>
      element("a", { className: `grade s${Math.round(score / 100)}`, href: `item/${row.key}.html#${run.anchors[student]}` }, `${label} `, element("b", {}, (score / 1000).toFixed(2)));

    function entry({ row, scores, gap, verdicts, flips, matches }, query) {
      const names = run.names;
      const facts = [names.task[row.task], names.teacher[row.teacher], ...row.attributes.map((attribute) => names.attribute[attribute])];
      if (gap) facts.push(`judges up to ${(gap / 1000).toFixed(2)} apart`);
      if (verdicts) facts.push(`${flips} of ${verdicts} verdicts flip`);
      const grades = element("p", { className: "grades" });
      const students = query.has("student") ? [...scores.keys()] : run.shown.filter((student) => scores.has(student));
      for (const student of students) {
        grades.append(grade(row, student, names.student[student], mean(scores.get(student))));
        if (query.has("student") && !query.has("judge")) for (const [judge, score] of scores.get(student)) grades.append(grade(row, student, names.judge[judge], score));
      }
      const prompt = element("a", { className: "prompt", href: `item/${row.key}.html`, dir: "auto" }, row.prompt || row.key);
      const found = (matches || []).slice(0, 3).map((one) =>
        element("span", { className: "match", dir: "auto" }, element("a", { href: `item/${row.key}.html#${one.anchor}` }, one.label), `: … ${one.before}`, element("mark", {}, one.hit), `${one.after} …`));
      return element("li", {}, prompt, ...found, element("p", { className: "quiet" }, facts.join(" · ")), grades);
    }

    function fill(query) {
      for (const field of form.elements) {
        if (!field.name || field === document.activeElement && field.type === "search") continue;
        field.value = query.get(field.name) ?? "";
        if (field.value !== (query.get(field.name) ?? "")) field.value = "";
      }
    }

    function apply() {
      clearTimeout(waiting);
      const query = new URLSearchParams();
      for (const field of form.elements) if (field.name && field.value.trim()) query.set(field.name, field.value.trim());
      const hash = String(query);
      if (hash === location.hash.slice(1)) return;
      history.replaceState(null, "", hash ? `#${hash}` : location.pathname);
      update();
    }

    form.addEventListener("submit", (event) => { event.preventDefault(); apply(); });
    form.addEventListener("change", apply);
    form.addEventListener("input", (event) => {
      if (event.target.type !== "search") return; // a choice is one change
      clearTimeout(waiting);
      waiting = setTimeout(apply, 200);
    });
    form.addEventListener("reset", () => setTimeout(apply));
    addEventListener("hashchange", update);
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !typing(event)) {
        event.preventDefault();
        document.getElementById("f-search").focus();
      }
    });
    form.hidden = false;
    if (location.hash.length > 1) update();
  }
})();
