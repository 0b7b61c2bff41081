"use strict";
// Fills in the form, greys what no build offers (with the farm's own reason), and writes the lines to paste.
(() => {
  performance.mark("start");
  const data = JSON.parse(document.getElementById("data").textContent);
  const AXES = ["package", "platform", "gpu", "cpu", "python", "torch", "cuda"];
  const HARDWARE = ["gpu", "cpu", "python", "platform"];
  const TITLES = {
    package: "Package", platform: "System", gpu: "GPU", cpu: "CPU", python: "Python", torch: "PyTorch", cuda: "CUDA",
  };
  const builds = data.builds.map((row, number) => {
    const build = { number, channel: data.channels[row[7]], version: row[8], off: data.off[row[9]], driver: data.drivers[row[10]] };
    AXES.forEach((axis, place) => { build[axis] = row[place] < 0 ? null : data.axes[axis][row[place]]; });
    build.key = [build.package, build.version, build.python, build.platform].join("|");
    build.wheel = data.wheels[build.key] || null;
    build.state = data.states[number] || ["open", ""];
    return build;
  });
  const reasons = new Map();
  for (const [axis, value, other, otherValue, why] of data.conflicts) {
    reasons.set([axis, value, other, otherValue].join("|"), why);
    reasons.set([other, otherValue, axis, value].join("|"), why);
  }
  const chosen = Object.fromEntries(AXES.map((axis) => [axis, null]));
  let card = null; // the card that was named, {name, sm}, also where the farm has no wheels for it
  const besideArm = new Set(data.arm);
  const byId = (id) => document.getElementById(id);
  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const spelled = (axis, value) => (axis === "torch" ? `PyTorch ${value}` : axis === "cuda" ? `CUDA ${value}` : label(axis, value));
  const label = (axis, value) => {
    const said = (data.labels[axis] || {})[value];
    return said === undefined ? value : axis === "gpu" || axis === "cpu" ? `${value} (${said})` : said;
  };

  const fits = (build, wanted) => AXES.every((axis) => wanted[axis] === null || build[axis] === wanted[axis]);
  const matching = (wanted) => builds.filter((build) => fits(build, wanted));

  // Why a value cannot be had beside the other choices; null if it can.
  function obstacle(axis, value) {
    const wanted = { ...chosen, [axis]: value };
    if (builds.some((build) => fits(build, wanted))) return null;
    const others = AXES.filter((other) => other !== axis && chosen[other] !== null);
    for (const other of others) {
      const why = reasons.get([axis, value, other, chosen[other]].join("|"));
      if (why) return why;
    }
    if (axis === "cuda" && ["cpu", "mps"].includes(chosen.gpu)) return "a wheel without an NVIDIA GPU has no CUDA in it";
    if (["cpu", "mps"].includes(value) && chosen.cuda !== null) return `${label("gpu", value)} has no use for CUDA ${chosen.cuda}`;
    const single = others.find((other) => !builds.some((b) => b[axis] === value && b[other] === chosen[other]));
    const beside = (single ? [single] : others).map((other) => spelled(other, chosen[other])).join(", ");
    return `no channel of the farm offers ${spelled(axis, value)} with ${beside}`;
  }

  function drawForm() {
    for (const axis of AXES) {
      const box = byId(`axis-${axis}`);
      if (!data.axes[axis].length) { box.hidden = true; continue; }
      const options = axis === "package" ? data.axes[axis] : ["", ...data.axes[axis]];
      for (const value of options) {
        const id = `${axis}-${value || "any"}`;
        const input = make("input", { type: "radio", name: axis, id, value, "aria-describedby": `${id}-why` });
        input.addEventListener("change", () => { choose(axis, value || null); });
        const said = (data.labels[axis] || {})[value];
        const text = make("span", { class: "word" }, value ? (axis === "python" || axis === "platform" ? said : value) : "any");
        const pill = make("label", { for: id, class: "pill" }, input, text);
        if (said && (axis === "gpu" || axis === "cpu")) pill.append(make("span", { class: "hint" }, said));
        pill.append(make("span", { class: "why", id: `${id}-why` }));
        box.append(pill);
      }
    }
    const names = byId("cards");
    for (const [name] of data.cards) names.append(make("option", { value: name }));
  }

  function choose(axis, value) { chosen[axis] = value; if (axis === "gpu") card = null; draw(); remember(); }

  // Does PyTorch's own wheel run there? The same answer as that of `farm why --official`.
  function upstream() {
    const gpu = chosen.gpu || (card && card.sm);
    const machine = data.machines[chosen.cpu] || (besideArm.has(card ? card.name : gpu) ? "aarch64" : "x86_64");
    const place = `${chosen.platform}-${machine}`;
    const told = (data.official[place] || {})[gpu];
    if (told === undefined) return card && chosen.platform ? `PyTorch publishes no CUDA wheels for ${place}.` : "";
    if (told === null) return `PyTorch's own wheels: none has code for ${gpu}.`;
    const [torch, cuda, driver, pip] = told;
    const last = torch === data.newestTorch ? "" : " (the last that does)";
    return `PyTorch's own wheel of ${torch}${last} runs on ${gpu} (CUDA ${cuda}, driver ${driver}): ${pip}`;
  }

  function draw() {
    for (const axis of AXES) {
      for (const input of document.getElementsByName(axis)) {
        input.checked = input.value === (chosen[axis] || "");
        const why = input.value ? obstacle(axis, input.value) : null;
        input.parentElement.classList.toggle("off", why !== null);
        input.parentElement.title = why || "";
        byId(`${input.id}-why`).textContent = why || "";
        const there = input.value && builds.some((build) => build.wheel && fits(build, { ...chosen, [axis]: input.value }));
        input.parentElement.classList.toggle("there", Boolean(there));
        if (!why) input.parentElement.title = there ? "a wheel is published" : input.value ? "no wheel is published; it can be built" : "";
      }
    }
    byId("official").textContent = upstream();
    drawAnswer();
  }

  const RANK = Object.keys(data.words);
  const best = (found) => [...found].sort((a, b) => (a.wheel ? 0 : 1) - (b.wheel ? 0 : 1) || RANK.indexOf(a.state[0]) - RANK.indexOf(b.state[0]) || a.number - b.number)[0];
  const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
  const group = (build) => `${build.gpu}-${build.cpu}`;
  const options = (words, build) => words.map((word) => quote(word.replace(data.group, group(build)))).join(" ");
  const requirement = (build) => `${build.package}==${build.wheel ? build.wheel[4] : build.version}`;
  const lines = (build) => {
    const told = [
      ["pip", `pip install ${quote(requirement(build))} ${options(data.pip, build)}`],
      ["uv", `uv pip install ${quote(requirement(build))} ${options(data.pip, build)}`],
      ["pip, by links", `pip install ${quote(requirement(build))} ${options(data.links, build)}`],
    ];
    if (build.wheel) told.push(["requirements.txt", `${requirement(build)} --hash=sha256:${build.wheel[2]}`]);
    return told;
  };

  function drawAnswer() {
    const answer = byId("answer");
    const missing = HARDWARE.filter((axis) => chosen[axis] === null);
    const found = matching(chosen);
    const parts = [];
    if (!found.length) {
      const [axis, why] = firstObstacle();
      parts.push(make("h2", {}, "No such wheel"), make("p", { class: "state blocked" }, why));
      const back = make("button", { type: "button" }, `Give up ${spelled(axis, chosen[axis])}`);
      back.addEventListener("click", () => choose(axis, axis === "package" ? data.axes.package[0] : null));
      parts.push(back);
    } else if (missing.length) {
      const there = found.filter((build) => build.wheel).length;
      parts.push(make("h2", {}, `${there || "No"} published ${there === 1 ? "wheel" : "wheels"}`));
      if (found.length > there) parts.push(make("p", { class: "note" }, `${found.length - there} more can be built on request: choose one to see the command.`));
      parts.push(make("p", {}, `Still to choose: ${missing.map((axis) => TITLES[axis]).join(", ")}.`));
    } else {
      parts.push(...describe(best(found), found));
    }
    answer.replaceChildren(...parts);
  }

  function firstObstacle() {
    for (const axis of [...AXES].reverse()) {
      if (chosen[axis] === null) continue;
      const why = obstacle(axis, chosen[axis]);
      if (why && matching({ ...chosen, [axis]: null }).length) return [axis, why];
    }
    const last = [...AXES].reverse().find((axis) => chosen[axis] !== null);
    return [last, obstacle(last, chosen[last])];
  }

  function describe(build, found) {
    const [state, why] = build.state;
    const parts = [make("h2", {}, `${build.gpu}-${build.cpu}-${build.python}`)];
    parts.push(make("p", { class: `state ${state}` }, data.words[state] + (why ? `: ${why}` : "")));
    if (build.wheel) {
      for (const [name, line] of lines(build)) parts.push(command(name, line));
    } else {
      parts.push(make("p", {}, "There is no wheel to install yet. Whoever runs the farm builds it with"));
      parts.push(command("farm", `farm submit --variant ${build.gpu}-${build.cpu}-${build.python} --package ${build.package} --platform ${build.platform} --channel ${build.channel}` + (build.cuda ? ` --cuda ${build.cuda}` : "")));
    }
    const facts = [["Version", build.wheel ? build.wheel[4] : build.version], ["Channel", build.channel]];
    if (build.driver) {
      const last = data.lastDriver[build.gpu];
      facts.push(["NVIDIA driver", `${build.driver} or newer` + (last ? `; ${last} is the last branch for this GPU` : "")]);
    }
    if (build.wheel) facts.push(["Size", `${(build.wheel[1] / 1e6).toFixed(1)} MB`], ["Published", build.wheel[3]]);
    if (build.off.length) facts.push(["Switched off", build.off.join(", ")]);
    facts.push(["Evidence", data.proved[build.number] || "none for this build"]);
    for (const [where, date, outcome] of data.smokes[build.key] || []) facts.push([`Tested ${date}`, `${where}: ${outcome}`]);
    const list = make("dl");
    for (const [name, value] of facts) list.append(make("dt", {}, name), make("dd", {}, value));
    parts.push(list);
    if (found.length > 1) {
      const open = AXES.filter((axis) => chosen[axis] === null && new Set(found.map((other) => other[axis])).size > 1);
      parts.push(make("p", { class: "note" }, `${found.length} builds fit; this is the first of them.` + (open.length ? ` Choose ${open.map((axis) => TITLES[axis]).join(" or ")} to see the others.` : "")));
    }
    return parts;
  }

  function command(name, line) {
    const button = make("button", { type: "button", class: "copy", "aria-label": `Copy the ${name} line` }, "Copy");
    button.addEventListener("click", () => copy(line, button));
    return make("div", { class: "command" }, make("span", { class: "name" }, name), make("code", { tabindex: "0" }, ...words(line)), button);
  }

  // A line breaks between its words only, where it can.
  const words = (line) => line.split(" ").flatMap((word, place) => [...(place ? [" "] : []), make("span", { class: "whole" }, word)]);

  async function copy(line, button) {
    let done = true;
    try { await navigator.clipboard.writeText(line); } catch {
      const area = make("textarea", { class: "aside" });
      area.value = line;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  // --- "What have I got?"
  const norm = (text) => text.toLowerCase().replace(/nvidia|\(r\)|\(tm\)/g, " ").replace(/[^a-z0-9]+/g, " ").trim();
  const cards = data.cards.map(([name, sm]) => [norm(name), name, sm]).sort((a, b) => b[0].length - a[0].length);
  // "k40", "GTX1080", "tesla-t4": without spaces and without the words of a series, as people type them.
  const short = (text) => norm(text).replace(/\b(geforce|quadro|tesla|titan (?=rtx|v\b))\b/g, " ").replace(/\b(gtx|rtx|gt)(?=\d)/g, " ").replace(/\b(gtx|rtx|gt)\b/g, " ").replaceAll(" ", "");
  const squeezed = (text) => norm(text).replaceAll(" ", "");
  const cardOf = (text) => {
    const words = ` ${norm(text)} `;
    return cards.find(([name]) => words.includes(` ${name} `)) || typedCard(text);
  };
  function typedCard(text) {
    if (text.length > 60) return null;
    const whole = squeezed(text), core = short(text);
    if (core.length < 2) return null;
    const exact = cards.find(([name]) => squeezed(name) === whole) || cards.find(([name]) => short(name) === core);
    if (exact) return exact;
    // K40 stands for K40c, K40m and K40s, where all of them have one architecture.
    const begun = cards.filter(([name]) => short(name).startsWith(core) && !/^\d/.test(short(name).slice(core.length)));
    return begun.length && begun.every(([, , sm]) => sm === begun[0][2]) ? begun[begun.length - 1] : null;
  }

  function setGpu(found) {
    const [key, name, sm] = found;
    const chips = [...new Set(cards.filter(([other]) => other === key).map(([, , each]) => each))];
    if (chips.length > 1) {
      chosen.gpu = card = null;
      return `${name} was sold with several chips (${chips.join(", ")}). farm detect on its machine says which one it has: choose that SM below.`;
    }
    card = { name, sm };
    // A CPU that was chosen for another card: this one is never beside it.
    if (besideArm.has(name) && chosen.cpu && data.machines[chosen.cpu] !== "aarch64") chosen.cpu = null;
    if (data.axes.gpu.includes(sm)) { chosen.gpu = sm; return `${name} is ${sm}.`; }
    chosen.gpu = null;
    return data.tooOld[sm] || `${name} is ${sm}; the farm has no wheels for it.`;
  }

  function readPasted(text) {
    const variant = text.match(/\b((?:cpu|mps|kepler|legacy|sm\d{2,3})-[a-z0-9_]{2,16}-py\d{2,3}t?)\b/);
    if (variant) { setVariant(variant[1]); return `This machine's variant is ${variant[1]}.`; }
    if (/NVIDIA-SMI has failed|couldn't communicate with the NVIDIA driver/i.test(text)) return "nvidia-smi found no driver that runs. Paste what `lspci -d 10de:` prints, or type the card's name below; the page then names the driver for it.";
    if (/command not found|is not recognized/i.test(text)) return "There is no nvidia-smi on that machine: no NVIDIA driver is installed. Type the card's name below.";
    // "(rev a2)" of lspci and the bus A2 are no NVIDIA A2.
    const named = text.replace(/\(rev \w+\)|\b[0-9a-f]{2,8}(:[0-9a-f]{2})*:[0-9a-f]{2}\.[0-9a-f]\b/gi, " ");
    const found = cardOf(named);
    if (!found) {
      chosen.gpu = card = null;
      // Up to driver 470 the table has 20 letters for a name: "NVIDIA GeForce ...".
      return /\w ?\.\.\.\s/.test(text) ? "nvidia-smi has cut off the card's name: paste what `nvidia-smi -L` prints." : "No GPU that the farm knows is named there.";
    }
    let said = setGpu(found);
    const others = new Map(named.split("\n").map((line) => cards.find(([name]) => ` ${norm(line)} `.includes(` ${name} `))).filter((other) => other && other[2] !== found[2]).map((other) => [other[1], other[2]]));
    for (const [name, sm] of others) said += ` ${name} (${sm}) is named there too.`;
    const driver = text.match(/Driver Version:\s*(\d{3,4}(?:\.\d+)*)/) || text.match(/,\s*(\d{3,4}\.\d+(?:\.\d+)?)\s*(?:,|$)/m);
    if (driver && data.lastDriver[chosen.gpu] && parseInt(driver[1], 10) > data.lastDriver[chosen.gpu]) said += ` Driver ${driver[1]} does not run it: ${data.lastDriver[chosen.gpu]} is the last branch that does.`;
    else if (driver) said += ` Driver ${driver[1]}.`;
    return said;
  }

  function setVariant(name) {
    const [gpu, cpu, python] = name.split("-");
    card = null;
    for (const [axis, value] of [["gpu", gpu], ["cpu", cpu], ["python", python]]) if (data.axes[axis].includes(value)) chosen[axis] = value;
  }

  // --- links
  function remember() {
    const query = new URLSearchParams();
    if (chosen.gpu && chosen.cpu && chosen.python) query.set("variant", `${chosen.gpu}-${chosen.cpu}-${chosen.python}`);
    else for (const axis of ["gpu", "cpu", "python"]) if (chosen[axis]) query.set(axis, chosen[axis]);
    if (card) query.set("card", card.name); // its architecture does not say what machine is beside it
    for (const axis of ["package", "platform", "torch", "cuda"]) if (chosen[axis] && !(axis === "package" && chosen[axis] === data.axes.package[0])) query.set(axis, chosen[axis]);
    const text = query.toString();
    try { history.replaceState(null, "", text ? `?${text}` : location.pathname); } catch { /* some browsers refuse on file:// */ }
  }

  function recall() {
    const query = new URLSearchParams(location.search);
    for (const axis of AXES) if (data.axes[axis].includes(query.get(axis))) chosen[axis] = query.get(axis);
    if (query.get("variant")) setVariant(query.get("variant"));
    const named = cards.find(([, name]) => name === query.get("card"));
    // A link that says two things, as one that was edited does: what was chosen holds.
    if (named && (chosen.gpu === null || chosen.gpu === named[2])) {
      byId("card").value = named[1];
      byId("card-said").textContent = setGpu(named);
    }
    const guess = /Win/.test(navigator.userAgent) ? "windows" : /Mac/.test(navigator.userAgent) ? "macos" : "linux";
    if (chosen.platform === null && data.axes.platform.includes(guess)) chosen.platform = guess;
    if (chosen.package === null) chosen.package = builds.some((build) => build.wheel && build.package === data.axes.package[0]) || !builds.some((build) => build.wheel) ? data.axes.package[0] : builds.find((build) => build.wheel).package;
  }

  drawForm();
  recall();
  byId("card").addEventListener("input", (event) => {
    const found = event.target.value.trim() ? cardOf(event.target.value) : null;
    if (!found) chosen.gpu = card = null;  // what another card had chosen is not this one's
    byId("card-said").textContent = found ? setGpu(found) : event.target.value.trim() ? "No such card in the list: choose its architecture below." : "";
    draw();
    remember();
  });
  byId("pasted").addEventListener("input", (event) => {
    byId("pasted-said").textContent = event.target.value.trim() ? readPasted(event.target.value.slice(0, 100000)) : "";
    draw();
    remember();
  });
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button.dataset.copy, button));
  draw();
  document.documentElement.classList.add("ready");
  performance.mark("ready");
})();
