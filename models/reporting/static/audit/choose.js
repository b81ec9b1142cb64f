// Which pairs are shown: filters, search, and the list that renders what is in view.

import {
  $, categoryOf, contentOf, counted, element, has, index, IS_CONTRADICTED, IS_DISPUTED, IS_DIVIDED,
  IS_EXPLAINED_BY_LENGTH, IS_FLIPPED, IS_REPEATED, IS_SMOOTHED, IS_UNSUPPORTED, LOOKS_WRONG, signed,
  unpacked,
} from "./data.js";
import { drawHistogram, inRange } from "./histogram.js";
import { pairNodes } from "./pair.js";
import { drawReview, reviews } from "./review.js";

export let passing = [];  // rows that pass all filters but the range of strength, weakest first
export let shown = [];    // those of them in the range, in the order that was chosen
export let position = 0;  // of the pair in view, in `shown`
let hits = null;   // 1 for each row that the search found; null without a search

const KINDS = {
  "any": () => true,
  "agrees with the label": (row) => !has(row, LOOKS_WRONG),
  "contradicts it: looks wrong": (row) => has(row, LOOKS_WRONG),
  "uncertain: members disagree": (row) => has(row, IS_DISPUTED),
  "flipped by relabelling": (row) => has(row, IS_FLIPPED),
  "flipped, and no member supports it": (row) => has(row, IS_UNSUPPORTED),
  "smoothed by relabelling": (row) => has(row, IS_SMOOTHED),
};
const FACTS = {
  "any": () => true,
  "looks wrong, and length explains it": (row) => has(row, IS_EXPLAINED_BY_LENGTH),
  "looks wrong, and length does not explain it": (row) =>
    has(row, LOOKS_WRONG) && !has(row, IS_EXPLAINED_BY_LENGTH),
  "contradicts another pair": (row) => has(row, IS_CONTRADICTED),
  "repeats another pair": (row) => has(row, IS_REPEATED),
  "people's votes were divided": (row) => has(row, IS_DIVIDED),
};
const heldOut = (row) => Number(index.splits[index.split[row]] !== "train");
// The rows are the weakest first; a sort keeps that order among equals. Only of training pairs does
// a verdict change anything.
const ORDERS = {
  "training pairs, weakest first": (one, other) => heldOut(one) - heldOut(other),
  "weakest first": null,
  "strongest first": (one, other) => index.strength[other] - index.strength[one],
  "members disagree most": (one, other) => index.deviation[other] - index.deviation[one],
  "as read": (one, other) => index.order[one] - index.order[other],
};
const MINE = {
  "any": () => true,
  "not reviewed": (row) => !reviews.has(index.ids[row]),
  "reviewed": (row) => reviews.has(index.ids[row]),
  ...Object.fromEntries(["keep", "flip", "drop", "unsure"].map((verdict) =>
    [verdict, (row) => reviews.get(index.ids[row])?.verdict === verdict])),
};

export function fillSelects() {
  const counts = (list, size) => {
    const found = new Uint32Array(size);
    for (const each of list) found[each]++;
    return found;
  };
  const option = (value, text, number) => element("option", { value },
    number === undefined ? text : `${text} (${counted(number)})`);
  const all = index.ids.length;
  for (const [id, names] of [["category", index.categories], ["split", index.splits]]) {
    const numbers = counts(index[id], names.length);
    $(`${id}-filter`).hidden = names.length < 2;
    $(id).append(option("", "all", all), ...names.map((name, at) => option(at, name, numbers[at])));
  }
  const rows = [...index.ids.keys()];
  for (const [id, tests] of [["kind", KINDS], ["fact", FACTS]]) {
    $(id).append(...Object.entries(tests).map(([name, test]) =>
      option(name, name, rows.filter(test).length)));
  }
  $("order").append(...Object.keys(ORDERS).map((name) => option(name, name)));
  $("mine").append(...Object.keys(MINE).map((name) => option(name, name)));
}

