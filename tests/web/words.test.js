// Marks of the words by which two answers differ.

import assert from "node:assert/strict";
import { test } from "node:test";

import "./document.js";
import { cleaned, marked, runsOf, wordsOf } from "../../models/reporting/static/audit/words.js";

const spelled = (nodes) =>
  nodes.map((node) => (typeof node === "string" ? node : [node.textContent]));

test("words have the white space behind them", () => {
  assert.deepEqual(wordsOf("the red  car.\nYes"), ["the ", "red  ", "car", ".\n", "Yes"]);
  assert.deepEqual(wordsOf(" a"), [" ", "a"]);
  assert.deepEqual(wordsOf(""), []);
});

test("runs by hand", () => {
  for (const [first, second, runs] of [
    [
      "a b c",
      "a x c",
      [
        [1, 1, true],
        [1, 1, false],
        [1, 1, true],
      ],
    ],
    ["a b", "a b", [[2, 2, true]]],
    [
      "a b c d",
      "b d",
      [
        [1, 0, false],
        [1, 1, true],
        [1, 0, false],
        [1, 1, true],
      ],
    ],
    [
      "a",
      "a b c",
      [
        [1, 1, true],
        [0, 2, false],
      ],
    ],
    ["", "a b", [[0, 2, false]]],
    ["", "", []],
  ])
    assert.deepEqual(
      runsOf(first.split(" ").filter(Boolean), second.split(" ").filter(Boolean)),
      runs,
    );
});

// Length of the longest common subsequence, by trying everything.
function longest(a, b) {
  if (!a.length || !b.length) return 0;
  if (a[0] === b[0]) return 1 + longest(a.slice(1), b.slice(1));
  return Math.max(longest(a.slice(1), b), longest(a, b.slice(1)));
}

test("common runs are a longest common subsequence, in turn with differences", () => {
  for (let code = 0; code < 729; code++) {
    // every two texts of two and of four words a, b, c
    const digits = code.toString(3).padStart(6, "0").split("");
    const [a, b] = [digits.slice(0, 2), digits.slice(2)];
    const runs = runsOf(a, b);
    let [i, j, common] = [0, 0, 0];
    for (const [at, [ofFirst, ofSecond, isCommon]] of runs.entries()) {
      if (isCommon) assert.deepEqual(a.slice(i, i + ofFirst), b.slice(j, j + ofSecond));
      if (at) assert.notEqual(isCommon, runs[at - 1][2]);
      i += ofFirst;
      j += ofSecond;
      common += isCommon ? ofFirst : 0;
    }
    assert.deepEqual([i, j, common], [2, 4, longest(a, b)]);
  }
});

test("answers of 5,000 words are compared, longer ones are not", () => {
  const words = (number, name) => Array.from({ length: number }, (_, at) => `${name}${at}`);
  assert.deepEqual(runsOf(words(4999, "a"), words(5000, "b")), [[4999, 5000, false]]);
  assert.equal(runsOf(words(5001, "a"), words(5000, "b")), null);
  // What both begin and end with takes no room.
  const same = words(9000, "c");
  assert.deepEqual(runsOf([...same, "x", "z"], [...same, "y", "z"]), [
    [9000, 9000, true],
    [1, 1, false],
    [1, 1, true],
  ]);
});

test("a short common run between longer differences is a difference", () => {
  assert.deepEqual(
    cleaned([
      [3, 3, false],
      [1, 1, true],
      [2, 0, false],
    ]),
    [[6, 4, false]],
  );
  const kept = [
    [1, 1, false],
    [2, 2, true],
    [1, 1, false],
  ];
  assert.deepEqual(cleaned(structuredClone(kept)), kept);
  // The last three merge; what they come to, 4 words, takes in the common run before, or not.
  const last = [
    [2, 2, false],
    [1, 1, true],
    [1, 1, false],
  ];
  assert.deepEqual(cleaned([[2, 2, false], [3, 3, true], ...structuredClone(last)]), [
    [2, 2, false],
    [3, 3, true],
    [4, 4, false],
  ]);
  assert.deepEqual(cleaned([[3, 3, false], [3, 3, true], ...last]), [[10, 10, false]]);
});

test("what only one of two texts says is marked", () => {
  const [first, second, note] = marked("the red car", "the blue car");
  assert.deepEqual(spelled(first), ["the ", ["red"], " ", "car"]);
  assert.deepEqual(spelled(second), ["the ", ["blue"], " ", "car"]);
  assert.equal(note, "");
});

test("nothing is marked where texts have hardly a word in common", () => {
  const [first, second, note] = marked("alpha beta gamma", "one two three");
  assert.deepEqual([first, second], [["alpha beta gamma"], ["one two three"]]);
  assert.match(note, /few words in common/);
  // One of ten words is enough.
  assert.equal(marked("a b c d e f g h i j", "a 1 2 3 4 5 6 7 8 9")[2], "");
  assert.match(marked("a b c d e f g h i j k", "a 1 2 3 4 5 6 7 8 9")[2], /few words/);
});
