"use strict";
// One node: decision, charts, directions, record. Everything comes from /v1 of the same origin.

const wanted = new URLSearchParams(location.search).get("node");
const suffix = wanted ? `?node=${encodeURIComponent(wanted)}` : "";
const RANGES = [["5 min", 300], ["1 h", 3600], ["6 h", 21600], ["1 d", 86400], ["7 d", 604800]];
const LIVE = 600;
let range = RANGES[0][1];
let recent = [];
let history = [];
let tolerance = null;

function showDecision(found) {
  const card = $("decision");
  card.className = `card hero ${found.accept ? "accept" : "refuse"}`;
  put("word", found.accept ? "Accepting jobs" : "Refusing jobs");
  put("reason", found.reason);
  put("name", found.node);
  put("ready", ready(found.cpu_ready_percent));
  put("expected", ready(found.expected_ready));
  put("probability", percent(found.probability));
  put("busy", found.utilisation_percent == null ? "–" : `${Math.round(found.utilisation_percent)} %`);
  put("since", found.since == null ? "–" : lasting((found.time || Date.now() / 1000) - found.since));
  document.title = `${found.accept ? "✓" : "✗"} ${found.node} · Pronto`;
}

function shown() {
  const to = recent.length ? recent[recent.length - 1].time : Date.now() / 1000;
  const from = to - range;
  if (range === RANGES[0][1]) return { from, to, points: recent.filter((e) => e.time >= from), live: true };
  const points = history.map((h) => ({ time: h.time, cpu_ready_percent: h.ready_max, raised: h.raised_share > 0.2 }));
  return { from, to, points, live: false };
}

const drawReady = drawer(() => {
  const { from, to, points, live } = shown();
  const values = points.map((e) => [e.time, e.cpu_ready_percent]);
  const spikes = tolerance === null ? [] : values.filter(([, v]) => v != null && v >= tolerance);
  const gap = live ? 10 : (range / 300) * 3;
  drawChart($("ready-chart"), {
    lines: [{ points: values, colour: colour("--accent") }],
    bands: stretches(points.map((e) => [e.time, e.raised]), gap),
    dots: spikes.slice(-2000).map(([t, v]) => [t, v, colour("--spike")]),
    level: tolerance, from, to, floor: 0, unit: " %",
  });
  const refusing = points.filter((e) => e.raised).length;
  const known = values.map(([, v]) => v).filter((v) => v != null);
  const most = known.length ? Math.max(...known) : null;
  const text = points.length
    ? `Over ${lasting(to - from)}: CPU Ready up to ${ready(most)}, contention at ${spikes.length} of ${points.length} points, refusing at ${refusing}.`
    : "Nothing recorded in this time yet.";
  put("ready-text", text);
  $("ready-chart").setAttribute("aria-label", `CPU Ready over time. ${text}`);
});

const drawProjections = drawer(() => {
  const to = recent.length ? recent[recent.length - 1].time : Date.now() / 1000;
  const from = to - RANGES[0][1];
  const points = recent.filter((e) => e.time >= from && e.projections);
  const rank = points.reduce((most, e) => Math.max(most, e.projections.length), 0);
  const lines = [], dots = [];
  for (let i = 0; i < rank; i++) {
    const paint = colour(`--d${(i % 6) + 1}`);
    lines.push({ colour: paint, points: points.map((e) => [e.time, e.projections[i] ?? null]) });
    for (const e of points) if (e.spikes && e.spikes[i]) dots.push([e.time, e.projections[i], paint]);
  }
  drawChart($("projections-chart"), { lines, dots, from, to });
  const legend = $("projections-legend");
  if (legend.childElementCount !== rank) {
    legend.replaceChildren();
    for (let i = 0; i < rank; i++) legend.append(make("span", "", `key d${(i % 6) + 1}`), `direction ${i + 1}`);
  }
  const label = rank ? `${rank} projections over the last five minutes, ${dots.length} spikes.` : "No projections yet: warming up.";
  $("projections-chart").setAttribute("aria-label", label);
});

function addEvent(event) {
  recent.push(event);
  if (recent.length > LIVE) recent = recent.slice(-LIVE);
}

function onEvent(event) {
  if (event.node === undefined) return; // a fleet's summary: this page asks for its node below
  addEvent(event);
  showDecision(event);
  drawReady();
  drawProjections();
}

function part(entry) {
  const row = make("div", undefined, "part");
  const name = make("span", `${entry.sign < 0 ? "↓" : "↑"} ${entry.metric}`);
  name.title = entry.metric;
  const meter = document.createElement("meter");
  meter.max = 1;
  meter.value = entry.share;
  meter.setAttribute("aria-label", `${entry.metric} ${percent(entry.share)}`);
  row.append(name, meter, make("span", percent(entry.share)));
  return row;
}