// Applies all filters. The pair in view stays, where it still passes.
export function choose() {
  const row = shown[position];
  const category = $("category").value, split = $("split").value;
  const kind = KINDS[$("kind").value], fact = FACTS[$("fact").value], mine = MINE[$("mine").value];
  passing = [];
  for (let at = 0; at < index.ids.length; at++) {
    if ((category === "" || index.category[at] === Number(category)) &&
        (split === "" || index.split[at] === Number(split)) &&
        (hits === null || hits[at]) && kind(at) && fact(at) && mine(at)) passing.push(at);
  }
  drawHistogram();
  shown = passing.filter(inRange);
  const order = ORDERS[$("order").value];
  if (order) shown.sort(order);
  $("count").textContent = `${counted(shown.length)} of ${counted(index.ids.length)} pairs` +
    (searchDone < 1 ? `; searched ${Math.floor(100 * searchDone)} %` : "");
  showPair(Math.max(0, shown.indexOf(row)));
}

let searches = 0, searchDone = 1;

// Goes through all texts, block by block; a newer search ends it.
export async function search(text) {
  const mine = ++searches;
  hits = null;
  searchDone = 1;
  if (text) {
    const pattern = new RegExp(text.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&"), "i");
    const found = new Uint8Array(index.ids.length);
    let told = performance.now();
    for (let row = 0; row < found.length; row += index.block_size) {
      const contents = await unpacked(`block-${row / index.block_size}`);
      if (mine !== searches) return;
      contents.forEach((content, at) => {
        found[row + at] = [content.prompt, content.chosen, content.rejected, index.ids[row + at]]
          .some((each) => pattern.test(each));
      });
      if (performance.now() - told > 500) {
        [hits, searchDone, told] = [found, row / found.length, performance.now()];
        choose();
      }
    }
    [hits, searchDone] = [found, 1];
  }
  choose();
}

export const list = $("list"), filler = element("div", { className: "rows" });
const rowHeight = () => 3.5 * parseFloat(getComputedStyle(document.documentElement).fontSize);

function lineOf(place) {
  const row = shown[place], verdict = reviews.get(index.ids[row])?.verdict;
  const facts = [
    categoryOf(row), heldOut(row) && index.splits[index.split[row]],
    has(row, IS_DISPUTED) && "members disagree",
    has(row, IS_FLIPPED) && "label flipped",
    has(row, IS_UNSUPPORTED) && "⚠ no member supports it",
    has(row, IS_CONTRADICTED) && "contradicts another pair",
    has(row, IS_REPEATED) && "repeats another pair",
    has(row, IS_EXPLAINED_BY_LENGTH) && "longer answer explains it",
    has(row, IS_DIVIDED) && "divided votes",
    verdict && `✓ ${verdict}`,
  ].filter(Boolean).join(" · ");
  const text = element("div", { className: "text-line" });
  contentOf(row).then((content) => { text.textContent = content.chosen.slice(0, 120); });
  const line = element("div", { className: "row", id: `row-${row}`, role: "option" },
    element("div", { title: facts },
      element("span", { className: `strength${has(row, LOOKS_WRONG) ? " worse" : ""}` },
        signed(index.strength[row])), ` ${facts}`), text);
  line.ariaSelected = String(place === position);
  line.ariaPosInSet = String(place + 1);
  line.ariaSetSize = String(shown.length);
  line.style.top = `${place * rowHeight()}px`;
  line.addEventListener("click", () => showPair(place));
  return line;
}

export function drawList() {
  const height = rowHeight(), lines = [];
  filler.style.height = `${shown.length * height}px`;
  const first = Math.max(0, Math.floor(list.scrollTop / height) - 2);
  const end = Math.min(shown.length, first + Math.ceil(list.clientHeight / height) + 4);
  for (let place = first; place < end; place++) lines.push(lineOf(place));
  filler.replaceChildren(...lines);
}

// Makes the pair at a place the one in view.
export async function showPair(place) {
  position = place;
  const row = shown[place], height = rowHeight(), top = place * height;
  filler.style.height = `${shown.length * height}px`;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + height > list.scrollTop + list.clientHeight) {
    list.scrollTop = top + height - list.clientHeight;
  }
  drawList();
  $("actions").hidden = row === undefined;
  list.setAttribute("aria-activedescendant", row === undefined ? "" : `row-${row}`);
  if (row === undefined) {
    $("place").textContent = "No pair passes these filters.";
    $("content").replaceChildren();
    return;
  }
  const content = await contentOf(row);
  if (shown[position] !== row) return;
  $("place").textContent = `Pair ${counted(place + 1)} of ${counted(shown.length)}`;
  $("content").replaceChildren(...pairNodes(row, content));
  $("previous").disabled = place === 0;
  $("next").disabled = place === shown.length - 1;
  drawReview();
}
