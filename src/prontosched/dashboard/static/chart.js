"use strict";
// A small time chart on a canvas: lines, bands for refusals, dots for spikes, a dashed level.

function clock(time, span) {
  const at = new Date(time * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const day = `${at.getDate()}.${at.getMonth() + 1}.`;
  const hour = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (span > 2 * 86400) return day;
  return span > 600 ? hour : `${hour}:${two(at.getSeconds())}`;
}

function niceStep(range, count) {
  const rough = range / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  for (const factor of [1, 2, 5, 10]) if (factor * power >= rough) return factor * power;
  return 10 * power;
}

function fit(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

// lines: [{points: [[time, value], …], colour}], bands: [[from, to], …], dots: [[time, value, colour], …]
function drawChart(canvas, { lines, bands = [], dots = [], level = null, from, to, floor = null, unit = "" }) {
  const { pen, width, height } = fit(canvas);
  const left = 62, right = 8, top = 8, bottom = 22;
  let low = floor === null ? Infinity : floor;
  let high = level === null ? -Infinity : level * 1.15;
  for (const line of lines) for (const [, value] of line.points) {
    if (value == null) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (!isFinite(low) || !isFinite(high)) { low = 0; high = 1; }
  if (high - low < 1e-9) high = low + 1;
  const pad = 0.06 * (high - low);
  high += pad;
  if (floor === null) low -= pad;
  const x = (time) => left + ((time - from) / (to - from)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = colour("--soft-no");
  for (const [begin, end] of bands) {
    const start = Math.max(x(begin), left);
    pen.fillRect(start, top, Math.max(1.5, Math.min(x(end), width - right) - start), height - top - bottom);
  }
  pen.strokeStyle = colour("--line");
  pen.fillStyle = colour("--quiet");
  pen.lineWidth = 1;
  const step = niceStep(high - low, Math.max(2, height / 60));
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) {
    pen.beginPath();
    pen.moveTo(left, y(value));
    pen.lineTo(width - right, y(value));
    pen.stroke();
    pen.fillText(`${+value.toPrecision(6)}${unit}`, left - 6, y(value));
  }
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  const marks = Math.max(2, Math.floor(width / 140));
  for (let i = 0; i <= marks; i++) {
    const time = from + ((to - from) * i) / marks;
    const place = Math.min(Math.max(x(time), left + 20), width - right - 26);
    pen.fillText(clock(time, to - from), place, height - 6);
  }
  if (level !== null) {
    pen.setLineDash([6, 5]);
    pen.strokeStyle = colour("--quiet");
    pen.beginPath();
    pen.moveTo(left, y(level));
    pen.lineTo(width - right, y(level));
    pen.stroke();
    pen.setLineDash([]);
  }
  pen.save();
  pen.beginPath();
  pen.rect(left, 0, width - left - right, height);
  pen.clip();
  for (const line of lines) {
    pen.strokeStyle = line.colour;
    pen.lineWidth = 1.7;
    pen.lineJoin = "round";
    pen.beginPath();
    let drawing = false;
    for (const [time, value] of line.points) {
      if (value == null) { drawing = false; continue; }
      if (drawing) pen.lineTo(x(time), y(value));
      else pen.moveTo(x(time), y(value));
      drawing = true;
    }
    pen.stroke();
  }
  for (const [time, value, fill] of dots) {
    pen.fillStyle = fill;
    pen.beginPath();
    pen.arc(x(time), y(value), 3, 0, 7);
    pen.fill();
  }
  pen.restore();
}

// Stretches of time during which `raised` holds, out of [time, raised] pairs.
function stretches(pairs, gap) {
  const found = [];
  let begin = null, last = null;
  for (const [time, raised] of pairs) {
    if (begin !== null && (!raised || time - last > gap)) { found.push([begin, raised ? last : time]); begin = null; }
    if (raised && begin === null) begin = time;
    last = time;
  }
  if (begin !== null) found.push([begin, last + gap / 3]);
  return found;
}
