"use strict";
// What both pages need: asking the agent, following its stream, showing values as text.

const $ = (id) => document.getElementById(id);

// Only ever text: names of metrics and nodes come from machines and may hold anything.
function put(id, text) {
  const element = $(id);
  if (element.textContent !== text) element.textContent = text;
}

// The states of a node, as /v1 names them: their words, classes and signs. Green is for accepting alone.
const STATES = {
  accepting: { word: "Accepting jobs", kind: "accept", sign: "✓" },
  contended: { word: "Contended", kind: "contended", sign: "!" },
  refusing: { word: "Refusing jobs", kind: "refuse", sign: "✗" },
};
const LETTERS = { a: "accepting", c: "contended", r: "refusing" }; // of a map of many nodes

// Give the head of the page, the logo and the tab the look of a state; an unknown one is grey.
function showLook(kind, state) {
  document.querySelector(".hero").className = `card hero ${kind}`;
  const icon = `/static/icon${state ? `-${state}` : ""}.svg`;
  for (const [element, name] of [[$("logo"), "src"], [$("favicon"), "href"]]) {
    if (element.getAttribute(name) !== icon) element.setAttribute(name, icon);
  }
}

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

// A share that is there is never shown as none.
const percent = (value, digits = 0) => (value == null ? "–" : value > 0 && 100 * value < 0.5 * 10 ** -digits ? `< ${10 ** -digits} %` : `${(100 * value).toFixed(digits)} %`);
const number = (value, digits = 1) => (value == null ? "–" : value.toFixed(digits));
const ready = (value) => (value == null ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} %`);
const count = (value) => value.toLocaleString("en");
const some = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

function lasting(seconds) {
  if (seconds == null || !isFinite(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 90) return `${s} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 129600) return `${+(s / 3600).toFixed(1)} h`;
  return `${+(s / 86400).toFixed(1)} days`;
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB"];
  let i = 0;
  while (value >= 1000 && i < units.length - 1) { value /= 1000; i++; }
  return `${value < 10 && i ? value.toFixed(1) : Math.round(value)} ${units[i]}`;
}

// A name and its share, with a bar as long as the share is beside the largest one.
function bar(name, share, most, shown = percent(share), className = "") {
  const row = make("div", undefined, `bar ${className}`);
  const length = make("span", undefined, "length");
  length.style.setProperty("width", `${Math.min(100, 100 * (share ?? 0) / (most || 1))}%`);
  const rail = make("span", undefined, "rail");
  rail.append(length);
  const words = make("span", undefined, "name");
  // Long names break where their words do.
  name.split(/(?<=[_./:-])/).forEach((word, i) => words.append(...(i ? [make("wbr"), word] : [word])));
  row.append(words, make("span", shown, "value"), rail);
  return row;
}

async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" }, cache: "no-store" });
  if (!answer.ok) {
    const error = new Error(`${path}: ${answer.status}`);
    error.status = answer.status;
    throw error;
  }
  heard = performance.now();
  return answer.json();
}

// Calls `every` with each event of the stream, and `lost` each second in which the agent is silent;
// the browser reconnects by itself.
let heard = performance.now();

function follow(every, lost, patience) {
  const link = $("link");
  const say = (text, kind) => { put("link", text); link.className = `pill ${kind}`; };
  const source = new EventSource("/v1/stream");
  source.onmessage = (message) => { heard = performance.now(); say("live", "live"); every(JSON.parse(message.data)); };
  source.onerror = () => {
    say("lost, trying again", "lost");
    // A refusal (rather than a broken line) ends it for the browser: begin anew.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => { source.close(); follow(every, lost, patience); }, 5000);
  };
  const timer = setInterval(() => {
    if (source.readyState === EventSource.CLOSED) clearInterval(timer);
    const silent = (performance.now() - heard) / 1000;
    if (silent > patience()) { say("no answer", "lost"); lost(silent); }
  }, 1000);
}

let palette = new Map();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { palette = new Map(); });

function colour(name) {
  if (!palette.has(name)) palette.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return palette.get(name);
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

// Fill an element anew without taking the keyboard's place away.
function refill(element, children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  element.replaceChildren(...children);
  if (focused === undefined) return;
  for (const one of element.querySelectorAll("[data-key]")) if (one.dataset.key === focused) one.focus();
}

function nodeLink(name) {
  const link = make("a", name);
  link.href = `/?node=${encodeURIComponent(name)}`;
  link.dataset.key = name;
  return link;
}

function redrawn(...draws) {
  const all = () => draws.forEach((draw) => draw());
  new ResizeObserver(all).observe(document.querySelector("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
}
