"use strict";
// Many nodes: a map coloured by decision, who refuses, the federation.

let nodes = [];
let raised = [];
let readies = [];
let pointed = -1;
let trend = [];
let cell = { size: 20, columns: 1 };
const MOST = 12;

function layout() {
  const canvas = $("map");
  const width = canvas.clientWidth;
  const count = Math.max(nodes.length, 1);
  const size = Math.max(7, Math.min(44, Math.floor(Math.sqrt((width * Math.min(360, width)) / count))));
  const columns = Math.max(1, Math.floor(width / size));
  cell = { size, columns };
  canvas.style.setProperty("height", `${Math.ceil(count / columns) * size}px`);
}

function mix(from, to, share) {
  const read = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const a = read(from), b = read(to);
  return `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * share)).join(",")})`;
}

const drawMap = drawer(() => {
  layout();
  const { pen } = fit($("map"));
  const ok = colour("--ok"), no = colour("--no"), stale = colour("--stale"), card = colour("--card");
  const gap = cell.size > 10 ? 2 : 1;
  for (let i = 0; i < nodes.length; i++) {
    const heat = Math.min(1, (readies[i] ?? 0) / 30);
    pen.fillStyle = nodes[i].stale ? stale : raised[i] ? mix(no, card, 0.25 * (1 - heat)) : mix(card, ok, 0.35 + 0.65 * heat);
    const x = (i % cell.columns) * cell.size, y = Math.floor(i / cell.columns) * cell.size;
    pen.fillRect(x, y, cell.size - gap, cell.size - gap);
    if (i === pointed) {
      pen.strokeStyle = colour("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(x + 1, y + 1, cell.size - gap - 2, cell.size - gap - 2);
    }
  }
});

const drawTrend = drawer(() => {
  const to = trend.length ? trend[trend.length - 1][0] : Date.now() / 1000;
  drawChart($("trend"), {
    lines: [{ points: trend.map(([t, share]) => [t, 100 * share]), colour: colour("--no") },
            { points: trend.map(([t, , value]) => [t, value]), colour: colour("--accent") }],
    from: to - 300, to, floor: 0, unit: " %",
  });
  const last = trend.length ? trend[trend.length - 1][1] : null;
  $("trend").setAttribute("aria-label", `Share of nodes refusing over time, now ${percent(last, 1)}; and mean CPU Ready.`);
});

function point(index) {
  pointed = index >= 0 && index < nodes.length ? index : -1;
  if (pointed < 0) { put("pointed", "Point at a node, or focus the map and use the arrow keys."); drawMap(); return; }
  const node = nodes[pointed];
  put("pointed", `${node.node}: ${raised[pointed] ? "refusing" : "accepting"}, CPU Ready ${ready(readies[pointed] ?? node.cpu_ready_percent)}. ${node.reason}`);
  drawMap();
}

function watchMap() {
  const canvas = $("map");
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / cell.size);
    return column < cell.columns ? Math.floor((event.clientY - box.top) / cell.size) * cell.columns + column : -1;
  };
  canvas.addEventListener("pointermove", (event) => point(at(event)));
  canvas.addEventListener("click", (event) => open(at(event)));
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: cell.columns, ArrowUp: -cell.columns };
    if (event.key === "Enter") open(pointed);
    if (!(event.key in steps)) return;
    event.preventDefault();
    point(Math.min(nodes.length - 1, Math.max(0, pointed + steps[event.key])));
  });
}

function open(index) {
  if (index >= 0 && index < nodes.length) location.assign(`/?node=${encodeURIComponent(nodes[index].node)}`);
}

function showCounts(count, refusing, mean, downtime) {
  const share = count ? refusing / count : 0;
  document.querySelector(".hero").className = `card hero ${share > 0.5 ? "refuse" : "accept"}`;
  put("word", refusing === 0 ? "All nodes accept" : `${count - refusing} of ${count} accept`);
  put("reason", refusing === 0 ? "No node expects contention." : `${refusing} expect contention and send jobs elsewhere.`);
  put("count", String(count));
  put("refusing", percent(share, 1));
  put("ready", ready(mean));
  put("downtime", percent(downtime, 1));
}

