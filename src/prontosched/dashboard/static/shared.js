"use strict";
// What both pages need: asking the agent, following its stream, showing values as text.

const $ = (id) => document.getElementById(id);

// Only ever text: names of metrics and nodes come from machines and may hold anything.
function put(id, text) {
  const element = $(id);
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

const percent = (value, digits = 0) => (value == null ? "–" : `${(100 * value).toFixed(digits)} %`);
const number = (value, digits = 1) => (value == null ? "–" : value.toFixed(digits));
const ready = (value) => (value == null ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} %`);

function lasting(seconds) {
  if (seconds == null || !isFinite(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 90) return `${s} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 129600) return `${(s / 3600).toFixed(1)} h`;
  return `${(s / 86400).toFixed(1)} d`;
}

async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" }, cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

// Call `every` with each event of the stream; the browser reconnects by itself.
function follow(every) {
  const link = $("link");
  const source = new EventSource("/v1/stream");
  source.onopen = () => { link.textContent = "live"; link.className = "pill live"; };
  source.onerror = () => { link.textContent = "lost, trying again"; link.className = "pill lost"; };
  source.onmessage = (message) => every(JSON.parse(message.data));
  return source;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// At most one drawing per frame, and none while nobody looks.
function drawer(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  };
}
