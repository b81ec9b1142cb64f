// Unpacking the page's data, and small helpers of all modules.

export const $ = (id) => document.getElementById(id);

// A new element; its children that are text become text nodes, never markup.
export function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function drawn(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A pair's category; false where it has none.
export const categoryOf = (row) => {
  const name = index.categories[index.category[row]];
  return name !== "no category" && name;
};

export const counted = (number) => number.toLocaleString("en-US");
// As many digits as it takes to tell votes of the usual size apart.
export const decimals = () => Math.max(2, 1 - Math.floor(Math.log10(index.reach)));
export const signed = (value, digits = decimals()) =>
  (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);

// The text of an element of data. The script runs before the browser has read all of them, and one
// is whole once there is another behind it.
async function packed(id) {
  for (;;) {
    const found = $(id), isWhole = document.readyState !== "loading";
    if (found && (isWhole || found.nextElementSibling)) return found.textContent;
    if (isWhole) throw new Error(`${id} is missing, the page was cut off`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

// Base64 of gzipped JSON.
export async function unpacked(id) {
  const text = atob(await packed(id));
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  const stream = new Response(bytes).body.pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// All pairs, weakest first: a list for each property. A row is a place in these lists.
export let index;
export let rowOf;  // by pair id

export async function unpackIndex() {
  index = await unpacked("index");
  rowOf = new Map(index.ids.map((id, row) => [id, row]));
}

export const LOOKS_WRONG = 1, IS_DISPUTED = 2, IS_FLIPPED = 4, IS_SMOOTHED = 8, IS_UNSUPPORTED = 16;
export const IS_REPEATED = 32, IS_CONTRADICTED = 64, IS_EXPLAINED_BY_LENGTH = 128, IS_DIVIDED = 256;
export const has = (row, flag) => (index.flags[row] & flag) > 0;

export const BLOCKS_KEPT = 16;
const blocks = new Map();

// Texts and votes of the block that holds a row; those used last are kept unpacked.
export function blockOf(row) {
  const number = Math.floor(row / index.block_size);
  const found = blocks.get(number) ?? unpacked(`block-${number}`);
  blocks.delete(number);
  blocks.set(number, found);
  if (blocks.size > BLOCKS_KEPT) blocks.delete(blocks.keys().next().value);
  return found;
}

export const contentOf = async (row) => (await blockOf(row))[row % index.block_size];
