"use strict";
// Many nodes: a map coloured by decision, who refuses, how it went. The federation is in federation.js.

let nodes = [];
let states = [];
let readies = [];
let pointed = -1;
let trend = [];
let cell = { size: 20, columns: 1 };
let interval = 1;
let enforced = true; // whether a gate carries refusals out
const wall = matchMedia("(min-width: 1700px)"); // where everything is to be seen at once
const most = () => (wall.matches ? 6 : 8);
const HOT = 30; // CPU Ready, in percent, from which a cell is as dark as it gets
const SPAN = 300;

function layout() {
  const canvas = $("map");
  const width = canvas.clientWidth, em = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const number = Math.max(nodes.length, 1);
  const size = Math.max(6, Math.min(4 * em, Math.floor(Math.sqrt((width * Math.min(20 * em, width)) / number))));
  const columns = Math.max(1, Math.floor(width / size));
  cell = { size, columns };
  canvas.style.setProperty("height", `${Math.ceil(number / columns) * size}px`);
}

// Colours between two, made once.
function shades(from, to, steps = 8) {
  const read = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const a = read(from), b = read(to);
  return Array.from({ length: steps + 1 }, (_, s) => `rgb(${a.map((v, i) => Math.round(v + ((b[i] - v) * s) / steps)).join(",")})`);
}

const drawMap = drawer(() => {
  layout();
  const { pen } = fit($("map"));
  const accepting = shades(colour("--cool"), colour("--warm"));
  const gap = cell.size > 10 ? 2 : 1;
  for (let i = 0; i < nodes.length; i++) {
    const heat = Math.round(8 * Math.min(1, (readies[i] ?? 0) / HOT));
    const state = nodes[i].stale ? "unknown" : STATES[states[i]].kind;
    const x = (i % cell.columns) * cell.size, y = Math.floor(i / cell.columns) * cell.size;
    drawCell(pen, x, y, cell.size - gap, state, state === "accept" ? accepting[heat] : undefined);
  }
  if (nodes.length && !performance.getEntriesByName("fleet-drawn").length) performance.mark("fleet-drawn");
  if (pointed >= 0) {
    const x = (pointed % cell.columns) * cell.size, y = Math.floor(pointed / cell.columns) * cell.size;
    pen.strokeStyle = colour("--ink");
    pen.lineWidth = 2;
    pen.strokeRect(x + 1, y + 1, cell.size - gap - 2, cell.size - gap - 2);
  }
});

const trendChart = new Chart("trend", (time) => {
  const found = nearest(trend, time);
  const held = found && found.held ? `, ${percent(found.held, 1)} contended and held open` : "";
  return found && [found.time, `${moment(found.time, SPAN)}  ${percent(found.share, 1)} of the nodes refusing${held}, mean CPU Ready ${ready(found.ready)}`];
});

const drawTrend = drawer(() => {
  const to = trend.length ? trend[trend.length - 1].time : Date.now() / 1000;
  const from = Math.max(to - SPAN, Math.min(trend.length ? trend[0].time : to, to - 60));
  trendChart.show({
    lanes: [{ floor: 0, unit: " %", lines: [
      { points: trend.map((one) => [one.time, 100 * one.share]), colour: colour("--no") },
      { points: trend.map((one) => [one.time, 100 * one.held]), colour: colour("--hold") },
      { points: trend.map((one) => [one.time, one.ready]), colour: colour("--accent") }] }],
    from, to, gap: 3 * interval + 2,
  });
  const last = trend.length ? trend[trend.length - 1].share : null;
  $("trend").setAttribute("aria-label", `Nodes refusing over time, now ${percent(last, 1)}; and mean CPU Ready. Arrow keys read single moments.`);
});

function point(index) {
  pointed = index >= 0 && index < nodes.length ? index : -1;
  tellPointed();
  drawMap();
}

function tellPointed() {
  if (pointed < 0) { put("pointed", "Point at a node, or focus the map and use the arrow keys; Enter opens it."); return; }
  const node = nodes[pointed];
  const state = node.stale ? "silent" : states[pointed];
  put("pointed", `${node.node}: ${state}${node.held_by && state === "contended" ? `, held open by ${node.held_by}` : ""}, CPU Ready ${ready(readies[pointed])}. ${node.reason}`);
}

function watchMap() {
  const canvas = $("map");
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / cell.size);
    return column < cell.columns ? Math.floor((event.clientY - box.top) / cell.size) * cell.columns + column : -1;
  };
  canvas.addEventListener("pointermove", (event) => point(at(event)));
  canvas.addEventListener("pointerleave", () => point(-1));
  canvas.addEventListener("click", (event) => open(at(event)));
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: cell.columns, ArrowUp: -cell.columns, Home: -nodes.length, End: nodes.length };
    if (event.key === "Enter") open(pointed);
    if (!(event.key in steps)) return;
    event.preventDefault();
    point(Math.min(nodes.length - 1, Math.max(0, pointed + steps[event.key])));
  });
}

function open(index) {
  if (index >= 0 && index < nodes.length) location.assign(nodeLink(nodes[index].node).href);
}

