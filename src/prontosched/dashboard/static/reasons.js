"use strict";
// Why, and whether to believe it: directions, the last refusal, the record, the budget, the loop.

const arrow = (part) => `${part.sign < 0 ? "↓" : "↑"}\u00a0${part.metric}`;
const listed = (parts) => parts.filter((part) => part.share >= 0.05).map((part) => `${part.metric} ${percent(part.share)}`.replace(" %", "\u00a0%")).join(", ");

function showDirections(found) {
  const every = found.directions;
  if (!every.length) {
    $("directions").replaceChildren(make("p", "Still warming up: directions come with the first full block.", "quiet"));
    put("change", "");
    return;
  }
  const most = Math.max(...every.map((direction) => direction.parts[0]?.share ?? 0));
  $("directions").replaceChildren(...every.map((direction, i) => {
    const item = make("div", undefined, `direction d${(i % 6) + 1}`);
    const title = make("h3");
    title.append(make("i", undefined, "key"), `Direction ${i + 1}: ${percent(direction.strength)}`);
    item.append(title);
    if (direction.families && direction.families.length > 1) item.append(make("p", `Mostly ${listed(direction.families)}`, "quiet"));
    item.append(...direction.parts.slice(0, 4).map((part) => bar(arrow(part), part.share, most)));
    return item;
  }));
  put("change", found.change ? changed(found.change) : "");
}

function changed(change) {
  const names = (parts) => parts.map((part) => part.metric).join(", ");
  const rank = change.rank === change.rank_before ? "" : ` There are now ${change.rank} directions, before ${change.rank_before}.`;
  const gained = change.gained.length ? ` More of: ${names(change.gained)}.` : "";
  const lost = change.lost.length ? ` Less of: ${names(change.lost)}.` : "";
  return `With the last block the directions ${change.words} (${number(change.distance, 2)} of 1).${rank}${gained}${lost}`;
}

function showLast(last) {
  if (!last) {
    put("last-words", "None since the agent started.");
    $("drivers").replaceChildren();
    return;
  }
  const ago = Date.now() / 1000 - last.time;
  // With its time of day: the head is newer, and may give another reason by then.
  const when = ago < 10 ? `At ${moment(last.time, ago)}` : `${lasting(ago)} ago (${moment(last.time, ago)})`;
  put("last-words", `${when}, at CPU Ready ${ready(last.cpu_ready_percent)}: ${last.reason}`);
  if (!last.drivers.length) { $("drivers").replaceChildren(); return; }
  const most = last.drivers[0].share;
  const rows = [make("h3", "What stood out in its metrics")];
  if (last.families && last.families.length > 1) rows.push(make("p", `Mostly ${listed(last.families)}`, "quiet"));
  $("drivers").replaceChildren(...rows, ...last.drivers.slice(0, 5).map((part) => bar(arrow(part), part.share, most)));
}

// Only what so many events can carry is there; `words` say what it comes to, or what is missing. `interval` is null in a replay.
function showRecord(record, interval) {
  const own = record.signal;
  const lead = own ? own.lead_steps : record.lead_timesteps;
  const rows = own
    ? [["Contended moments that it refused", own.recall, own.downtime],
       ["Refusals that met contention", own.precision, own.base_rate]]
    : [["Contentions it refused in advance", record.preceded, record.coin_preceded],
       ["Refusals that met contention", record.precision, record.coin_precision]];
  const box = [];
  for (const [name, signal, coin] of rows) {
    if (signal == null) continue;
    box.push(make("h3", name), bar("signal", signal, 1, percent(signal), "line"), bar("coin", coin, 1, percent(coin), "line coin"));
  }
  const ahead = interval === null ? "" : `${+(lead * interval).toPrecision(2)} s, `;
  if (lead != null) box.push(make("p", `Where it warned, it did so ${ahead}${number(lead)} timesteps ahead on average.`, "quiet"));
  $("record").replaceChildren(...box);
  const so_far = record.contentions == null ? "" : `${some(record.contentions, "contention")} since the record began. `;
  put("trust", so_far + (record.words ?? "This signal keeps no record of its worth."));
}

// What probes took, by the state that they met; only the agent's own machine can be probed.
function showProbe(found) {
  const record = found.record, last = found.last?.slowdown;
  const words = record ? record.words : found.note;
  const now = last == null ? "" : `The last probe took ${number(last, 2)} x as long as alone. `;
  put("probe-words", `${now}${words.charAt(0).toUpperCase()}${words.slice(1)}.${record && found.note ? ` ${found.note}.` : ""}`);
  const met = record ? Object.entries(record.states).filter(([, one]) => one.probes) : [];
  const most = Math.max(...met.map(([, one]) => one.slowdown));
  $("probe").replaceChildren(...met.map(([state, one]) => bar(state, one.slowdown, most, `${number(one.slowdown, 2)} x`, "line")));
}

