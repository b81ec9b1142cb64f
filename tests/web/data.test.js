// The page's data unpacked, and numbers as they are written.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Element, openPage, packedText, putData, putIndex } from "./document.js";
import {
  BLOCKS_KEPT,
  blockOf,
  contentOf,
  counted,
  decimals,
  element,
  has,
  index,
  IS_DISPUTED,
  LOOKS_WRONG,
  rowOf,
  signed,
  unpacked,
  unpackIndex,
} from "../../models/reporting/static/audit/data.js";

test("texts come back as they were, whatever is in them", async () => {
  const hostile = "</script><script>alert(1)</script>\"' é \u2028 \ud83d\ude00";
  putData("hostile", [hostile]);
  assert.deepEqual(await unpacked("hostile"), [hostile]);
});

test("an element is read once another is behind it, while the page still comes in", async () => {
  openPage();
  document.readyState = "loading";
  putData("early", 7);
  let read = null;
  const reading = unpacked("early").then((value) => {
    read = value;
  });
  await new Promise((resolve) => setTimeout(resolve, 120));
  assert.equal(read, null);
  document.body.append(new Element("script"));
  await reading;
  assert.equal(read, 7);
});

test("what never comes is missed", async () => {
  openPage();
  await assert.rejects(unpacked("block-9"), {
    message: "block-9 is missing, the page was cut off",
  });
  // Cut off inside an element.
  putData("block-9", [1]);
  document.getElementById("block-9").textContent = packedText([1]).slice(0, 12);
  await assert.rejects(unpacked("block-9"));
});

test("rows are found by their pair, and have flags", async () => {
  putIndex({ ids: ["x", "y"], flags: [3, 4] });
  await unpackIndex();
  assert.deepEqual([rowOf.get("x"), rowOf.get("y"), rowOf.get("z")], [0, 1, undefined]);
  assert.deepEqual(
    [has(0, LOOKS_WRONG), has(0, IS_DISPUTED), has(1, IS_DISPUTED)],
    [true, true, false],
  );
});

test("numbers have a true minus sign, and digits enough for votes of the usual size", async () => {
  assert.equal(counted(1234567), "1,234,567");
  for (const [reach, digits, written] of [
    [2, 2, "−0.50"],
    [0.05, 3, "−0.500"],
    [30, 2, "−0.50"],
  ]) {
    putIndex({ reach });
    await unpackIndex();
    assert.equal(index.reach, reach);
    assert.deepEqual([decimals(), signed(-0.5)], [digits, written]);
  }
  assert.deepEqual([signed(0, 1), signed(1.25, 1)], ["+0.0", "+1.3"]);
});

test("text becomes text nodes", () => {
  const made = element("p", { className: "note" }, "<b>", element("i", {}, "x"));
  assert.deepEqual(made.childNodes[0], "<b>");
  assert.deepEqual([made.className, made.textContent], ["note", "<b>x"]);
});

test("rows are looked up in their block, and the blocks used last stay unpacked", async () => {
  putIndex({ block_size: 2 });
  await unpackIndex();
  for (let block = 0; block <= BLOCKS_KEPT; block++)
    putData(`block-${block}`, [2 * block, 2 * block + 1]);
  assert.equal(await contentOf(5), 5);
  const second = blockOf(2); // block 1
  for (let block = 0; block <= BLOCKS_KEPT; block++) {
    if (block !== 1) await blockOf(2 * block);
    if (block === 8) assert.equal(blockOf(3), second); // used again: not the oldest any more
  }
  assert.equal(blockOf(2), second);
  putData("block-0", ["again"]); // the oldest: unpacked anew
  assert.equal(await contentOf(0), "again");
});