// The head: green only where no node expects contention. `found` counts the nodes in each state.
function showCounts(number, found, mean, downtime) {
  const silent = nodes.filter((node) => node.stale).length;
  const { refusing, contended } = found;
  const state = refusing > number / 2 ? "refusing" : contended && !refusing ? "contended" : refusing ? null : "accepting";
  if (silent === number) showLook("silent", null);
  else showLook(state ? STATES[state].kind : "mixed", state ?? "contended");
  const lone = { accepting: "The node accepts", contended: "The node is contended", refusing: "The node refuses" };
  put("word", number && silent === number ? `${number === 1 ? "The node is" : "All nodes are"} silent` : number === 1 ? lone[state] : refusing + contended === 0 ? "All nodes accept"
    : refusing === 0 ? `All are open, ${count(contended)} of ${count(number)} contended` : `${count(number - refusing)} of ${count(number)} are open`);
  put("reason", [...expecting(found, silent), ...(silent ? [`${some(silent, "node is", "nodes are")} silent: their telemetry is too old to decide on.`] : [])].join(" "));
  put("count", String(number));
  put("refusing", percent(number ? refusing / number : 0, 1));
  put("contended", percent(number ? contended / number : 0, 1));
  put("ready", ready(mean));
  put("downtime", percent(downtime, 1));
  document.title = `${count(number - refusing)}/${count(number)} open · Pronto`;
}

function expecting({ accepting, refusing, contended }, silent) {
  if (!refusing && !contended) return accepting > silent ? ["No node expects contention."] : [];
  const said = [];
  if (refusing) said.push(`${some(refusing, "node")} ${refusing === 1 ? "refuses" : "refuse"} jobs.${enforced ? "" : " Nothing enforces it: it is up to who asks."}`);
  if (contended) said.push(`${some(contended, "node")} ${contended === 1 ? "expects" : "expect"} contention and ${contended === 1 ? "is" : "are"} held open.`);
  return said;
}

function showLost(seconds) {
  showLook("silent", null);
  put("word", "No answer");
  put("reason", `The agent has not been heard for ${lasting(seconds)}; what is shown below is from before.`);
  document.title = "? Pronto";
}

// A node without telemetry answers as it is set to, whatever its signal said last.
function counts() {
  const found = { accepting: 0, contended: 0, refusing: 0 };
  nodes.forEach((node, i) => { found[node.stale ? node.state : states[i]]++; });
  return found;
}

function showRefusers() {
  const list = nodes.map((node, i) => [node, readies[i] ?? node.cpu_ready_percent, states[i]]).filter(([node, , state]) => state !== "accepting" && !node.stale);
  list.sort((a, b) => (b[2] === "refusing") - (a[2] === "refusing") || (b[1] ?? 0) - (a[1] ?? 0));
  refill($("refusers"), list.slice(0, most()).map(([node, value, state]) => {
    const row = make("tr"), name = make("td");
    // Its words and its chance of a moment ago, when it was in another state, are not why it is in this one.
    const held = state === "contended" && node.held_by && !node.reason.includes(node.held_by) ? `; held open by ${node.held_by}` : "";
    name.append(make("i", undefined, `state ${STATES[state].kind}`), nodeLink(node.node), make("span", node.state === state ? `${state}: ${node.reason}${held}` : `${state} just now`, "reason"));
    row.append(name, make("td", percent(node.state === state ? node.probability : null)), make("td", ready(value)));
    return row;
  }));
  $("refusers").parentElement.classList.toggle("many", list.length > 5);
  put("more", list.length > most() ? `and ${count(list.length - most())} more, with less CPU Ready` : list.length ? "" : "Nobody.");
}

// A fleet's event carries all nodes at a glance, one node's only itself.
const glance = (event) => event.nodes !== undefined ? event
  : { ...event, nodes: 1, states: { accepting: 0, contended: 0, refusing: 0, [event.state]: 1 }, state_map: event.state[0], ready_map: [event.cpu_ready_percent] };

function remember(event) {
  const share = (state) => (event.nodes ? event.states[state] / event.nodes : 0);
  trend.push({ time: event.time, share: share("refusing"), held: share("contended"), ready: event.cpu_ready_percent });
  if (trend[0].time < event.time - 1.2 * SPAN) trend = trend.filter((one) => one.time >= event.time - SPAN);
}

function onEvent(event) {
  const seen = glance(event);
  if (seen.state_map && seen.state_map.length === nodes.length) {
    const turned = seen.state_map !== states.map((one) => one[0]).join("");
    states = Array.from(seen.state_map, (letter) => LETTERS[letter]);
    readies = seen.ready_map;
    if (turned) showRefusers();
  }
  const found = states.length === seen.nodes ? counts() : seen.states;
  showCounts(seen.nodes, found, seen.cpu_ready_percent, seen.downtime);
  remember({ ...seen, states: found });
  drawMap();
  drawTrend();
}

async function refresh() {
  try {
    const [found, status] = await Promise.all([ask("/v1/nodes"), ask("/v1/status")]);
    nodes = found.nodes;
    states = nodes.map((node) => node.state);
    enforced = status.enforced;
    readies = nodes.map((node) => node.cpu_ready_percent);
    interval = status.interval_seconds;
    put("version", status.version);
    const seen = readies.filter((value) => value != null);
    const mean = seen.length ? seen.reduce((a, b) => a + b) / seen.length : null;
    if (nodes.length) showCounts(nodes.length, counts(), mean, status.tally.downtime);
    else { put("word", "No nodes yet"); put("reason", "The agent has read no telemetry so far."); put("count", "0"); }
    showRefusers();
    tellPointed();
    drawMap();
    askFederation(nodes);
  } catch (error) {
    // The stream says when the agent is gone.
  }
}

async function start() {
  watchMap();
  watchTree();
  await refresh();
  try {
    (await ask("/v1/recent")).events.map(glance).forEach(remember);
  } catch (error) {
    trend = [];
  }
  drawTrend();
  follow(onEvent, showLost, () => Math.max(5, 4 * interval));
  setInterval(refresh, 5000);
  redrawn(drawMap, drawTrend, drawTree);
}

start();