// Names are of units, pods and processes: text that users made.
function showWho(found) {
  const most = Math.max(0.01, ...found.consumers.map((one) => Math.max(one.waiting_cpus, one.used_cpus)));
  put("who-words", found.note ? `${found.note.charAt(0).toUpperCase()}${found.note.slice(1)}.` : `${number(found.waiting_cpus)} CPUs waiting and ${number(found.used_cpus)} used, over the last seconds.`);
  $("who").replaceChildren(...found.consumers.slice(0, 5).map((one) => {
    const apart = [["held back", one.throttled_cpus], ["background", one.background_cpus]].filter(([, cpus]) => cpus >= 0.05);
    const item = make("div");
    item.append(bar(one.name, one.waiting_cpus, most, `${number(one.waiting_cpus)} waiting`), make("p", [["uses", one.used_cpus], ...apart].map(([name, cpus]) => `${name} ${number(cpus)}`).join(", "), "quiet"));
    return item;
  }));
}

// One node alone is told since the agent started, as on the fleet's page; one of many by its own record.
function showRefused(status, record, budget) {
  const many = status.nodes > 1, tally = status.tally;
  const downtime = !many ? tally.downtime : record?.downtime ?? record?.signal?.downtime ?? null;
  const time = many ? "of the time on its record" : `of the ${lasting(status.uptime_seconds)} since the agent started`;
  put("downtime", percent(downtime, 1));
  put("budget", time);
  const bar = $("downtime-bar"), over = budget != null && downtime > budget;
  bar.hidden = budget == null;
  if (budget != null) {
    const scale = Math.max(1.25 * (downtime ?? 0), 2 * budget), [fill, mark] = bar.children;
    fill.style.setProperty("width", `${(100 * (downtime ?? 0)) / scale}%`);
    mark.style.setProperty("left", `${(100 * budget) / scale}%`);
    bar.classList.toggle("over", over);
  }
  const left = budget == null ? "" : over ? ` Over the budget of ${percent(budget)} so far: it is kept over hours, not minutes.` : ` A budget of ${percent(budget)} is set.`;
  const of = many ? `All ${count(status.nodes)} nodes together: ` : "";
  put("tally", `${of}${some(tally.decisions, "decision")}, ${some(tally.flips, "change")} between taking and refusing jobs since the agent started.${left}`);
}

const RECENT = 3600; // a fault of long ago is told, and nothing to look at

function showLoop(status) {
  const loop = status.loop;
  const since = status.last_fault_seconds, ago = `the last ${lasting(since)} ago`;
  const faults = Object.entries(status.faults || {}).map(([kind, times]) => `${kind} ${times}`).join(", ");
  const disk = status.disk;
  const troubles = [];
  if (loop.hanging) troubles.push("a reading hangs");
  if (loop.late > Math.max(2, 0.01 * loop.ticks)) troubles.push(`${count(loop.late)} of ${some(loop.ticks, "tick")} came late`);
  if (faults && since < RECENT) troubles.push(`faults were caught, ${ago} (${status.last_fault})`);
  if (disk && disk.last_error) troubles.push(disk.last_error);
  put("health-words", troubles.length ? `Look here: ${troubles.join("; ")}.` : faults ? `It ticks on time. Faults were caught, ${ago}.` : "It ticks on time and reads without faults.");
  $("health-words").className = troubles.length ? "trouble" : "";
  const lines = [
    ["Source", status.source], ["Metrics", String(status.features ?? "–")],
    ["Directions", status.rank == null ? null : String(status.rank)],
    ["Running for", lasting(status.uptime_seconds)], ["Ticks", `${count(loop.ticks)}, every ${+status.interval_seconds.toPrecision(2)} s`],
    ["Late ticks", count(loop.late)], ["Lag, worst", `${milli(loop.lag_seconds)}, ${milli(loop.worst_lag_seconds)}`],
    ["Reading takes", milli(loop.read_seconds)], ["Faults", faults ? `${faults}; ${ago}` : "none"],
    ["Decision log", disk ? bytes(disk.log_bytes) : "not kept"],
    ...(status.notes || []).map((note) => ["Note", note]),
  ].filter(([, value]) => value !== null);
  $("health").replaceChildren(...lines.map(([name, value]) => {
    const one = make("div");
    one.append(make("dt", name), make("dd", value));
    return one;
  }));
}

const milli = (seconds) => (seconds == null ? "–" : `${number(1000 * seconds, 1)} ms`);