function showRefusers() {
  const list = nodes.map((node, i) => [node, readies[i] ?? node.cpu_ready_percent, raised[i]]).filter(([, , r]) => r);
  list.sort((a, b) => (b[1] ?? 0) - (a[1] ?? 0));
  const body = $("refusers");
  body.replaceChildren();
  for (const [node, value] of list.slice(0, MOST)) {
    const row = make("tr");
    const name = make("td");
    const link = make("a", node.node);
    link.href = `/?node=${encodeURIComponent(node.node)}`;
    name.append(link);
    row.append(name, make("td", ready(value)), make("td", node.reason));
    body.append(row);
  }
  put("more", list.length > MOST ? `and ${list.length - MOST} more` : list.length ? "" : "Nobody.");
}

function onEvent(event) {
  if (event.nodes === undefined) { onOne(event); return; }
  if (event.raised_map && event.raised_map.length === nodes.length) {
    raised = Array.from(event.raised_map, (c) => c === "1");
    readies = event.ready_map;
  }
  showCounts(event.nodes, event.raised, event.cpu_ready_percent, event.downtime);
  trend.push([event.time, event.nodes ? event.raised / event.nodes : 0, event.cpu_ready_percent]);
  if (trend.length > 600) trend = trend.slice(-600);
  drawMap();
  drawTrend();
}

function onOne(event) {
  raised = [event.raised];
  readies = [event.cpu_ready_percent];
  showCounts(1, event.raised ? 1 : 0, event.cpu_ready_percent, event.downtime);
  trend.push([event.time, event.raised ? 1 : 0, event.cpu_ready_percent]);
  drawMap();
  drawTrend();
}

function branch(name, value) {
  const item = make("li");
  item.append(make("strong", name));
  const plain = [], inner = [];
  for (const [key, entry] of Object.entries(value)) {
    if (entry !== null && typeof entry === "object") inner.push([key, entry]);
    else if (entry !== "" && entry !== null) plain.push(`${key.replaceAll("_", " ")} ${entry}`);
  }
  if (plain.length) item.append(` ${plain.join(", ")}`);
  if (inner.length) {
    const list = make("ul");
    for (const [key, entry] of inner) list.append(branch(key, entry));
    item.append(list);
  }
  return item;
}

function showFederation(federation) {
  const box = $("tree");
  box.replaceChildren();
  if (!federation) { box.append(make("p", "This agent stands alone.", "quiet")); return; }
  const list = make("ul", undefined, "tree");
  list.append(branch(federation.embedded ? "in this process" : "on the bus", { ...federation, outliers: null }));
  box.append(list);
  const body = $("outliers");
  body.replaceChildren();
  for (const [name, distance] of federation.outliers || []) {
    const row = make("tr");
    row.append(make("td", name), make("td", number(distance, 3)));
    body.append(row);
  }
  if (!body.childElementCount) {
    const row = make("tr");
    const only = make("td", "No global view yet.");
    only.colSpan = 2;
    row.append(only);
    body.append(row);
  }
}

async function refresh() {
  try {
    const [found, status] = await Promise.all([ask("/v1/nodes"), ask("/v1/status")]);
    nodes = found.nodes;
    raised = nodes.map((node) => node.raised);
    readies = nodes.map((node) => node.cpu_ready_percent);
    put("version", status.version);
    $("map").setAttribute("aria-label", `${nodes.length} nodes, ${raised.filter(Boolean).length} refusing`);
    const known = readies.filter((value) => value != null);
    const mean = known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
    showCounts(nodes.length, raised.filter(Boolean).length, mean, status.tally.downtime);
    showRefusers();
    showFederation((status.followers || {}).federation);
    drawMap();
  } catch (error) {
    put("link", "no answer");
    $("link").className = "pill lost";
  }
}

async function start() {
  watchMap();
  await refresh();
  performance.mark("fleet-drawn");
  follow(onEvent);
  setInterval(refresh, 5000);
  new ResizeObserver(() => { drawMap(); drawTrend(); }).observe(document.querySelector("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawMap(); drawTrend(); });
}

start();
