// What a page does beside htmx: changes of the server, charts, times in the reader's zone, and a banner when the
// dashboard is gone.
"use strict";

const RETRY_MS = 2000;
const WHOLE = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((first) => first * 10 ** power));
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function lineColor(place) { // Okabe and Ito's colours, which colour-blind readers can tell apart
  return ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"][place % 6];
}

function draw(figure) {
  const chart = JSON.parse(figure.dataset.chart);
  const axis = { stroke: color("--text"), grid: { stroke: color("--line"), width: 1 } };
  const series = chart.series.map((each, place) => ({
    label: each.label,
    stroke: lineColor(place),
    dash: DASHES[place % DASHES.length],
    width: 2,
    paths: { steps: uPlot.paths.stepped({ align: 1 }), line: uPlot.paths.linear(), dots: () => null }[each.style],
    points: { show: each.style !== "steps" && each.values.filter((value) => value !== null).length < 100, size: 7 },
  }));
  const options = {
    width: Math.max(280, figure.clientWidth),
    height: 260,
    scales: { x: { time: false }, y: chart.isLog ? { distr: 3, range: (_, least, most) => [least / 1.2, most * 1.2] } : { range: (_, least, most) => [0, most * 1.1] } },
    axes: [{ ...axis, label: chart.xLabel, incrs: WHOLE }, { ...axis, label: chart.yLabel }],
    series: [{ label: chart.xLabel }, ...series],
  };
  figure.querySelectorAll(".uplot").forEach((old) => old.remove());
  new uPlot(options, [chart.x, ...chart.series.map((each) => each.values)], figure);
}

function ago(span) { // as the page itself says it
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([size]) => Math.abs(span) >= size) || [1, "s"];
  const text = `${Math.trunc(Math.abs(span) / size)} ${unit}`;
  return span < 0 ? `in ${text}` : `${text} ago`;
}

function show() {
  document.querySelectorAll("time[datetime]").forEach((each) => {
    const seconds = Number(each.getAttribute("datetime"));
    if (!Number.isFinite(seconds)) return;
    each.title = new Date(1000 * seconds).toLocaleString();
    each.textContent = ago(Date.now() / 1000 - seconds);
  });
  document.querySelectorAll("figure.chart").forEach(draw);
}

function lost(isLost) {
  const banner = document.getElementById("lost");
  if (banner) banner.hidden = !isLost;
}

let changes = null;
let isAsking = false; // from a request for the page until its answer stands
let isBehind = false; // a change came meanwhile

// htmx queues an event of an element that waits for an answer, and loses it with the element, which the answer replaces.
function refresh() {
  isBehind = isAsking;
  if (!isAsking) htmx.trigger("#main", "server-change");
}

// A browser opens six connections to a site over HTTP/1.1, and each stream holds one: a hidden tab gives up its own.
// The first event of a new stream is the present state, so the tab is up to date when it is looked at again.
function follow() {
  const isWanted = !document.hidden && document.querySelector("#main[hx-get]") !== null;
  if (isWanted && changes === null) {
    changes = new EventSource("/events");
    changes.onopen = () => lost(false);
    changes.onerror = failed;
    changes.addEventListener("change", refresh);
  } else if (!isWanted && changes !== null) {
    changes.close();
    changes = null;
  }
}

function failed() { // a browser connects again by itself, but not after an answer that is an error
  lost(true);
  if (changes !== null && changes.readyState === EventSource.CLOSED) {
    changes = null;
    setTimeout(follow, RETRY_MS);
  }
}

const opened = new Set();

document.addEventListener("toggle", (event) => { // what the reader unfolded stays so when the page is shown anew
  if (event.target.id) opened[event.target.open ? "add" : "delete"](event.target.id);
}, true);

function settle() {
  opened.forEach((id) => { const found = document.getElementById(id); if (found) found.open = true; });
  show();
  follow();
  isAsking = false;
  if (isBehind) refresh();
}

document.addEventListener("htmx:beforeRequest", () => { isAsking = true; });
document.addEventListener("htmx:afterRequest", (event) => { isAsking = event.detail.successful; });
document.addEventListener("DOMContentLoaded", settle);
document.addEventListener("htmx:afterSettle", settle);
document.addEventListener("visibilitychange", follow);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
window.addEventListener("resize", () => document.querySelectorAll("figure.chart").forEach(draw));
