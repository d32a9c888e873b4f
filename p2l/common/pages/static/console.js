// The live parts of the router's console: events replace what they name, and add points to the charts.
"use strict";
(() => {
  const LENGTH = 300;
  const holder = document.querySelector("[data-points]");
  const points = JSON.parse(holder.dataset.points);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const clock = (seconds) => new Date(1000 * seconds).toTimeString().slice(0, 8);

  function draw(element) {
    const names = element.dataset.series.split(",").map((pair) => pair.split(":"));
    const colours = [style("--accent"), style("--other"), style("--bad")];
    const axis = { stroke: style("--quiet"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const columns = () => [points.map((point) => point.time), ...names.map(([name]) => points.map((point) => point[name]))];
    const chart = new uPlot(
      {
        width: element.clientWidth,
        height: 180,
        legend: { live: false },
        cursor: { drag: { x: false, y: false } },
        scales: { y: { range: (_, __, high) => [0, high > 0 ? high * 1.1 : 1] } },
        axes: [{ ...axis, values: (_, ticks) => ticks.map(clock), space: 70 }, { ...axis, size: 48 }],
        series: [{}, ...names.map(([, label], place) => ({ label, stroke: colours[place], width: 2, points: { show: true, size: 4 }, spanGaps: false }))],
      },
      columns(),
      element,
    );
    addEventListener("resize", () => chart.setSize({ width: element.clientWidth, height: 180 }));
    return () => chart.setData(columns());
  }

  let updates = [];
  function drawAll() {
    const charts = [...document.querySelectorAll(".chart")];
    for (const chart of charts) chart.replaceChildren();
    updates = charts.map(draw);
  }

  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  const events = new EventSource("/console/events");
  for (const part of document.querySelectorAll("[data-part]")) {
    events.addEventListener(part.dataset.part, ({ data }) => {
      // What somebody reads or works with stays as it is.
      if (part.contains(document.activeElement) || part.querySelector("details[open]")) return;
      part.innerHTML = data;
    });
  }
  events.addEventListener("point", ({ data }) => {
    const point = JSON.parse(data);
    if (!point || (points.length && points[points.length - 1].time >= point.time)) return;
    points.push(point);
    points.splice(0, Math.max(0, points.length - LENGTH));
    for (const update of updates) update();
  });
  addEventListener("pagehide", () => events.close());
})();
