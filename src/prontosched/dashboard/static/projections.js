"use strict";
// Projections and their spikes: live from events, older ones from the decision log, as ranges.
// A track is {time, seconds, low, high, up, down, begun}: one moment, or a stretch of `seconds`.

let tracks = []; // the last minutes
let signs = []; // a direction and its opposite are the same: the largest metric is shown to go up

const POLLED = 8; // seconds that one answer stands for where there is no event per timestep

function trackOf(event, seconds = 0) {
  if (!event.projections || !event.projections.length) return null;
  const spikes = event.spikes ?? [];
  return { time: event.time, seconds, low: event.projections, high: event.projections, begun: event.begun ?? [],
           up: spikes.map((spike) => +(spike > 0)), down: spikes.map((spike) => +(spike < 0)) };
}

const trackOfPast = (point) => point.projections_low && { time: point.time, seconds: point.seconds, steps: point.timesteps,
  low: point.projections_low, high: point.projections_high, up: point.spikes_up, down: point.spikes_down, begun: point.begun };

// One direction of a track, turned the way it is shown; null where there was no such direction.
function along(track, i) {
  const low = track.low[i], high = track.high[i], up = track.up[i] ?? 0, down = track.down[i] ?? 0;
  if (low == null || high == null) return null;
  return (signs[i] ?? 1) > 0 ? { low, high, up, down } : { low: -high, high: -low, up: down, down: up };
}

// Of many nodes the log has no projections: then the last minutes are shown, whatever the range.
const lately = () => range === LIVE || !everyDecision;

function trackShown() {
  if (lately()) return live(tracks);
  return { ...shown(), points: past.map(trackOfPast).filter(Boolean) };
}

const drawProjections = drawer(() => {
  const { from, to, points } = trackShown();
  const rank = points.length ? points[points.length - 1].low.length : 0;
  const lanes = [];
  let spikes = 0;
  for (let i = 0; i < rank; i++) {
    const own = points.map((track) => [track, along(track, i)]);
    const ribbon = own.map(([track, at]) => [track.time, at && at.low, track.seconds, at && at.high, track.begun[i] || track.low.length !== rank]);
    const hit = own.filter(([, at]) => at && (at.up || at.down));
    spikes += hit.reduce((sum, [, at]) => sum + at.up + at.down, 0);
    const share = ([track, at], count) => [track.time, track.seconds, count / (track.steps || 1)];
    lanes.push({ name: String(i + 1), lines: [], ribbon, colour: colour(`--d${(i % 6) + 1}`), ...(lately()
      ? { spikes: hit.flatMap(([track, at]) => [...(at.up ? [[track.time, at.high, 1]] : []), ...(at.down ? [[track.time, at.low, -1]] : [])]) }
      : { above: hit.filter(([, at]) => at.up).map((one) => share(one, one[1].up)), below: hit.filter(([, at]) => at.down).map((one) => share(one, one[1].down)) }) });
  }
  const empty = lately() ? "Warming up: no directions yet." : "No projections on record for this time.";
  projectionChart.show({ lanes: lanes.length ? lanes : [{ lines: [], name: "" }], empty, from, to, gap: gap() });
  put("projections-key", !everyDecision ? "mark spikes. Of so many nodes only the last minutes are known." : range === LIVE ? "mark spikes: leaving the recent range." : "mark spikes up and down, stronger where there were more. Bands are from lowest to highest.");
  $("projections-key").parentElement.classList.toggle("long", !lately());
  const text = rank ? `${some(rank, "projection")} over ${lasting(to - Math.max(from, points[0].time))}, ${some(spikes, "spike")}.` : empty;
  $("projections-chart").setAttribute("aria-label", `${text} Arrow keys read single moments.`);
});

function tellProjections(time) {
  const { points, from, to } = trackShown();
  const track = nearest(points, time);
  if (!track) return null;
  const words = track.low.map((_, i) => {
    const at = along(track, i);
    if (!at) return `${i + 1}: –`;
    const one = track.seconds === 0 || at.high - at.low < 0.05;
    const value = one ? number(at.high, 1) : `${number(at.low, 1)} to ${number(at.high, 1)}`;
    const single = at.up + at.down === 1 && (track.steps ?? 1) === 1;
    const spike = single ? ` (spike ${at.up ? "up" : "down"})` : at.up + at.down ? ` (${some(at.up + at.down, "spike")})` : "";
    return `${i + 1}: ${value}${track.begun[i] ? " new" : ""}${spike}`;
  });
  return [track.time, `${moment(track.time, to - from)}  ${words.join("   ")}`];
}

const projectionChart = new Chart("projections-chart", tellProjections);
