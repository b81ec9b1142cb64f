// The list of pairs: it has only those in view.

import assert from "node:assert/strict";
import { test } from "node:test";

import { content, putData, putIndex, until } from "./document.js";
import { unpackIndex } from "../../models/reporting/static/audit/data.js";
import {
  choose,
  drawList,
  filler,
  fillSelects,
  list,
  position,
  showPair,
} from "../../models/reporting/static/audit/choose.js";
import { makeScale } from "../../models/reporting/static/audit/histogram.js";
import { makeVerdicts, reviews } from "../../models/reporting/static/audit/review.js";

const many = Array.from({ length: 100 }, (_, row) => row);
putIndex({ strength: many, flags: many.map((row) => (row === 9 ? 1 + 2 + 4 + 16 : 0)) });
putData(
  "block-0",
  many.map((row) => content({ chosen: `text ${row} `.repeat(30) })),
);
await unpackIndex();
fillSelects();
makeVerdicts();
makeScale();
list.clientHeight = 112; // of rows of 3.5 times 16
choose();

test("two rows are in view, with two more before and after them", () => {
  list.scrollTop = 560;
  drawList();
  assert.equal(filler.style.height, "5600px");
  assert.deepEqual(
    filler.children.map((row) => row.ariaPosInSet),
    ["9", "10", "11", "12", "13", "14"],
  );
  assert.deepEqual([filler.children[0].id, filler.children[0].style.top], ["row-8", "448px"]);
});

test("a row says what is known of its pair, and how its text begins", async () => {
  reviews.set("p9", { verdict: "flip", note: "" });
  drawList();
  const [facts, text] = filler.children[1].children;
  await until(() => text.textContent);
  assert.equal(
    facts.textContent,
    "+9.00 a · members disagree · label flipped · ⚠ no member supports it · ✓ flip",
  );
  assert.equal(facts.children[0].className, "strength worse");
  assert.equal(text.textContent, "text 9 ".repeat(30).slice(0, 120));
});

test("the list follows the pair in view, and a click on a row shows its pair", async () => {
  await showPair(20);
  assert.equal(list.scrollTop, 21 * 56 - 112);
  assert.equal(list.attributes["aria-activedescendant"], "row-20");
  filler.children[0].click();
  assert.equal(position, 17);
  assert.deepEqual(
    filler.children.filter((row) => row.ariaSelected === "true").map((row) => row.id),
    ["row-17"],
  );
  await showPair(3);
  assert.equal(list.scrollTop, 3 * 56);
});
