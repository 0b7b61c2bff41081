// A small stand-in for a browser: it runs the page's own files, in the page's order, and a test's script after them.
"use strict";
const fs = require("fs");
const vm = require("vm");
const [folder, ...parts] = process.argv.slice(2);
const read = (name) => fs.readFileSync(`${folder}/${name}`, "utf8");

class Element {
  constructor(tag) {
    Object.assign(this, { tag, textContent: "", value: "", className: "", children: [], listeners: {}, hidden: false });
    this.classList = { add: () => {} };
  }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  text() { return this.textContent + this.children.map((child) => (typeof child === "string" ? child : child.text())).join(""); }
}

const elements = {};
for (const id of ["data", "have", "platform", "python", "answer"]) elements[id] = new Element("div");
elements.data.textContent = read("facts.json");
elements.platform.value = "linux";

const context = vm.createContext({
  document: {
    getElementById: (id) => elements[id],
    createElement: (tag) => new Element(tag),
    querySelectorAll: () => [],
    documentElement: new Element("html"),
  },
  navigator: { userAgent: "Linux" },
  location: { search: "" },
  performance: { mark: () => {} },
  URLSearchParams,
  cases: JSON.parse(read("cases.json")),
  result: null,
  // What is shown for a text: the tag, the class and the text of each part.
  page: (text, platform) => {
    elements.have.value = text;
    elements.platform.value = platform;
    elements.have.listeners.input();
    return elements.answer.children.map((child) => [child.tag, child.className, child.text()]);
  },
});
vm.runInContext(parts.map((part) => fs.readFileSync(part, "utf8")).join("\n"), context);
vm.runInContext(`const answers = Answers(JSON.parse(document.getElementById("data").textContent));`, context);
vm.runInContext(read("run.js"), context);
process.stdout.write(JSON.stringify(context.result));
