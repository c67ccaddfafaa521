"use strict";
// One node: its decision and what led to it, live. Everything comes from /v1 of the same origin.

const wanted = new URLSearchParams(location.search).get("node");
const named = wanted ? `&node=${encodeURIComponent(wanted)}` : "";
const RANGES = [["5 min", 300], ["30 min", 1800], ["3 h", 10800], ["12 h", 43200], ["2 days", 172800], ["7 days", 604800]];
const LIVE = RANGES[0][1];
const BUCKETS = 600;
let range = LIVE;
let recent = [];
let past = [];
let loaded = 0;
let place = -1; // among the nodes of a fleet
let counted = 0; // nodes that there were when it was looked for
let tolerance = null;
let interval = 1;
let replayed = false; // whether timesteps are those of a trace, however fast it is replayed
let kept = false; // whether there is a decision log
let everyDecision = true; // whether it has every decision; of many nodes it has the minutes
let filling = false;
let lastWord = null;
let horizon = Infinity; // timesteps ahead that the decision itself is about
let shadow = false; // whether a gate only notes what it would do

function showDecision(found) {
  lastWord = found;
  const state = STATES[found.state];
  showLook(found.stale ? "silent" : state.kind, found.stale ? null : found.state);
  put("word", state.word);
  put("reason", `${found.reason.charAt(0).toUpperCase()}${found.reason.slice(1)}.`);
  put("beside", beside(found));
  put("name", found.node);
  const now = found.stale ? {} : found; // what was measured long ago is not shown as now
  put("ready", ready(now.cpu_ready_percent));
  put("expected", ready(now.expected_ready));
  put("probability", percent(now.probability));
  const ahead = (now.outlook ?? []).filter((one) => one.steps > horizon);
  $("outlook-fact").hidden = !ahead.length;
  put("outlook-name", `Chance within ${ahead.map((one) => (replayed ? one.steps : lasting(one.steps * interval))).join(", ")}${replayed ? " timesteps" : ""}`);
  put("outlook", ahead.map((one) => percent(one.probability)).join(", "));
  put("busy", now.utilisation_percent == null ? "–" : `${Math.round(now.utilisation_percent)} %`);
  put("since", found.since == null ? "–" : lasting((found.time || Date.now() / 1000) - found.since));
  document.title = `${found.stale ? "?" : state.sign} ${found.node} · Pronto`;
}

// What must be said with a state: by what a node is held open, or that nothing enforces a refusal.
function beside(found) {
  if (found.held_by && !found.reason.includes(found.held_by)) return `Held open by ${found.held_by}.`;
  if (found.state !== "refusing" || found.enforced) return "";
  return shadow ? "Shadow mode: nothing enforces this, jobs may still come." : "No gate enforces this: it is up to who asks, such as pronto run.";
}

function showLost(seconds) {
  showLook("silent", null);
  put("word", "No answer");
  const last = lastWord ? ` Its last word was: ${lastWord.state}.` : "";
  put("beside", "");
  put("reason", `The agent has not been heard for ${lasting(seconds)}.${last}`);
  document.title = "? Pronto";
}

function live(points = recent) {
  const to = recent.length ? recent[recent.length - 1].time : Date.now() / 1000;
  // The window grows with what there is, so that the first minute is not a line at the edge.
  const since = points.length ? points[0].time : to;
  const from = Math.max(to - LIVE, Math.min(since, to - 60));
  return { from, to, points: points.filter((event) => event.time >= from) };
}

function shown() {
  if (range === LIVE) return live();
  const to = Date.now() / 1000;
  return { from: to - range, to, points: past };
}

const gap = () => 3 * interval + 2;
// The share of a point's time in a state: all or nothing of a single moment.
const share = (point, state) => (point.state !== undefined ? +(point.state === state) : (state === "refusing" ? point.rejecting_share : point.contended_share) ?? 0);
const TINTS = [["contended", "--hold"], ["refusing", "--no"]];

const drawReady = drawer(() => {
  const { from, to, points } = shown();
  const most = points.map((point) => [point.time, point.ready_max ?? point.cpu_ready_percent, point.seconds]);
  const long = range !== LIVE;
  const lines = [{ points: most, colour: colour("--accent"), thin: long }];
  if (long) lines.push({ points: points.map((point) => [point.time, point.ready_mean, point.seconds]), colour: colour("--accent") });
  const single = points.filter((point) => !point.seconds);
  const bands = TINTS.flatMap(([state, tint]) => [
    ...stretches(single.map((point) => [point.time, share(point, state) > 0]), gap()).map(([begin, end]) => [begin, end, 1, tint]),
    ...points.filter((point) => point.seconds && share(point, state) > 0).map((point) => [point.time, point.time + point.seconds, share(point, state), tint])]);
  readyChart.show({ lanes: [{ lines, level: tolerance, floor: 0, unit: " %" }], empty: "Nothing on record for this time.", bands, from, to, gap: gap() });
  put("ready-key", long ? "CPU Ready: mean, and highest as a thin line" : "CPU Ready");
  summarise(from, to, points, most);
});

