// One pair in full: what is said of its vote, its treatment and its truth.

import assert from "node:assert/strict";
import { test } from "node:test";

import { content, putIndex } from "./document.js";
import { index, unpackIndex } from "../../models/reporting/static/audit/data.js";
import {
  decision,
  known,
  pairNodes,
  reasons,
  strip,
} from "../../models/reporting/static/audit/pair.js";

putIndex({
  strength: [-0.5, 1, 2],
  deviation: [0.25, 0.5, 0.5],
  flags: [1 + 4 + 16 + 128, 2, 0],
  splits: ["train", "test"],
  split: [0, 1, 0],
});
await unpackIndex();

test("what relabelling did", () => {
  for (const [row, values, told] of [
    [0, { label: 0.9, margin: -1.5 }, "Relabelling: flipped, label 0.90, margin −1.50."],
    [2, {}, "Relabelling: kept, label 1.00, margin +0.00."],
    [0, { weight: 0, review: "drop" }, "Relabelling: dropped by review, label 1.00, margin +0.00."],
    [2, { weight: 0.25 }, "Relabelling: kept, label 1.00, margin +0.00, weight 0.25."],
    [2, { review: "unsure" }, "Relabelling: kept, label 1.00, margin +0.00."],
    [1, {}, "Held out: not relabelled. A verdict on it is noted, and changes nothing."],
  ])
    assert.equal(decision(row, content(values)), told);
});

test("people's votes and the truth, where they are known", () => {
  assert.deepEqual(known(content()), []);
  assert.deepEqual(
    known(
      content({ votes: { chosen: 3, rejected: 1 }, truth: { is_wrong: true, kind: "flipped" } }),
    ),
    [
      "People's votes: 3 for the label, 1 against, 0 undecided.",
      "Truth: the label is wrong (a flip).",
    ],
  );
  assert.deepEqual(known(content({ truth: { is_wrong: false, kind: "ambiguous" } })), [
    "Truth: the label is right (a near-tie).",
  ]);
});

test("why a label may be doubted, besides the votes", () => {
  const said = (row, values) =>
    reasons(row, content(values)).flatMap((list) => list.children.map((item) => item.textContent));
  assert.deepEqual(said(2, {}), []);
  assert.deepEqual(
    said(0, { chosen: "no", rejected: "a longer one", repeats: ["x"], contradicts: ["y", "z"] }),
    [
      "Contradiction: pair y, z has the same two answers, labelled the other way round.",
      "Repeat: pair x is the same, labelled alike.",
      "Length: the answer labelled worse is the longer one (3 words, the other 1), so a model that " +
        "only prefers length would vote alike.",
    ],
  );
});

test("where a pair was read from is a tag", () => {
  const tags = pairNodes(1, content({ source: "mine.jsonl:7" }))[0].children;
  assert.equal(tags.at(-1).textContent, "mine.jsonl:7");
});

test("votes stand on one scale, which ends at its reach", () => {
  // Reach 2 is 190 units to either side of 208.
  const [picture, words] = strip(0, content({ differences: [1, -4, null, -1] }));
  const dots = picture
    .all("circle")
    .map(({ attributes }) => [Number(attributes.cx), attributes.fill]);
  assert.deepEqual(dots, [
    [303, "#0072b2"],
    [18, "#d55e00"],
    [113, "#d55e00"],
  ]);
  const said =
    "Votes of 3 members: +1.00, −4.00, −1.00; mean −0.50, deviation 0.25; 2 against the label";
  assert.equal(picture.attributes["aria-label"], said);
  assert.equal(words.textContent, `${said}; 1 were trained on it and have no vote.`);
});

test("voters of different kinds are named, and those without a vote", () => {
  index.voters = ["style", "judge fair", "judge mute"];
  const words = (differences) => strip(0, content({ differences }))[1].textContent;
  assert.equal(
    words([1, -4, null]),
    "Votes of 2 members: style +1.00, judge fair −4.00; together −0.50, deviation 0.25; " +
      "1 against the label; no vote by judge mute.",
  );
  assert.ok(words([1, null, null]).endsWith("no vote by judge fair, judge mute."));
  assert.ok(words([1, 1, 1]).endsWith("0 against the label."));
  delete index.voters;
});

test("tags warn of what looks wrong", () => {
  const tags = (row) =>
    pairNodes(row, content())[0].children.map((tag) => [tag.textContent, tag.className]);
  assert.deepEqual(tags(0).slice(0, 4), [
    ["strength −0.50", "tag worse"],
    ["deviation 0.25", "tag"],
    ["looks wrong", "tag worse"],
    ["⚠ flipped, and no member supports it", "tag worse"],
  ]);
  assert.deepEqual(
    tags(1).map(([text]) => text),
    [
      "strength +1.00",
      "deviation 0.50",
      "agrees with the label",
      "members disagree",
      "test",
      "a",
      "p1",
    ],
  );
});

test("of a long prompt the end is shown, until it is unfolded", async () => {
  const nodes = (prompt) => pairNodes(2, content({ prompt }));
  assert.equal(nodes("x".repeat(900)).filter((node) => node.localName === "button").length, 0);
  const [, box, fold] = nodes("x".repeat(1200));
  box.scrollHeight = 500;
  await Promise.resolve();
  assert.deepEqual([box.classList.contains("folded"), box.scrollTop], [true, 500]);
  assert.deepEqual([fold.textContent, fold.ariaExpanded], ["Unfold all 1,200 characters", "false"]);
  fold.click();
  assert.deepEqual([box.classList.contains("folded"), fold.textContent], [false, "Fold"]);
});

test("answers say how many words they have, and mark those that differ", () => {
  const [, , sides] = pairNodes(2, content({ chosen: "the red car", rejected: "the blue car" }));
  assert.deepEqual(
    sides.children.map((side) => [side.className, side.children[0].textContent]),
    [
      ["chosen", "labelled better (3 words)"],
      ["rejected", "labelled worse (3 words)"],
    ],
  );
  assert.deepEqual(
    sides.all("mark").map((mark) => mark.textContent),
    ["red", "blue"],
  );
});
