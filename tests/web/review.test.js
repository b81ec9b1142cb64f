// A person's verdicts: taken back, kept, downloaded, taken up again.

import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { content, putData, putIndex, Storage } from "./document.js";
import { $, unpackIndex } from "../../models/reporting/static/audit/data.js";
import { choose, fillSelects, showPair } from "../../models/reporting/static/audit/choose.js";
import { makeScale } from "../../models/reporting/static/audit/histogram.js";
import {
  decide,
  download,
  makeVerdicts,
  restoreReviews,
  reviews,
  takeUp,
  writeNote,
} from "../../models/reporting/static/audit/review.js";

putIndex({
  ids: ["weak", "torn", "odd", "good"],
  strength: [-2, -1, -1, 3],
  flags: [1, 1, 1, 0],
});
putData(
  "block-0",
  Array.from({ length: 4 }, () => content()),
);
await unpackIndex();
fillSelects();
makeVerdicts();
makeScale();
choose();

beforeEach(async () => {
  reviews.clear();
  globalThis.window = { localStorage: new Storage() };
  restoreReviews();
  await showPair(0);
});

async function downloaded() {
  let blob;
  URL.createObjectURL = (given) => {
    blob = given;
    return "data:,";
  };
  mock.timers.enable({ apis: ["setTimeout"] });
  download();
  mock.timers.tick(60000); // the address is given back
  mock.timers.reset();
  return blob.text();
}

test("the same verdict again changes nothing, another replaces it and leaves the note, none takes it back", async () => {
  decide("flip");
  assert.deepEqual([...reviews], [["weak", { verdict: "flip", note: "" }]]);
  assert.deepEqual(
    [$("verdict-flip").ariaPressed, $("verdict-keep").ariaPressed],
    ["true", "false"],
  );
  $("note").value = "sure";
  writeNote();
  decide("keep");
  assert.deepEqual(reviews.get("weak"), { verdict: "keep", note: "sure" });
  decide("keep");
  assert.deepEqual(reviews.get("weak"), { verdict: "keep", note: "sure" });
  decide(null);
  assert.equal(reviews.size, 0);
  assert.ok($("note").disabled && $("download").disabled);
});

test("a note waits for a verdict", () => {
  $("note").value = "lost";
  writeNote();
  assert.equal(reviews.size, 0);
});

test("progress counts how often a person agrees that what looks wrong is wrong", async () => {
  // The last does not look wrong: it counts for nothing.
  for (const [place, verdict] of ["flip", "keep", "flip", "flip"].entries()) {
    await showPair(place);
    decide(verdict);
  }
  assert.equal(
    $("progress").textContent,
    "4 of 4 pairs reviewed: 1 keep, 3 flip, 0 drop, 0 unsure. " +
      "Of 3 that look wrong and that you keep or flip, you flip 2 (67 %).",
  );
});

test("verdicts are kept in the browser, by the digest of the pairs", () => {
  decide("unsure");
  const kept = window.localStorage.getItem("trimtab-review-d");
  assert.deepEqual(JSON.parse(kept), [["weak", { verdict: "unsure", note: "" }]]);
  reviews.clear();
  window.localStorage.setItem(
    "trimtab-review-d",
    JSON.stringify([
      ["weak", { verdict: "drop", note: "n" }],
      ["elsewhere", { verdict: "keep" }],
    ]),
  );
  restoreReviews();
  assert.deepEqual([...reviews], [["weak", { verdict: "drop", note: "n" }]]);
});

test("a window without storage, and one that is full, say what to do", () => {
  window.localStorage.setItem = () => {
    throw new Error("full");
  };
  decide("keep");
  assert.match($("storage").textContent, /full: download the review now/);
  assert.equal(reviews.size, 1);
  globalThis.window = {
    get localStorage() {
      throw new Error("forbidden");
    },
  };
  restoreReviews();
  assert.match($("storage").textContent, /may keep nothing/);
  decide(null); // it works on without
  assert.equal(reviews.size, 0);
});

test("a downloaded review has a line a verdict, weakest pair first", async () => {
  reviews.set("good", { verdict: "keep", note: "" });
  reviews.set("weak", { verdict: "flip", note: 'says "x" \u2028 twice' });
  assert.equal(
    await downloaded(),
    '{"id":"weak","verdict":"flip","note":"says \\"x\\" \u2028 twice"}\n' +
      '{"id":"good","verdict":"keep","note":null}\n',
  );
});

test("what was downloaded is taken up again, and what is no verdict on a pair left out", async () => {
  reviews.set("torn", { verdict: "drop", note: "n" });
  const lines = await downloaded();
  reviews.clear();
  reviews.set("good", { verdict: "keep", note: "stays" });
  const wrong = [
    '{"id": "elsewhere", "verdict": "keep"}',
    '{"id": "weak", "verdict": "burn"}',
    "{",
    "7",
  ];
  await takeUp(new Blob([lines, "\n", ...wrong.map((line) => `${line}\n`)]));
  assert.deepEqual(
    [...reviews],
    [
      ["good", { verdict: "keep", note: "stays" }],
      ["torn", { verdict: "drop", note: "n" }],
    ],
  );
  assert.equal(
    $("storage").textContent,
    "1 verdicts taken up; left out, as no verdict on a pair of this page: 4.",
  );
});
