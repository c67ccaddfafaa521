"use strict";
// The federation: its tree as a picture and as a list, what epsilon saved, who is least like the rest.

const OUTLIERS = 8;
const OPEN = 40; // nodes up to which the list is open from the start, where there is room
const YOUNG = 60; // vectors below which a distance says little
const NARROWEST = 9; // pixels a branch needs to be told from the next
let tree = null; // the last answer, its groups by name and with their children
let spots = []; // what can be pointed at: {x, y, width, height, text, href}
let spot = -1;

function grow(found) {
  const groups = new Map(found.groups.map((group) => [group.name, { ...group, inner: [], members: [] }]));
  for (const group of groups.values()) if (group.name !== "" && groups.has(group.parent ?? "")) groups.get(group.parent ?? "").inner.push(group);
  for (const member of found.members) groups.get(member.parent ?? "")?.members.push(member);
  for (const group of groups.values()) group.members.sort((a, b) => (a.name < b.name ? -1 : 1));
  return { ...found, root: groups.get(""), groups };
}

const groupName = (group) => (group.name === "" ? "root" : group.name);
const heardAgo = (seconds) => (seconds == null ? "not heard yet" : `heard ${lasting(seconds)} ago`);

function groupWords(group) {
  const refusing = group.refusing == null ? "decisions unknown" : group.refusing ? `${some(group.refusing, "refuses", "refuse")}` : "all accept";
  return `${groupName(group)}: ${some(group.nodes, "node")}, ${refusing}, ${heardAgo(group.age_seconds)}`;
}

function memberWords(member) {
  const state = member.accept == null ? "decision unknown" : member.accept ? "accepts" : "refuses";
  const apart = member.distance == null ? "" : `, ${percent(member.distance ** 2)} its own way`;
  return `${member.name}: ${state}${apart}${member.accept === false && member.reason ? `. ${member.reason}` : ""}`;
}

const stateOf = (accept) => (accept == null ? "unknown" : accept ? "accept" : "refuse");

// The nodes of a group as cells: each by name where all are known, else only how many of them refuse.
function cells(group) {
  if (group.members.length >= group.nodes) return group.members.map((m) => ({ state: stateOf(m.accept), text: memberWords(m), name: m.name }));
  return Array.from({ length: group.nodes }, (_, i) => ({ state: group.refusing == null ? "unknown" : i < group.refusing ? "refuse" : "accept" }));
}

function branches(group, depth = 0) {
  const inner = group.inner.map((one) => branches(one, depth + 1));
  return { group, depth, inner, leaves: inner.length ? inner.reduce((sum, one) => sum + one.leaves, 0) : 1,
           deepest: inner.length ? Math.max(...inner.map((one) => one.deepest)) : depth };
}

function cellSize(number, wide, em) {
  let size = Math.min(number < 40 ? 1.8 * em : 1.3 * em, wide);
  while (size > 4 && Math.ceil(number / Math.max(1, Math.floor(wide / size))) * size > 9 * em) size -= 0.5;
  return size;
}

const drawTree = drawer(() => {
  if (!tree || !tree.root) return;
  const canvas = $("tree");
  const wide = canvas.clientWidth, em = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const whole = branches(tree.root);
  const most = Math.floor(wide / NARROWEST);
  if (whole.leaves > most) { // those with refusals first; the list has them all
    whole.inner.sort((a, b) => (b.group.refusing ?? 0) - (a.group.refusing ?? 0));
    let left = most;
    whole.inner = whole.inner.filter((one) => (left -= one.leaves) >= 0);
    whole.leaves = whole.inner.reduce((sum, one) => sum + one.leaves, 0);
  }
  const level = 3 * em, slot = wide / Math.max(1, whole.leaves);
  const number = Math.max(...[...tree.groups.values()].filter((group) => !group.inner.length).map((group) => cells(group).length));
  const room = Math.max(4, slot - 2), size = cellSize(number, room, em);
  const tall = Math.ceil(number / Math.max(1, Math.floor(room / size))) * size;
  canvas.style.setProperty("height", `${(whole.deepest + 0.3) * level + 0.95 * level + tall}px`);
  const { pen } = fit(canvas);
  spots = [];
  drawBranch(pen, whole, 0, { slot, level, em, size });
  if (spots[spot]) {
    const { x, y, width, height } = spots[spot];
    pen.strokeStyle = colour("--ink");
    pen.lineWidth = 2;
    pen.strokeRect(x - 2, y - 2, width + 4, height + 4);
  }
});

