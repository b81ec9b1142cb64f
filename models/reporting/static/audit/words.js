// Marking the words by which two answers differ: the longest common subsequence of their words.
// Common words between long differences are chance, not likeness; they are marked too (the semantic
// cleanup of N. Fraser's diff-match-patch).

import { element } from "./data.js";

const MOST_CELLS = 25e6;      // of the table: two answers of 5,000 words
const LEAST_IN_COMMON = 0.1;  // of the longer answer; below, marks would cover nearly all of it
const segmenter = new Intl.Segmenter("en", { granularity: "word" });

// A text as words, each with the white space behind it.
export function wordsOf(text) {
  const found = [];
  for (const { segment } of segmenter.segment(text)) {
    if (found.length && !segment.trim()) found[found.length - 1] += segment;
    else found.push(segment);
  }
  return found;
}

// Runs of words, in turn common and not: [number of first's words, number of second's, common].
export function runsOf(first, second) {
  const numbers = new Map();
  const numbered = (words) => words.map((word) => {
    const key = word.trim();
    if (!numbers.has(key)) numbers.set(key, numbers.size);
    return numbers.get(key);
  });
  const a = numbered(first), b = numbered(second);
  let start = 0, end = 0;
  const least = Math.min(a.length, b.length);
  while (start < least && a[start] === b[start]) start++;
  while (end < least - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const rows = a.length - start - end, width = b.length - start - end + 1;
  if (rows * width > MOST_CELLS) return null;
  const table = new Uint16Array((rows + 1) * width);
  for (let i = rows - 1; i >= 0; i--) {
    for (let j = width - 2; j >= 0; j--) {
      const here = i * width + j;
      table[here] = a[start + i] === b[start + j]
        ? table[here + width + 1] + 1 : Math.max(table[here + width], table[here + 1]);
    }
  }
  const runs = [];
  const add = (ofFirst, ofSecond, common) => {
    const last = runs[runs.length - 1];
    if (last && last[2] === common) { last[0] += ofFirst; last[1] += ofSecond; }
    else if (ofFirst + ofSecond) runs.push([ofFirst, ofSecond, common]);
  };
  add(start, start, true);
  let i = 0, j = 0;
  while (i < rows || j < width - 1) {
    const here = i * width + j, inBoth = i < rows && j < width - 1;
    if (inBoth && a[start + i] === b[start + j]) { add(1, 1, true); i++; j++; }
    else if (i < rows && (!inBoth || table[here + width] >= table[here + 1])) {
      add(1, 0, false); i++;
    } else { add(0, 1, false); j++; }
  }
  add(end, end, true);
  return runs;
}

// The same with short common runs between longer differences taken for differences.
export function cleaned(runs) {
  const size = (run) => Math.max(run[0], run[1]);
  for (let at = 1; at < runs.length - 1; at++) {
    const [before, run, after] = runs.slice(at - 1, at + 2);
    if (!run[2] || run[0] > size(before) || run[0] > size(after)) continue;
    const merged = [before[0] + run[0] + after[0], before[1] + run[1] + after[1], false];
    runs.splice(at - 1, 3, merged);
    at = Math.max(0, at - 3);
  }
  return runs;
}

// Two texts as nodes, what only one of them says marked; and what to say where nothing is.
export function marked(first, second) {
  const words = [wordsOf(first), wordsOf(second)];
  let runs = runsOf(...words);
  if (runs === null) return [[first], [second], "Too long to compare word by word."];
  const common = runs.reduce((sum, run) => sum + (run[2] ? run[0] : 0), 0);
  if (common < LEAST_IN_COMMON * Math.max(words[0].length, words[1].length)) {
    return [[first], [second], "They have few words in common: differences are not marked."];
  }
  runs = cleaned(runs);
  const nodes = words.map((list, side) => {
    let at = 0;
    return runs.filter((run) => run[side]).flatMap((run) => {
      const text = list.slice(at, at + run[side]).join("");
      at += run[side];
      if (run[2]) return [text];
      const end = text.trimEnd().length;
      return [element("mark", {}, text.slice(0, end)), text.slice(end)];
    });
  });
  return [...nodes, ""];
}