function showExplanation(found) {
  const box = $("directions");
  box.replaceChildren();
  if (!found.directions.length) box.append(make("p", "Warming up: no directions yet.", "quiet"));
  found.directions.forEach((direction, i) => {
    const item = make("div", undefined, "direction");
    const title = make("h3");
    title.append(make("span", "", `key d${(i % 6) + 1}`), `Direction ${i + 1}, ${percent(direction.strength)} of what moves`);
    item.append(title, ...direction.parts.slice(0, 4).map(part));
    box.append(item);
  });
  const change = found.change;
  put("change", change ? `The last block turned the directions by ${number(change.distance, 3)} (0 is not at all, 1 completely).` : "");
  const last = found.last_rejection;
  const table = $("drivers");
  table.hidden = !last || !last.drivers.length;
  if (!last) { put("last-words", "None yet."); return; }
  put("last-words", `${lasting(Date.now() / 1000 - last.time)} ago, at CPU Ready ${ready(last.cpu_ready_percent)}: ${last.reason}`);
  const body = table.tBodies[0];
  body.replaceChildren();
  for (const driver of last.drivers) {
    const row = make("tr");
    row.append(make("td", `${driver.sign < 0 ? "↓" : "↑"} ${driver.metric}`), make("td", percent(driver.share)));
    body.append(row);
  }
}

function showRecord(record) {
  const own = record.signal || {};
  const rows = [
    ["Contention refused in advance", percent(own.recall ?? record.preceded), percent(own.downtime ?? record.downtime)],
    ["Refusals that met contention", percent(own.precision ?? record.precision), percent(own.base_rate ?? record.coin_precision)],
    ["Lead", own.lead_steps == null ? "–" : `${number(own.lead_steps)} steps`, "–"],
  ];
  const body = $("record").tBodies[0];
  body.replaceChildren();
  for (const [name, signal, coin] of rows) {
    const row = make("tr");
    const head = make("th", name);
    head.scope = "row";
    row.append(head, make("td", signal), make("td", coin));
    body.append(row);
  }
  const better = own.better_than_coin;
  put("trust", better === true ? "Better than a coin of the same refused time, on this node's own record."
    : better === false ? "Not better than a coin on this node's record: the node acts on the present value alone."
    : "Too few contentions on record to tell the signal from a coin yet.");
}

function showStatus(status) {
  put("version", status.version);
  const record = status.record;
  if (record) {
    tolerance = record.tolerance_percent ?? null;
    showRecord(record);
  }
  const budget = status.signal && status.signal.settings ? status.signal.settings.budget : null;
  const downtime = status.tally.downtime ?? 0;
  put("downtime", percent(downtime, 1));
  put("budget", budget == null ? "no budget set" : percent(budget));
  const bar = $("downtime-bar");
  bar.max = budget ? Math.max(budget, 1e-6) : 1;
  bar.value = Math.min(downtime, bar.max);
  bar.parentElement.classList.toggle("over", Boolean(budget) && downtime > 1.15 * budget);
  put("tally", `${status.tally.decisions} decisions since the start, ${status.tally.flips} changes of mind.`);
  const loop = status.loop;
  const faults = Object.entries(status.faults || {}).map(([kind, count]) => `${kind} ${count}`).join(", ");
  const lines = [
    ["Source", status.source], ["Metrics", String(status.features ?? "–")], ["Rank", String(status.rank ?? "–")],
    ["Running for", lasting(status.uptime_seconds)], ["Ticks", String(loop.ticks)], ["Late ticks", String(loop.late)],
    ["Lag", `${number(1000 * (loop.lag_seconds ?? 0), 1)} ms`], ["Reading takes", `${number(1000 * (loop.read_seconds ?? 0), 1)} ms`],
    ["Faults", faults || "none"], ...((status.notes || []).map((note) => ["Note", note])),
  ];
  const list = $("health");
  list.replaceChildren();
  for (const [name, value] of lines) list.append(make("dt", name), make("dd", value));
}

async function refresh() {
  try {
    const [status, explained] = await Promise.all([ask("/v1/status"), ask(`/v1/explain${suffix}`)]);
    showStatus(status);
    showExplanation(explained);
    if (wanted) {
      const event = { ...explained.decision, time: Date.now() / 1000 };
      addEvent(event);
      showDecision(event);
    }
    if (range !== RANGES[0][1]) await loadHistory();
    drawReady();
    drawProjections();
  } catch (error) {
    put("link", "no answer");
    $("link").className = "pill lost";
  }
}

async function loadHistory() {
  const to = Date.now() / 1000;
  const node = wanted ? `&node=${encodeURIComponent(wanted)}` : "";
  const found = await ask(`/v1/history?from=${to - range}&to=${to}&points=300${node}`);
  history = found.points;
}

function ranges() {
  for (const [name, seconds] of RANGES) {
    const button = make("button", name);
    button.type = "button";
    button.setAttribute("aria-pressed", String(seconds === range));
    button.addEventListener("click", async () => {
      range = seconds;
      for (const other of $("ranges").children) other.setAttribute("aria-pressed", String(other === button));
      if (range !== RANGES[0][1]) await loadHistory();
      drawReady();
    });
    $("ranges").append(button);
  }
}

async function start() {
  ranges();
  try {
    const status = await ask("/v1/status");
    if (status.nodes > 1 && !wanted) { location.replace("/fleet"); return; }
    if (!wanted) recent = (await ask("/v1/recent")).events.filter((e) => e.node !== undefined);
    if (recent.length) showDecision(recent[recent.length - 1]);
  } catch (error) {
    put("link", "no answer");
  }
  follow(onEvent);
  await refresh();
  setInterval(refresh, 3000);
  new ResizeObserver(() => { drawReady(); drawProjections(); }).observe($("ready-chart"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawReady(); drawProjections(); });
}

start();
