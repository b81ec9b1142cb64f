// The histogram of strength, on which a range is picked.

import { $, counted, decimals, drawn, index, signed } from "./data.js";
import { choose, passing } from "./choose.js";

const NUM_BARS = 60;
export const range = { low: -Infinity, high: Infinity };
export const inRange = (row) => index.strength[row] >= range.low && index.strength[row] <= range.high;
let scale;

// 1, 2 or 5 times a power of ten, so that `size` holds about `number` steps.
export function niceStep(size, number) {
  const rough = size / number, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((each) => each * power >= rough);
}

// Bars from the outermost half percent of strengths to the other; 0 stands between two bars.
export function makeScale() {
  const all = index.strength, last = all.length - 1;
  let low = all[Math.floor(0.005 * last)], high = all[Math.ceil(0.995 * last)];
  if (low === high) { low -= 0.5; high += 0.5; }
  const step = (high - low) / NUM_BARS, first = Math.floor(low / step);
  scale = { step, first, number: Math.floor(high / step) - first + 1 };
}

export function barCounts(rows) {
  const counts = new Uint32Array(scale.number);
  for (const row of rows) {
    const bar = Math.floor(index.strength[row] / scale.step) - scale.first;
    counts[Math.max(0, Math.min(scale.number - 1, bar))]++;
  }
  return counts;
}

export function drawHistogram() {
  const rows = passing;
  const width = Math.max(280, $("histogram").clientWidth), height = 170;
  const left = 56, right = 8, top = 8, bottom = 38;
  const low = scale.first * scale.step, high = low + scale.number * scale.step;
  const x = (value) => left + (width - left - right) * (value - low) / (high - low);
  const counts = barCounts(rows), most = Math.max(1, ...counts);
  const y = (number) => height - bottom - (height - top - bottom) * number / most;
  const picture = drawn("svg", {
    viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": `Strength of ${counted(rows.length)} pairs; the range can be typed below`,
  });
  counts.forEach((number, bar) => {
    const from = (scale.first + bar) * scale.step, at = x(from);
    if (number) picture.append(drawn("rect", {
      x: at, width: Math.max(1, x(from + scale.step) - at - 0.5), y: y(number),
      height: height - bottom - y(number), fill: from + scale.step / 2 < 0 ? "#d55e00" : "#0072b2",
    }));
  });
  picture.append(
    drawn("line", { x1: left, x2: width - right, y1: y(0), y2: y(0), stroke: "#767676" }),
    drawn("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" },
      index.voters?.length
        ? "strength (log-odds that the label is as given)"
        : "strength (mean score difference over the members)"),
    drawn("text", { x: left - 6, y: y(most) + 9, "text-anchor": "end" }, counted(most)),
    drawn("text", { x: left - 6, y: y(0), "text-anchor": "end" }, "0"),
    drawn("text", { x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle",
      transform: `rotate(-90 12 ${(top + height - bottom) / 2})` }, "pairs per bar"));
  const tick = niceStep(high - low, width / 90);
  const digits = Math.max(0, -Math.floor(Math.log10(tick)));
  for (let at = Math.ceil(low / tick); at * tick <= high; at++) {
    const value = at ? signed(at * tick, digits) : "0";
    picture.append(
      drawn("line", { x1: x(at * tick), x2: x(at * tick), y1: at ? y(0) : top, y2: y(0) + 4,
        stroke: "#767676", ...(at ? {} : { "stroke-dasharray": "3 3" }) }),
      drawn("text", { x: x(at * tick), y: y(0) + 17, "text-anchor": "middle" }, value));
  }
  const shade = drawn("rect", { y: top, height: height - top - bottom, fill: "currentColor",
    "fill-opacity": 0.14 });
  const cover = (from, to) => {
    const start = x(Math.max(from, low)), end = x(Math.min(to, high));
    shade.setAttribute("x", start);
    shade.setAttribute("width", Math.max(0, end - start));
  };
  if (range.low > -Infinity || range.high < Infinity) cover(range.low, range.high);
  picture.append(shade);
  pickRange(picture, cover, (event) => low + (high - low) * Math.max(0, Math.min(1,
    (event.clientX - picture.getBoundingClientRect().left - left) / (width - left - right))));
  $("histogram").replaceChildren(picture);
}

// Dragging picks a range, a click all pairs. At the ends a range takes in what lies beyond.
function pickRange(picture, cover, valueAt) {
  let start = null;
  picture.addEventListener("pointerdown", (event) => {
    start = { x: event.clientX, value: valueAt(event) };
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    if (start) cover(...[start.value, valueAt(event)].sort((one, other) => one - other));
  });
  picture.addEventListener("pointerup", (event) => {
    if (!start) return;
    const ends = [start.value, valueAt(event)].sort((one, other) => one - other);
    const moved = Math.abs(event.clientX - start.x) > 4;
    const least = scale.first * scale.step, most = least + scale.number * scale.step;
    setRange(moved && ends[0] > least ? ends[0] : -Infinity,
      moved && ends[1] < most ? ends[1] : Infinity);
    start = null;
  });
  picture.addEventListener("pointercancel", () => { start = null; });
}

export function setRange(low, high) {
  Object.assign(range, { low, high });
  $("low").value = Number.isFinite(low) ? low.toFixed(decimals()) : "";
  $("high").value = Number.isFinite(high) ? high.toFixed(decimals()) : "";
  choose();
}
