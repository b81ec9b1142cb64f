// The histogram of strength: bars, ticks, and the range that is dragged.

import assert from "node:assert/strict";
import { test } from "node:test";

import { content, happen, putData, putIndex } from "./document.js";
import { $, unpackIndex } from "../../models/reporting/static/audit/data.js";
import {
  barCounts,
  drawHistogram,
  inRange,
  makeScale,
  niceStep,
  range,
  setRange,
} from "../../models/reporting/static/audit/histogram.js";
import { choose, fillSelects, shown } from "../../models/reporting/static/audit/choose.js";
import { makeVerdicts } from "../../models/reporting/static/audit/review.js";

const indexOf = async (strength) => {
  putIndex({ strength });
  putData(
    "block-0",
    strength.map(() => content()),
  );
  await unpackIndex();
  makeScale();
};
const bars = (rows) =>
  Object.fromEntries([...barCounts(rows).entries()].filter(([, each]) => each));

test("steps are 1, 2 or 5 times a power of ten", () => {
  for (const [size, number, step] of [
    [10, 4, 5],
    [60, 10, 10],
    [200, 100, 2],
    [1, 10, 0.1],
    [7, 7, 1],
  ]) {
    assert.equal(niceStep(size, number), step);
  }
});

test("0 stands between two bars", async () => {
  await indexOf([-30, -0.5, 0, 0.5, 1, 30]); // a bar is 1 wide, the first from -30
  assert.equal(barCounts([]).length, 61);
  assert.deepEqual(bars([0, 1, 2, 3, 4, 5]), { 0: 1, 29: 1, 30: 2, 31: 1, 60: 1 });
  assert.deepEqual(bars([2]), { 30: 1 });
});

test("the outermost half percent is in the outermost bars", async () => {
  const middle = Array.from({ length: 199 }, (_, at) => ((at - 99) * 30) / 99);
  await indexOf([-5000, ...middle, 9000]);
  const counts = barCounts([...Array(201).keys()]);
  assert.equal(counts.length, 61);
  assert.equal(counts[0], 1 + 4); // -5000; then from -30 to below -29, 30/99 apart
  assert.equal(counts[60], 1 + 1); // 30 and 9000
  assert.equal(
    counts.reduce((sum, each) => sum + each),
    201,
  );
});

test("pairs of one strength have a scale too", async () => {
  await indexOf([2, 2, 2]);
  assert.deepEqual(Object.values(bars([0, 1, 2])), [3]);
});

test("a range has both its ends", async () => {
  await indexOf([-1, 0, 1, 2]);
  Object.assign(range, { low: -1, high: 1 });
  assert.deepEqual([0, 1, 2, 3].map(inRange), [true, true, true, false]);
  Object.assign(range, { low: -Infinity, high: Infinity });
  assert.ok([0, 1, 2, 3].every(inRange));
});

// A bar is 1 wide: 61 of them, from -30 to 31, on 216 of the picture's 280 units, from 56 on.
const at = (value) => 56 + (216 * (value + 30)) / 61;

async function picture() {
  await indexOf([-30, -0.5, 0, 0.5, 1, 30]);
  $("kind").value = $("mine").value = "any";
  $("category").value = $("split").value = "";
  fillSelects();
  makeVerdicts();
  choose();
  return $("histogram").children[0];
}
const drag = (from, to) => {
  const svg = $("histogram").children[0];
  happen(svg, "pointerdown", { clientX: at(from) });
  happen(svg, "pointermove", { clientX: at(to) });
  happen(svg, "pointerup", { clientX: at(to) });
};

test("bars are as high as their pairs are many, and coloured by the side of 0", async () => {
  const drawn = (await picture()).all("rect").map((rect) => rect.attributes);
  const shade = drawn.pop();
  assert.equal(shade["fill-opacity"], "0.14");
  assert.deepEqual(
    drawn.map((bar) => [Number(bar.height), bar.fill]),
    [
      [62, "#d55e00"],
      [62, "#d55e00"],
      [124, "#0072b2"],
      [62, "#0072b2"],
      [62, "#0072b2"],
    ],
  );
  assert.ok(Math.abs(Number(drawn[2].x) - at(0)) < 1e-9);
  assert.match($("histogram").children[0].attributes["aria-label"], /^Strength of 6 pairs;/);
});

test("dragging picks a range, either way; a click all pairs; the ends take in what is beyond", async () => {
  await picture();
  drag(-10, 20.25);
  assert.ok(Math.abs(range.low + 10) < 1e-9 && Math.abs(range.high - 20.25) < 1e-9);
  assert.deepEqual([$("low").value, $("high").value], ["-10.00", "20.25"]);
  assert.deepEqual(shown, [1, 2, 3, 4]);
  drag(0.75, -40);
  assert.deepEqual([range.low, shown, $("low").value], [-Infinity, [0, 1, 2, 3], ""]);
  drag(0.25, 40);
  assert.deepEqual([range.high, shown, $("high").value], [Infinity, [3, 4, 5], ""]);
  drag(5, 5);
  assert.deepEqual([range.low, range.high, shown.length], [-Infinity, Infinity, 6]);
  setRange(0, 0.5);
  assert.deepEqual(shown, [2, 3]);
  drawHistogram();
  const shade = $("histogram").children[0].all("rect").at(-1).attributes;
  assert.ok(Math.abs(Number(shade.x) - at(0)) < 1e-9);
  assert.ok(Math.abs(Number(shade.width) - (216 * 0.5) / 61) < 1e-9);
});