function summarise(from, to, points, most) {
  const known = most.map(([, value]) => value).filter((value) => value != null);
  const highest = known.length ? known.reduce((a, b) => Math.max(a, b)) : null;
  const over = tolerance === null ? 0 : stretches(most.map(([time, value, seconds]) => [time, value >= tolerance, seconds]), gap()).length;
  const weight = points.reduce((sum, point) => sum + (point.timesteps ?? 1), 0);
  const spent = (state) => points.reduce((sum, point) => sum + (point.timesteps ?? 1) * share(point, state), 0) / weight;
  const held = spent("contended") > 0 ? `, contended and held open ${percent(spent("contended"), 1)}` : "";
  const text = points.length
    ? `Over ${lasting(to - Math.max(from, points[0].time))}: CPU Ready up to ${ready(highest)}, ${some(over, "stretch", "stretches")} over the tolerance, refusing ${percent(spent("refusing"), 1)} of the time${held}.`
    : "Nothing is on record for this time.";
  put("ready-text", text);
  $("ready-chart").setAttribute("aria-label", `CPU Ready over time. ${text} Arrow keys read single moments.`);
}

function tellReady(time) {
  const { points, from, to } = shown();
  const point = nearest(points, time);
  if (!point) return null;
  const value = range === LIVE ? `CPU Ready ${ready(point.cpu_ready_percent)}`
    : `CPU Ready ${ready(point.ready_mean)}, up to ${ready(point.ready_max)}`;
  const part = (state) => (share(point, state) > 0 ? [`${state} ${percent(share(point, state))} of the time`] : []);
  const word = point.state ?? ([...part("refusing"), ...part("contended")].join(", ") || "accepting");
  const why = word === "accepting" || !point.reason ? "" : `: ${point.reason}`;
  return [point.time, `${moment(point.time, to - from)}  ${value}, ${word}${why}`];
}

const readyChart = new Chart("ready-chart", tellReady);

function onEvent(event) {
  if (event.node === undefined) event = ofFleet(event);
  if (!event || (wanted && event.node !== undefined && event.node !== wanted)) return;
  if (event.age_seconds > 3 * interval) event.cpu_ready_percent = null; // nothing was measured: a gap
  const last = recent.length ? recent[recent.length - 1].time : null;
  if (last !== null && event.time - last > gap()) fill(last, event.time); // the line was broken: the log knows
  recent.push(event);
  const track = trackOf(event);
  if (track) tracks.push(track);
  trim(event.time - 1.1 * LIVE);
  if (event.node !== undefined) showDecision(event);
  if (range === LIVE) drawReady();
  drawProjections();
}

function trim(oldest) {
  if (recent.length && recent[0].time < oldest) recent = recent.filter((one) => one.time >= oldest);
  if (tracks.length && tracks[0].time < oldest) tracks = tracks.filter((one) => one.time >= oldest);
}

// One node out of a fleet's event; its words come with the next explanation.
function ofFleet(event) {
  if (event.nodes !== counted) findPlace(event.nodes); // some came or went: its place may be another
  if (place < 0 || !event.state_map || place >= event.state_map.length) return null;
  put("ready", ready(event.ready_map[place]));
  return { time: event.time, cpu_ready_percent: event.ready_map[place], state: LETTERS[event.state_map[place]] };
}

async function findPlace(number) {
  counted = number;
  place = -1;
  try {
    place = (await ask("/v1/nodes")).nodes.findIndex((node) => node.node === wanted);
  } catch (error) {
    counted = 0; // at the next event again
  }
}

