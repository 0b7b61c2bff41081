// The page's search: what is here for a card, what PyTorch and others have, what could be built. answers.js answers.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const answers = Answers(data);
  const byId = (id) => document.getElementById(id);
  const make = (name, text, props) => Object.assign(document.createElement(name), { textContent: text || "" }, props || {});
  const arm = new Set(data.names.arm);

  const pythons = [...new Set(data.wheels.flatMap((wheel) => wheel.pythons))].sort((a, b) => parseInt(a.slice(3), 10) - parseInt(b.slice(3), 10) || a.length - b.length);
  for (const word of pythons) byId("python").append(make("option", `${word[2]}.${word.slice(3)}`, { value: word }));
  if (/Win/.test(navigator.userAgent)) byId("platform").value = "windows";

  const command = (line) => { const box = make("p", "", { className: "command" }); box.append(make("code", line, { tabIndex: 0 })); return box; };

  // Cards as they are named, each with its SM, and why one has none.
  function cardsOf(read) {
    const found = [], problems = [];
    for (const name of read.cards) {
      if (new RegExp(data.paste.cut).test(name)) { problems.push("nvidia-smi has cut off the card's name: paste what nvidia-smi -L prints."); continue; }
      const sms = [...new Set(answers.find(name).map(([, sm]) => data.names.renamed[sm] || sm))];
      const company = answers.maker(name);
      if (!sms.length) problems.push(company ? `${name} is a card of ${company}: it runs no CUDA.` : `${name}: no such card in the catalogue.`);
      else if (sms.length > 1 && !sms.every((sm) => data.names.too_old[sm])) problems.push(`${name} was sold with several chips (${sms.join(", ")}): paste what lspci prints, or type its SM.`);
      else found.push({ name, sm: Number(sms[sms.length - 1].slice(2)), arm: answers.find(name).some(([known]) => arm.has(known)) });
    }
    return [found, problems];
  }

  function here(sms) {
    return data.there.filter(([, , , codes]) => sms.every((sm) => codes.some((code) => answers.sassRuns(code, sm))));
  }

  function inIndex(there) {
    const list = make("ul");
    for (const [project, group, version, , tags, code, without] of there) {
      const item = make("li");
      item.append(make("a", `${project} ${version}`, { href: `project/${encodeURIComponent(project)}.html#${encodeURIComponent(version)}` }), ` in ${group}, ${tags.join(", ")}: ${code ? `verified: ${code}` : "by the name of its group alone, not verified"}${without ? `. Without ${without}` : ""}`);
      list.append(item);
    }
    return [make("h3", "In this index"), there.length ? list : make("p", "No wheel here is in a group for it.")];
  }

  // `cpu`, `cpu-avx`: no card.
  function withoutCard(word) {
    const text = "Not examined by this farm. `farm detect` names the CPU level of a machine, `farm plan --variant cpu-avx2-py311` what a wheel of your own costs.";
    return [...inIndex(data.there.filter(([, group]) => group.startsWith(word))), make("h3", "PyTorch's own wheels"), command(`pip install torch --index-url ${data.index}/cpu`), make("p", text, { className: "note" })];
  }

  function projects(text) {
    const word = text.trim().toLowerCase();
    const rows = [...document.querySelectorAll("#table tbody tr")];
    const named = word ? rows.filter((row) => row.dataset.name.includes(word)) : [];
    for (const row of rows) row.hidden = named.length > 0 && !named.includes(row);
    return named.map((row) => row.dataset.name);
  }

  function draw() {
    const text = byId("have").value, out = [];
    const named = projects(text);
    const read = answers.read(text);
    const typed = /^\s*(?:sm_?)?(\d{2,3}|\d{1,2}\.\d)\s*$/i.exec(text);
    let [cards, problems] = typed ? [[{ name: text.trim(), sm: Number(typed[1].replace(".", "")), arm: false }], []] : cardsOf(read);
    if (read.problem) problems = [read.problem];
    const cpu = !named.length && /^\s*(cpu(?:-\w*)?)\s*$/i.exec(text);
    if (cpu) { [cards, problems] = [[], []]; out.push(...withoutCard(cpu[1].toLowerCase())); }
    if (named.length) { problems = []; cards = cards.filter(() => false); }
    for (const line of problems) out.push(make("p", line, { className: "note" }));
    if (named.length) {
      const list = make("p", "Projects: ");
      for (const name of named.slice(0, 20)) list.append(make("a", name, { href: `project/${encodeURIComponent(name)}.html` }), " ");
      out.push(list);
    }
    if (cards.length) out.push(...describe(cards, read.driver));
    if (text.trim() && !out.length) out.push(make("p", "No card and no project is named there.", { className: "note" }));
    byId("answer").replaceChildren(...out);
  }

  function describe(cards, driver) {
    const sms = [...new Set(cards.map((card) => card.sm))], out = [];
    const shown = cards.map((card) => `${card.name} (sm_${card.sm})`).join(" and ");
    const platform = byId("platform").value, tegra = new Set(data.tegra);
    const place = `${platform}-${cards.some((card) => card.arm || tegra.has(card.sm) || card.sm === 121) ? "aarch64" : "x86_64"}`;
    out.push(make("p", shown + (driver ? `, driver ${driver}` : ""), { className: "note" }));
    out.push(...inIndex(here(sms)));
    out.push(make("h3", "PyTorch's own wheels"));
    const q = { sms, platform: place, driver, python: byId("python").value || null, torch: null, cuda: null };
    const answer = answers.best(q);
    if (!answer.torch) out.push(make("p", "None has code for it."));
    else {
      const lost = answer.lost.map((sm) => `sm_${sm}`).join(", ");
      out.push(make("p", answer.runs ? `torch ${answer.torch} with CUDA ${answer.cuda} runs on it.` : answer.problem ? `No: ${answer.problem}.` : `No wheel has code for all of them; torch ${answer.torch} leaves out ${lost}.`));
      if (answer.update) out.push(make("p", `Another driver is enough: ${answer.update}.`));
      out.push(command(answer.pip), make("p", `${place}${answer.glibc ? `, glibc ${answer.glibc} or newer` : ""}; Python ${answer.pythons.map((word) => `${word[2]}.${word.slice(3)}`).join(" ")}; driver ${answer.drivers}`, { className: "note" }));
      for (const text of answer.without) out.push(make("p", `Without ${text}.`, { className: "bad" }));
    }
    if (answer.runs && !answer.without.length) return out;
    const others = answers.others(q);
    if (others.length) out.push(make("h3", "Other makers"));
    for (const row of others) out.push(make("p", `${row.maker}: torch ${row.torch}, CUDA ${row.cuda}. Has ${row.has}; lacks ${row.lacks}; not confirmed: ${row.unconfirmed}.`), command(row.install));
    let own = answers.own(q), late = "";
    if (own && !own.length && driver) {
      own = answers.own({ ...q, driver: null });
      if (own.length) late = `With driver ${own[own.length - 1][4]} or newer${data.cards[sms[0]][1] ? `, up to branch ${data.cards[sms[0]][1]}` : ""}:`;
    }
    if (!own || own.length) out.push(make("h3", "A wheel of your own"));
    if (late) out.push(make("p", late));
    if (!own) out.push(command(`farm why --official ${sms.map((sm) => `--gpu sm_${sm}`).join(" ")} --platform ${platform}${driver ? ` --driver ${driver}` : ""}${q.python ? ` --python ${q.python}` : ""}`));
    for (const [torch, cuda, standing, words, , without] of own || []) {
      out.push(make("p", `torch ${torch}${cuda ? `, CUDA ${cuda}` : ""} (${standing})`), command(`farm submit ${words}`));
      if (without) out.push(make("p", `Without ${without}.`, { className: "note" }));
    }
    return out;
  }

  for (const id of ["have", "platform", "python"]) byId(id).addEventListener("input", draw);
  const card = new URLSearchParams(location.search).get("card");
  if (card) { byId("have").value = card.slice(0, 200); }
  draw();
  document.documentElement.classList.add("ready");
  performance.mark("ready");
})();
