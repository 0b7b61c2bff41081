// The page's search: draws what answers.js decides for the text in the box.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const answers = Answers(data);
  const byId = (id) => document.getElementById(id);
  const make = (name, text, properties) => Object.assign(document.createElement(name), { textContent: text || "" }, properties || {});
  const address = (project, place) => `project/${encodeURIComponent(project)}.html${place ? `#${encodeURIComponent(place)}` : ""}`;

  function wheelItem(row) {
    const item = make("li");
    const state = row.verified ? `verified: ${row.verified}` : "by the name of its group alone, not verified";
    const without = row.without ? `. Without ${row.without}` : "";
    item.append(
      make("a", `${row.project} ${row.version}`, { href: address(row.project, row.version) }),
      ` in ${row.group}, ${row.tags.join(", ")}: ${state}${without}`,
    );
    return item;
  }

  function listOf(rows) {
    const list = make("ul");
    list.append(...rows.map(wheelItem));
    return list;
  }

  function commandOf(text) {
    const box = make("p", "", { className: "command" });
    box.append(make("code", text));
    return box;
  }

  function linksTo(names, place) {
    const box = make("p", names.length === 1 ? "Project: " : "Projects: ");
    for (const name of names) {
      const text = place ? `${name} ${place.replace("release-", "")}` : name;
      box.append(make("a", text, { href: address(name, place) }), " ");
    }
    return box;
  }

  const DRAWN = {
    line: (block) => make("p", block.text),
    note: (block) => make("p", block.text, { className: "note" }),
    bad: (block) => make("p", block.text, { className: "bad" }),
    heading: (block) => make("h3", block.text),
    command: (block) => commandOf(block.text),
    wheels: (block) => listOf(block.rows),
    projects: (block) => linksTo(block.names, block.place),
  };

  function draw() {
    const rows = [...document.querySelectorAll("#table tbody tr")];
    const choices = { platform: byId("platform").value, python: byId("python").value || null, projects: rows.map((row) => row.dataset.name) };
    const { blocks, projects } = answers.reply(byId("have").value, choices);
    for (const row of rows) row.hidden = projects !== null && !projects.includes(row.dataset.name);
    byId("answer").replaceChildren(...blocks.map((block) => DRAWN[block.kind](block)));
  }

  for (const word of data.pythons) byId("python").append(make("option", `${word[2]}.${word.slice(3)}`, { value: word }));
  if (/Win/.test(navigator.userAgent)) byId("platform").value = "windows";
  for (const id of ["have", "platform", "python"]) byId(id).addEventListener("input", draw);
  const card = new URLSearchParams(location.search).get("card");
  if (card) byId("have").value = card.slice(0, 200);
  draw();
  document.documentElement.classList.add("ready");
  performance.mark("ready");
})();