async function refresh() {
  try {
    const [status, explained] = await Promise.all([ask("/v1/status"), ask(`/v1/explain?${named.slice(1)}`)]);
    interval = status.interval_seconds;
    put("version", status.version);
    shadow = Boolean(status.followers.gate) && !status.enforced;
    const record = explained.record;
    if (record) {
      horizon = record.horizon ?? Infinity;
      tolerance = record.tolerance_percent ?? null;
      put("tolerance", tolerance === null ? "" : `, ${ready(tolerance)}`);
      showRecord(record, replayed ? null : interval);
    }
    showRefused(status, record, explained.budget);
    signs = explained.directions.map((direction) => direction.sign ?? 1);
    showDirections(explained);
    showLast(explained.last_rejection);
    showLoop(status);
    showProbe(explained.probe);
    showWho(explained.offenders);
    showDecision(explained.decision);
    if (place >= 0) await follows(explained);
    // A longer stretch changes more slowly, and asking for it costs more.
    if (range !== LIVE && Date.now() / 1000 - loaded > Math.max(10, range / BUCKETS)) await loadPast();
    drawReady();
    drawProjections();
  } catch (error) {
    if (error.status === 404) {
      showLook("silent", null);
      put("word", "No such node");
      put("reason", `This agent watches no node named ${wanted}.`);
    }
  }
}

async function loadPast() {
  const to = Date.now() / 1000, asked = range;
  loaded = to;
  const found = await ask(`/v1/history?from=${to - range}&to=${to}&points=${BUCKETS}${named}`);
  if (asked === range) past = found.points;
}

// What the decision log knows of the last minutes where no event was received, between two that were.
async function fill(from, to) {
  const begin = Math.max(from, Date.now() / 1000 - LIVE), end = to - 0.5 * interval;
  if (!kept || filling || end - begin < interval) return;
  filling = true;
  try {
    const found = (await ask(`/v1/history?from=${begin + 0.001}&to=${end}&points=${BUCKETS}${named}`)).points;
    const before = found.map((p) => ({ time: p.time, seconds: p.seconds > interval ? p.seconds : 0, reason: p.reason,
      state: p.rejecting_share >= 0.5 ? "refusing" : p.contended_share >= 0.5 ? "contended" : "accepting",
      cpu_ready_percent: p.seconds > interval ? p.ready_mean : p.ready_max }));
    const inOrder = (a, b) => a.time - b.time;
    recent = [...recent, ...before].sort(inOrder);
    tracks = [...tracks, ...found.map(trackOfPast).filter(Boolean)].sort(inOrder);
  } finally {
    filling = false;
  }
}

// A fleet's events carry no projections: they come from the log, or from what is asked for now and then.
async function follows(explained) {
  const now = Date.now() / 1000;
  if (kept && everyDecision) {
    const last = tracks.length ? tracks[tracks.length - 1].time : now - LIVE;
    const found = await ask(`/v1/history?from=${last + 0.001}&to=${now}&points=${BUCKETS}${named}`);
    tracks.push(...found.points.map(trackOfPast).filter(Boolean));
  } else {
    const track = trackOf({ ...explained, time: now }, POLLED);
    if (track) tracks.push(track);
  }
}

function ranges() {
  if (!kept) { put("ranges", "the last minutes; more is not kept here"); $("ranges").classList.add("quiet"); return; }
  for (const [name, seconds] of RANGES) {
    const button = make("button", name);
    button.type = "button";
    button.setAttribute("aria-pressed", String(seconds === range));
    button.addEventListener("click", async () => {
      range = seconds;
      readyChart.point(null);
      projectionChart.point(null);
      for (const other of $("ranges").children) other.setAttribute("aria-pressed", String(other === button));
      if (range !== LIVE) {
        past = [];
        put("ready-text", "Reading the decision log.");
        await loadPast();
      }
      drawReady();
      drawProjections();
    });
    $("ranges").append(button);
  }
}

async function start() {
  try {
    const status = await ask("/v1/status");
    if (status.nodes > 1 && !wanted) { location.replace("/fleet"); return; }
    interval = status.interval_seconds;
    replayed = status.source === "trace";
    kept = Boolean(status.disk);
    everyDecision = !status.disk || status.disk.every_decision;
    ranges();
    if (status.nodes > 1) await findPlace(status.nodes);
    else recent = (await ask("/v1/recent")).events.filter((event) => event.node !== undefined && (!wanted || event.node === wanted));
    tracks = recent.map((event) => trackOf(event)).filter(Boolean);
    const now = Date.now() / 1000;
    await fill(now - LIVE, recent.length ? recent[0].time : now);
    if (recent.length && recent[recent.length - 1].reason) showDecision({ ...recent[recent.length - 1] });
  } catch (error) {
    put("link", "no answer");
  }
  follow(onEvent, showLost, () => Math.max(5, 4 * interval));
  await refresh();
  setInterval(refresh, 3000);
  redrawn(drawReady, drawProjections);
}

start();