function drawBranch(pen, branch, begin, shape) {
  const { slot, level, em } = shape;
  const { group, inner, depth } = branch;
  const x = begin + (branch.leaves * slot) / 2, y = (depth + 0.45) * level, radius = Math.min(0.55 * em, 0.45 * slot);
  const line = (...path) => {
    pen.strokeStyle = colour("--quiet");
    pen.lineWidth = 1;
    pen.beginPath();
    path.forEach(([a, b], i) => (i ? pen.lineTo(a, b) : pen.moveTo(a, b)));
    pen.stroke();
  };
  spots.push({ x: x - radius, y: y - radius, width: 2 * radius, height: 2 * radius, text: groupWords(group) });
  let next = begin;
  for (const one of inner) {
    const child = next + (one.leaves * slot) / 2;
    line([x, y], [x, y + level / 2], [child, y + level / 2], [child, y + level]);
    drawBranch(pen, one, next, shape);
    next += one.leaves * slot;
  }
  const label = groupName(group).split("/").pop();
  if (branch.leaves * slot > 2 * pen.measureText(label).width + 3 * radius) {
    pen.fillStyle = colour("--quiet");
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(label, x + 1.5 * radius, y);
  }
  if (!inner.length) drawCells(pen, cells(group), x, y, { ...shape, line });
  drawVertex(pen, group, x, y, radius);
}

function drawVertex(pen, group, x, y, radius) {
  pen.fillStyle = group.refusing == null ? colour("--stale") : colour("--warm");
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
  if (!group.refusing) return;
  pen.fillStyle = colour("--no"); // the slice that refuses
  pen.beginPath();
  pen.moveTo(x, y);
  pen.arc(x, y, radius, -Math.PI / 2, -Math.PI / 2 + (2 * Math.PI * group.refusing) / Math.max(1, group.nodes));
  pen.fill();
}

function drawCells(pen, found, x, y, { slot, level, em, size, line }) {
  const wide = Math.max(4, slot - 2);
  const columns = Math.min(found.length, Math.max(1, Math.floor(wide / size)));
  const one_row = columns === found.length && columns > 1;
  const step = one_row ? Math.min(wide / columns, 4.5 * em) : size, start = x - (columns * step) / 2, top = y + 0.8 * level;
  if (found.length && !one_row) line([x, y], [x, top]);
  found.forEach((cell, i) => {
    const left = start + (i % columns) * step + (step - size) / 2, above = top + Math.floor(i / columns) * size;
    const middle = left + size / 2;
    if (one_row) line([x, y], [x, y + level / 2], [middle, y + level / 2], [middle, above]);
    drawCell(pen, left, above, size - (size > 8 ? 2 : 1), cell.state);
    if (cell.text) spots.push({ x: left, y: above, width: size, height: size, text: cell.text, name: cell.name });
  });
}

// Told by form too, not by colour alone: refusing by a dot, contended by a bar, unknown or silent by being hollow.
function drawCell(pen, x, y, size, state, fill) {
  if (state === "unknown") {
    pen.strokeStyle = colour("--stale");
    pen.lineWidth = 1;
    pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    return;
  }
  pen.fillStyle = fill ?? colour({ refuse: "--no", contended: "--hold" }[state] ?? "--warm");
  pen.fillRect(x, y, size, size);
  if (state === "accept" || size < 5) return;
  pen.fillStyle = colour("--mark");
  if (state === "contended") { pen.fillRect(x + 0.2 * size, y + 0.43 * size, 0.6 * size, 0.14 * size); return; }
  pen.beginPath();
  pen.arc(x + size / 2, y + size / 2, 0.18 * size, 0, 7);
  pen.fill();
}

function pointTree(index) {
  spot = index;
  put("tree-pointed", spots[spot] ? spots[spot].text : "Point at the tree, or focus it and use the arrow keys.");
  drawTree();
}

function watchTree() {
  const canvas = $("tree");
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    pointTree(spots.findIndex((one) => x >= one.x - 2 && x <= one.x + one.width + 2 && y >= one.y - 2 && y <= one.y + one.height + 2));
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter" && spots[spot]?.name && known.has(spots[spot].name)) location.assign(nodeLink(spots[spot].name).href);
    if (!step) return;
    event.preventDefault();
    pointTree(Math.min(spots.length - 1, Math.max(0, spot + step)));
  });
  canvas.addEventListener("click", () => { if (spots[spot]?.name && known.has(spots[spot].name)) location.assign(nodeLink(spots[spot].name).href); });
}

