"use strict";
// A time chart on a canvas: lanes of lines above one another, bands for refusals, spikes, levels.
// It is read by pointer and by keyboard: the moment pointed at is told in words.

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function clock(time, step) {
  const at = new Date(time * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const day = `${at.getDate()} ${MONTHS[at.getMonth()]}`;
  const hour = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (step >= 86400 || (step >= 3600 && hour === "00:00")) return day;
  return step < 60 ? `${hour}:${two(at.getSeconds())}` : hour;
}

const moment = (time, span) => (span > 86400 ? `${clock(time, 86400)} ` : "") + clock(time, span > 3600 ? 60 : 1);

function niceStep(range, parts) {
  const rough = range / parts;
  const power = 10 ** Math.floor(Math.log10(rough));
  for (const factor of [1, 2, 5]) if (factor * power >= rough) return factor * power;
  return 10 * power;
}

function fit(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  const em = parseFloat(getComputedStyle(document.documentElement).fontSize);
  pen.font = `${0.75 * em}px system-ui, sans-serif`;
  return { pen, width, height, em };
}

// Lowest and highest value of a lane, with room; `floor` fixes the lowest.
function extent(lane) {
  let low = lane.floor ?? Infinity;
  let high = lane.level == null ? -Infinity : 1.3 * lane.level;
  for (const line of lane.lines) for (const [, value] of line.points) {
    if (value == null) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  for (const [, least, , most] of lane.ribbon ?? []) {
    if (least == null) continue;
    if (least < low) low = least;
    if (most > high) high = most;
  }
  if (!isFinite(low) || !isFinite(high)) return [0, 1];
  if (high - low < 1e-9) high = low + 1;
  const room = 0.08 * (high - low);
  return [lane.floor == null ? low - room : low, high + room];
}

// Whether a line may join two points, [time, value, seconds that it stands for].
const joined = (last, next, gap) => last !== null && next[0] - last[0] <= gap + 2 * Math.max(last[2] ?? 0, next[2] ?? 0);

function trace(pen, points, x, y, gap) {
  let last = null;
  for (const point of points) {
    const [time, value] = point;
    if (value == null) { last = null; continue; }
    if (joined(last, point, gap)) pen.lineTo(x(time), y(value));
    else { pen.moveTo(x(time), y(value)); pen.lineTo(x(time) + 0.5, y(value)); }
    last = point;
  }
}

// The area between a line and a level below it, one piece for each unbroken stretch.
function area(pen, points, x, y, gap, base) {
  let first = null, last = null;
  const close = () => { if (first !== null) { pen.lineTo(x(last[0]), base); pen.lineTo(x(first), base); pen.closePath(); } first = null; };
  pen.beginPath();
  for (const point of points) {
    const [time, value] = point;
    if (value == null || (last !== null && !joined(last, point, gap))) close();
    if (value == null) continue;
    if (first === null) { first = time; pen.moveTo(x(time), y(value)); } else pen.lineTo(x(time), y(value));
    last = point;
  }
  close();
  pen.fill();
}

// Unbroken pieces of a ribbon, whose points are [time, low, seconds, high, whether it begins anew].
function pieces(points, gap) {
  const found = [];
  let last = null;
  for (const point of points) {
    if (point[1] == null) { last = null; continue; }
    if (!joined(last, point, gap) || point[4]) found.push([]);
    found[found.length - 1].push(point);
    last = point;
  }
  return found;
}

class Chart {
  // `tell(time)` gives the words for the moment nearest to a time, as [time, words], or null.
  constructor(id, tell) {
    this.canvas = $(id);
    this.tell = tell;
    this.at = null;
    this.told = make("p", undefined, "told");
    this.told.setAttribute("role", "status");
    this.told.hidden = true;
    this.canvas.after(this.told);
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      if (this.time) this.point(this.time(event.clientX - box.left));
    });
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("blur", () => this.point(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (!this.shown) return;
    const { from, to } = this.shown;
    const step = (to - from) / (event.shiftKey ? 12 : 60);
    const from_here = this.at ?? to;
    const target = { ArrowLeft: from_here - step, ArrowRight: from_here + step, Home: from, End: to, Escape: null };
    if (!(event.key in target)) return;
    event.preventDefault();
    const time = target[event.key];
    this.point(time === null ? null : Math.min(to, Math.max(from, time)));
  }

  point(time) {
    const found = time === null ? null : this.tell(time);
    this.at = found ? found[0] : null;
    this.told.hidden = !found;
    if (found && this.told.textContent !== found[1]) this.told.textContent = found[1];
    this.draw();
  }

  show(what) {
    this.shown = { bands: [], gap: Infinity, ...what };
    this.draw();
  }

  draw() {
    if (!this.shown) return;
    const { lanes, bands, from, to, gap } = this.shown;
    const { pen, width, height, em } = fit(this.canvas);
    const scales = lanes.map((lane) => this.labels(pen, lane, (height - 2.4 * em) / lanes.length, em));
    const left = 0.6 * em + Math.max(0, ...scales.map((s) => s.width));
    const right = width - 0.5 * em, top = 0.7 * em, bottom = height - 1.7 * em;
    const x = (time) => left + ((time - from) / (to - from)) * (right - left);
    this.time = (place) => Math.min(to, Math.max(from, from + ((place - left) / (right - left)) * (to - from)));
    this.bands(pen, bands, x, { left, right, top, bottom, em });
    this.times(pen, x, { from, to, left, right, bottom, height, em });
    const tall = (bottom - top) / lanes.length;
    lanes.forEach((lane, i) => {
      const above = top + i * tall + (lanes.length > 1 ? 0.25 * em : 0), below = top + (i + 1) * tall;
      this.lane(pen, lane, scales[i], x, { left, right, above, below, gap, em });
    });
    if (this.shown.empty && !lanes.some((lane) => (lane.ribbon ?? []).length || lane.lines.some((line) => line.points.length))) {
      pen.fillStyle = colour("--quiet");
      pen.textAlign = "center";
      pen.fillText(this.shown.empty, (left + right) / 2, (top + bottom) / 2);
    }
    if (this.at !== null && this.at >= from && this.at <= to) {
      pen.fillStyle = colour("--ink");
      pen.fillRect(x(this.at) - 0.5, top, 1, bottom - top);
      this.told.style.setProperty("left", `${Math.max(0, Math.min(x(this.at) + 8, width - this.told.offsetWidth))}px`);
    }
  }

  labels(pen, lane, tall, em) {
    const [low, high] = extent(lane);
    if (lane.name !== undefined) return { low, high, marks: [], width: pen.measureText(lane.name).width };
    const step = niceStep(high - low, Math.max(2, tall / (3 * em)));
    const marks = [];
    for (let value = Math.ceil(low / step) * step; value <= high; value += step) marks.push(value);
    const text = (value) => `${+value.toPrecision(6)}${lane.unit ?? ""}`;
    return { low, high, marks, text, width: Math.max(0, ...marks.map((value) => pen.measureText(text(value)).width)) };
  }

  // A solid strip above, so that a state is told by form and not by colour alone, and a tint below it.
  // A band is [begin, end, weight, colour].
  bands(pen, bands, x, { left, right, top, bottom, em }) {
    for (const [begin, end, weight = 1, tint = "--no"] of bands) {
      pen.fillStyle = colour(tint);
      const start = Math.round(Math.max(x(begin), left)), wide = Math.max(1.5, Math.round(Math.min(x(end), right)) - start);
      if (start > right) continue;
      pen.globalAlpha = 0.14 * weight;
      pen.fillRect(start, top, wide, bottom - top);
      pen.globalAlpha = 0.25 + 0.75 * weight;
      pen.fillRect(start, top - 0.4 * em, wide, 0.4 * em);
    }
    pen.globalAlpha = 1;
  }

  times(pen, x, { from, to, left, right, bottom, height, em }) {
    const fits = Math.max(2, (right - left) / (5.5 * em));
    const step = STEPS.find((one) => (to - from) / one <= fits) ?? 604800;
    const shift = 60 * new Date(1000 * to).getTimezoneOffset();
    pen.fillStyle = colour("--quiet");
    pen.strokeStyle = colour("--line");
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    for (let time = Math.ceil((from - shift) / step) * step + shift; time <= to; time += step) {
      const half = pen.measureText(clock(time, step)).width / 2;
      pen.fillRect(x(time), bottom, 1, 0.3 * em);
      if (x(time) - half > 0 && x(time) + half < right + 0.5 * em) pen.fillText(clock(time, step), x(time), height - 0.35 * em);
    }
  }

  lane(pen, lane, scale, x, { left, right, above, below, gap, em }) {
    const room = lane.above || lane.below ? 0.5 * em : 0; // for marks above and below
    const y = (value) => below - room - ((value - scale.low) / (scale.high - scale.low)) * (below - above - 2 * room);
    pen.lineWidth = 1;
    pen.strokeStyle = colour("--line");
    pen.fillStyle = colour("--quiet");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const rule = (at) => { pen.beginPath(); pen.moveTo(left, at); pen.lineTo(right, at); pen.stroke(); };
    for (const value of scale.marks) { rule(y(value)); pen.fillText(scale.text(value), left - 0.4 * em, y(value)); }
    if (lane.name !== undefined) {
      rule(below);
      pen.fillText(lane.name, left - 0.4 * em, (above + below) / 2);
    }
    pen.save();
    pen.beginPath();
    pen.rect(left, above - 0.3 * em, right - left, below - above + 0.6 * em);
    pen.clip();
    pen.lineJoin = "round";
    for (const line of lane.lines) {
      pen.strokeStyle = line.colour;
      pen.lineWidth = 0.1 * em * (line.thin ? 0.5 : 1);
      pen.beginPath();
      trace(pen, line.points, x, y, gap);
      pen.stroke();
    }
    if (lane.level != null) this.level(pen, lane, x, y, { left, right, above, gap, em });
    if (lane.ribbon) this.ribbon(pen, lane, x, y, gap, em);
    for (const [time, value, sign] of lane.spikes ?? []) this.spike(pen, x(time), y(value), sign, lane.colour, em);
    this.rug(pen, lane.above ?? [], x, above, em);
    this.rug(pen, lane.below ?? [], x, below - 0.35 * em, em);
    pen.restore();
  }

  // From lowest to highest, as wide as that is: where both are the same it is a line.
  ribbon(pen, lane, x, y, gap, em) {
    pen.strokeStyle = pen.fillStyle = lane.colour;
    for (const piece of pieces(lane.ribbon, gap)) {
      const wide = piece.some(([, low, , high]) => high > low);
      pen.beginPath();
      piece.forEach(([time, , , high], i) => (i ? pen.lineTo(x(time), y(high)) : pen.moveTo(x(time), y(high))));
      if (piece.length === 1) pen.lineTo(x(piece[0][0]) + 1, y(piece[0][3]));
      if (wide) {
        for (let i = piece.length - 1; i >= 0; i--) pen.lineTo(x(piece[i][0]), y(piece[i][1]));
        pen.closePath();
        pen.globalAlpha = 0.35;
        pen.fill();
        pen.globalAlpha = 1;
      }
      pen.lineWidth = 0.1 * em * (wide ? 0.5 : 1);
      pen.stroke();
    }
  }

  // Marks as dark as there is much, out of [time, seconds, share].
  rug(pen, marks, x, top, em) {
    const most = marks.reduce((high, [, , share]) => Math.max(high, share), 0);
    pen.fillStyle = colour("--ink");
    for (const [time, seconds, share] of marks) {
      pen.globalAlpha = 0.15 + 0.85 * (share / most);
      pen.fillRect(x(time), top, Math.max(1.5, x(time + seconds) - x(time)), 0.3 * em);
    }
    pen.globalAlpha = 1;
  }

  // All above the level stands out: filled, and drawn over in another colour.
  level(pen, lane, x, y, { left, right, above, gap, em }) {
    const at = y(lane.level);
    pen.save();
    pen.beginPath();
    pen.rect(left, above - em, right - left, at - above + em);
    pen.clip();
    pen.fillStyle = pen.strokeStyle = colour("--spike");
    pen.globalAlpha = 0.3;
    area(pen, lane.lines[0].points, x, y, gap, at);
    pen.globalAlpha = 1;
    pen.lineWidth = 0.12 * em;
    pen.beginPath();
    trace(pen, lane.lines[0].points, x, y, gap);
    pen.stroke();
    pen.restore();
    pen.setLineDash([0.4 * em, 0.3 * em]);
    pen.lineWidth = 1;
    pen.strokeStyle = colour("--ink");
    pen.beginPath();
    pen.moveTo(left, at);
    pen.lineTo(right, at);
    pen.stroke();
    pen.setLineDash([]);
  }

  spike(pen, at, height, sign, fill, em) {
    const size = 0.3 * em * (sign < 0 ? -1 : 1);
    pen.fillStyle = fill;
    pen.beginPath();
    pen.moveTo(at, height - 1.2 * size);
    pen.lineTo(at - Math.abs(size), height + 0.6 * size);
    pen.lineTo(at + Math.abs(size), height + 0.6 * size);
    pen.fill();
  }
}

// Stretches of time during which `on` holds, out of [time, on, seconds].
function stretches(moments, gap) {
  const found = [];
  let begin = null, last = null;
  for (const one of moments) {
    const [time, on] = one;
    const broken = last !== null && !joined(last, one, gap);
    if (begin !== null && (!on || broken)) { found.push([begin, broken ? last[0] : time]); begin = null; }
    if (on && begin === null) begin = time;
    last = one;
  }
  if (begin !== null) found.push([begin, last[0]]);
  return found;
}

function nearest(points, time) {
  let best = null;
  for (const one of points) if (best === null || Math.abs(one.time - time) < Math.abs(best.time - time)) best = one;
  return best;
}
