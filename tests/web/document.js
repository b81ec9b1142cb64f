// As much of a browser's document as the script of the label audit's page uses.

import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const TEMPLATE = new URL("../../models/reporting/templates/audit.html.j2", import.meta.url);

export class Element extends EventTarget {
  #value;
  childNodes = [];
  style = {};
  attributes = {};
  scrollTop = 0;
  scrollHeight = 0;
  clientHeight = 0;
  clientWidth = 0;
  className = "";

  constructor(name) {
    super();
    this.localName = name;
  }

  get children() {
    return this.childNodes.filter((node) => node instanceof Element);
  }
  get nextElementSibling() {
    const siblings = this.parent?.children ?? [];
    return siblings[siblings.indexOf(this) + 1] ?? null;
  }
  get textContent() {
    return this.childNodes.map((node) => node.textContent ?? node).join("");
  }
  set textContent(text) {
    this.replaceChildren(text);
  }
  // Of a select that of its first option, until one is chosen.
  get value() {
    return this.#value ?? this.children[0]?.value ?? "";
  }
  set value(value) {
    this.#value = String(value);
  }
  get classList() {
    const names = () => this.className.split(" ").filter(Boolean);
    return {
      contains: (name) => names().includes(name),
      toggle: (name, on) => {
        this.className = [...names().filter((each) => each !== name), ...(on ? [name] : [])].join(
          " ",
        );
      },
    };
  }

  append(...nodes) {
    for (const node of nodes) if (node instanceof Element) node.parent = this;
    this.childNodes.push(...nodes);
  }
  replaceChildren(...nodes) {
    this.childNodes = [];
    this.append(...nodes);
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
  }
  // Only for what the script asks: whether a key is typed into it.
  matches() {
    return ["input", "select", "textarea"].includes(this.localName) && this.type !== "checkbox";
  }
  getBoundingClientRect() {
    return { left: 0 };
  }
  setPointerCapture() {}
  focus() {
    document.activeElement = this;
  }
  blur() {
    document.activeElement = null;
  }
  click() {
    this.dispatchEvent(new Event("click"));
  }

  // All elements below, by a tag's name.
  all(name) {
    return this.children.flatMap((child) => [
      ...(child.localName === name ? [child] : []),
      ...child.all(name),
    ]);
  }
}

export class Storage {
  #kept = new Map();
  getItem(key) {
    return this.#kept.get(key) ?? null;
  }
  setItem(key, value) {
    this.#kept.set(key, value);
  }
}

function found(element, id) {
  if (element.id === id) return element;
  for (const child of element.children) {
    const inside = found(child, id);
    if (inside) return inside;
  }
  return null;
}

// Makes `document` and `window` those of a page: flat, with the elements of `html` that have an id.
export function openPage(html = readFileSync(TEMPLATE, "utf-8")) {
  const body = new Element("body");
  for (const [, name, before, id, after] of html.matchAll(/<(\w+)([^>]*) id="([\w-]+)"([^>]*)>/g)) {
    const type = `${before}${after}`.match(/ type="(\w+)"/)?.[1];
    const checked = / checked/.test(after);
    body.append(Object.assign(new Element(name), { id, type, checked }));
  }
  globalThis.document = Object.assign(new EventTarget(), {
    body,
    readyState: "complete",
    activeElement: null,
    documentElement: new Element("html"),
    createElement: (name) => new Element(name),
    createElementNS: (_, name) => new Element(name),
    getElementById: (id) => found(body, id),
  });
  globalThis.window = Object.assign(new EventTarget(), { localStorage: new Storage() });
  globalThis.getComputedStyle = () => ({ fontSize: "16px" });
  globalThis.requestAnimationFrame = (draw) => draw();
  globalThis.ResizeObserver = class {
    observe() {}
  };
}

export const packedText = (value) => gzipSync(JSON.stringify(value)).toString("base64");

// Puts data into the page as Python does.
export function putData(id, value) {
  const element = document.getElementById(id) ?? Object.assign(new Element("script"), { id });
  if (!element.parent) document.body.append(element);
  element.textContent = packedText(value);
}

// What an index has where a test does not say otherwise: one of everything.
export function putIndex(values) {
  const number = values.strength?.length ?? values.flags?.length ?? 1;
  const fill = (value) => Array.from({ length: number }, value);
  putData("index", {
    digest: "d",
    block_size: 400,
    categories: ["a"],
    splits: ["train"],
    reach: 2,
    ids: fill((_, row) => `p${row}`),
    strength: fill(() => 1),
    category: fill(() => 0),
    split: fill(() => 0),
    flags: fill(() => 0),
    deviation: fill(() => 0.5),
    order: fill((_, row) => row),
    ...values,
  });
}

export const content = (values) => ({
  prompt: "Q",
  chosen: "A",
  rejected: "B",
  label: 1,
  margin: 0,
  weight: 1,
  review: null,
  votes: null,
  truth: null,
  source: "",
  repeats: [],
  contradicts: [],
  differences: [0.5, 1.5],
  ...values,
});

export function happen(target, type, values = {}) {
  target.dispatchEvent(Object.assign(new Event(type, { cancelable: true }), values));
}

export async function until(condition) {
  for (let tries = 0; !condition(); tries++) {
    if (tries > 500) throw new Error(`never: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

openPage();
