// Which pairs are shown: filters and search.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { content, putData, putIndex, until } from "./document.js";
import { $, unpackIndex } from "../../models/reporting/static/audit/data.js";
import {
  choose,
  fillSelects,
  position,
  search,
  showPair,
  shown,
} from "../../models/reporting/static/audit/choose.js";
import { makeScale, setRange } from "../../models/reporting/static/audit/histogram.js";
import { makeVerdicts, reviews } from "../../models/reporting/static/audit/review.js";

// Looks wrong 1, disputed 2, flipped 4, smoothed 8, no member supports the flip 16, repeated 32,
// contradicted 64, explained by length 128, divided votes 256.
const INDEX = {
  ids: ["weak", "long", "torn", "good", "b.1"],
  strength: [-2, -1, 0, 3, 3],
  flags: [1 + 4 + 16 + 128, 1 + 2, 32, 8 + 64, 256],
  deviation: [1, 0, 2, 2, 0],
  order: [3, 0, 4, 1, 2],
  categories: ["a", "b"],
  category: [0, 0, 1, 1, 1],
  splits: ["train", "test"],
  split: [0, 0, 1, 0, 0],
  block_size: 2,
};
const ANY = {
  category: "",
  split: "",
  kind: "any",
  fact: "any",
  mine: "any",
  order: "weakest first",
};
const chosen = (values) => {
  for (const [id, value] of Object.entries({ ...ANY, ...values })) $(id).value = value;
  choose();
  return [...shown];
};

putIndex(INDEX);
putData("block-0", [content({ chosen: "Needle (one)" }), content()]);
putData("block-1", [content({ prompt: "a needle" }), content({ rejected: "a+b" })]);
putData("block-2", [content()]);
await unpackIndex();
fillSelects();
makeVerdicts();
makeScale();

beforeEach(async () => {
  reviews.clear();
  setRange(-Infinity, Infinity);
  await search("");
  chosen({});
});

test("what can be chosen is counted", () => {
  const options = (id) => $(id).children.map((option) => option.textContent);
  assert.deepEqual(options("category"), ["all (5)", "a (2)", "b (3)"]);
  assert.deepEqual(options("split"), ["all (5)", "train (4)", "test (1)"]);
  assert.deepEqual(options("kind"), [
    "any (5)",
    "agrees with the label (3)",
    "contradicts it: looks wrong (2)",
    "uncertain: members disagree (1)",
    "flipped by relabelling (1)",
    "flipped, and no member supports it (1)",
    "smoothed by relabelling (1)",
  ]);
});

test("each filter by hand, and several together", () => {
  reviews.set("weak", { verdict: "flip", note: "" });
  reviews.set("torn", { verdict: "keep", note: "" });
  for (const [values, rows] of [
    [{}, [0, 1, 2, 3, 4]],
    [{ category: "0" }, [0, 1]],
    [{ split: "1" }, [2]],
    [{ kind: "agrees with the label" }, [2, 3, 4]],
    [{ kind: "contradicts it: looks wrong" }, [0, 1]],
    [{ kind: "uncertain: members disagree" }, [1]],
    [{ kind: "flipped by relabelling" }, [0]],
    [{ kind: "flipped, and no member supports it" }, [0]],
    [{ kind: "smoothed by relabelling" }, [3]],
    [{ fact: "looks wrong, and length explains it" }, [0]],
    [{ fact: "looks wrong, and length does not explain it" }, [1]],
    [{ fact: "repeats another pair" }, [2]],
    [{ fact: "contradicts another pair" }, [3]],
    [{ fact: "people's votes were divided" }, [4]],
    [{ mine: "reviewed" }, [0, 2]],
    [{ mine: "not reviewed" }, [1, 3, 4]],
    [{ mine: "flip" }, [0]],
    [{ mine: "drop" }, []],
    [{ category: "1", split: "0", mine: "not reviewed" }, [3, 4]],
  ])
    assert.deepEqual(chosen(values), rows, JSON.stringify(values));
});

test("what passes can be put into another order", () => {
  for (const [order, rows] of [
    ["training pairs, weakest first", [0, 1, 3, 4, 2]],
    ["weakest first", [0, 1, 2, 3, 4]],
    ["strongest first", [3, 4, 2, 1, 0]],
    ["members disagree most", [2, 3, 0, 1, 4]],
    ["as read", [1, 3, 4, 0, 2]],
  ])
    assert.deepEqual(chosen({ order }), rows, order);
});

test("training pairs come first, as only of these does a verdict change anything", () => {
  assert.equal($("order").children[0].textContent, "training pairs, weakest first");
});

test("where nothing passes the page says so", () => {
  chosen({ mine: "drop" });
  assert.equal($("place").textContent, "No pair passes these filters.");
  assert.ok($("actions").hidden);
  assert.equal($("count").textContent, "0 of 5 pairs");
});

test("the pair in view stays where it still passes", async () => {
  await showPair(3);
  chosen({ category: "1" });
  assert.deepEqual([shown[position], position], [3, 1]);
  await until(() => $("place").textContent === "Pair 2 of 3");
  chosen({ category: "0" });
  assert.equal(position, 0);
});

test("search goes through prompts, answers and ids of all blocks, as plain text", async () => {
  for (const [text, rows] of [
    ["NEEDLE", [0, 2]],
    ["(", [0]],
    ["a+b", [3]],
    ["b.1", [4]],
    ["b-1", []],
    ["", [0, 1, 2, 3, 4]],
  ]) {
    await search(text);
    assert.deepEqual([...shown], rows, text);
  }
});

test("a newer search ends the one before", async () => {
  const older = search("needle");
  await search("");
  await older;
  assert.deepEqual([...shown], [0, 1, 2, 3, 4]);
});