let known = new Set(); // the nodes this agent watches itself, and so can show
const opened = new Set([""]);

function listGroup(group) {
  const item = make("li");
  const details = make("details");
  details.open = opened.has(group.name);
  details.addEventListener("toggle", () => (details.open ? opened.add(group.name) : opened.delete(group.name)));
  const summary = make("summary");
  summary.dataset.key = `group ${group.name}`;
  summary.append(make("i", undefined, `state ${stateOf(group.refusing == null ? null : group.refusing === 0)}`), groupWords(group));
  const inside = make("ul", undefined, group.name === "" ? "columns" : "");
  inside.append(...group.inner.map(listGroup), ...group.members.map(listMember));
  const unseen = group.nodes - group.members.length;
  if (!group.inner.length && unseen > 0) inside.append(make("li", `${some(unseen, "node")} more`, "quiet"));
  details.append(summary, inside);
  item.append(details);
  return item;
}

function listMember(member) {
  const item = make("li");
  // On a wall the reasons stand in the table of those who refuse.
  const [, ...words] = memberWords(wall.matches ? { ...member, reason: "" } : member).split(": ");
  item.append(make("i", undefined, `state ${stateOf(member.accept)}`), known.has(member.name) ? nodeLink(member.name) : member.name, `: ${words.join(": ")}`);
  return item;
}

function showOutliers(members) {
  const apart = members.filter((member) => member.distance != null).slice(0, OUTLIERS);
  refill($("outliers"), apart.map((member) => {
    const young = member.samples < YOUNG ? ` (${count(Math.round(member.samples))} vectors)` : "";
    const row = bar("", member.distance ** 2, 1, `${percent(member.distance ** 2)}${young}`);
    row.title = `distance ${number(member.distance, 2)}: the root of this share`;
    row.firstChild.append(known.has(member.name) ? nodeLink(member.name) : member.name);
    return row;
  }));
  const first = apart[0];
  put("outliers-words", !first ? "No global view to compare with yet."
    : first.samples < YOUNG ? `Too early to tell: ${first.name} and others have shown only few vectors.`
    : first.distance ** 2 < 0.1 ? "No node stands out: all move much as the fleet does."
    : first.distance ** 2 < 0.35 ? `${first.name} goes its own way a little; the rest move more as the fleet does.`
    : `${first.name} goes its own way: look whether it does other work, or has other hardware or a fault.`);
}

function showFederation(found) {
  const joined = found && found.joined;
  $("tree-drawn").hidden = !joined || !found.groups.length;
  document.querySelector(".area-outliers").hidden = !joined;
  if (!joined) {
    put("tree-words", `This agent stands alone.${found && found.note ? ` ${found.note}` : ""}`);
    put("saved", "");
    return;
  }
  if (!tree) $("tree-list").parentElement.open = found.nodes <= (wall.matches ? 12 : OPEN);
  tree = grow(found);
  const where = found.embedded ? "All in this process" : found.connected ? "Over the bus" : "The bus is not reached";
  const view = found.revision == null ? "There is no global view yet: it comes with the first summaries."
    : `The global view is made of ${some(found.view_nodes, "node")} and ${lasting(found.view_age_seconds)} old (revision ${count(found.revision)}).`;
  const odd = found.unreadable ? ` ${some(found.unreadable, "message")} could not be read.` : "";
  put("tree-words", `${where}: ${some(found.nodes, "node")}${found.groups.length > 1 ? ` in ${some(found.groups.length - 1, "group")}` : ""} under one root. ${view}${odd}${found.note ? ` ${found.note}` : ""}`);
  const saved = found.saved;
  put("saved", saved && saved.messages_sent + saved.messages_saved > 0
    ? `${some(saved.messages_sent, "summary", "summaries")} went up; ${count(saved.messages_saved)} more (${percent(saved.share_saved)}, ${bytes(saved.bytes_saved)}) were not worth sending, as too little had changed.`
    : "");
  refill($("tree-list"), tree.root ? [listGroup(tree.root)] : []);
  $("tree").setAttribute("aria-label", `The tree of the federation: ${some(found.nodes, "node")} under ${some(found.groups.length, "group")}. Arrow keys read it; it is also there as a list.`);
  if (spot < 0) pointTree(-1);
  showOutliers(found.members);
  drawTree();
}

async function askFederation(nodes) {
  known = new Set(nodes.map((node) => node.node));
  try {
    showFederation(await ask("/v1/federation"));
  } catch (error) {
    if (error.status === 404) showFederation(null);
  }
}
