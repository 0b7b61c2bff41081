// The answers of `farm why --official`, from the same data by the same rules: farm/plan/compat/official.py and
// farm/cli/official.py, sentence for sentence. What is shown for a text is decided here; page.js draws it.
// tests/unit/site/test_answers.py and test_page.py ask the command and this the same questions.
"use strict";

const Answers = (facts) => {
  const cards = Cards(facts);
  const paste = Paste(facts, cards);
  const { sassRuns } = cards;
  const tegra = new Set(facts.tegra);
  const MAX_BUILDS = 3;
  const MAX_LISTED = 20;

  // --- versions and drivers

  const number = (text) => text.split(".").map(Number);

  function compare(one, other) {
    for (let place = 0; place < Math.max(one.length, other.length); place++) {
      if (one[place] === undefined) return -1;
      if (other[place] === undefined) return 1;
      if (one[place] !== other[place]) return one[place] - other[place];
    }
    return 0;
  }

  // A driver that is written in part, such as 470, is held to as many parts of the other.
  function reaches(driver, floor) {
    const parts = number(driver);
    return compare(parts, number(floor).slice(0, parts.length)) >= 0;
  }

  const highest = (versions) => versions.reduce((best, each) => (compare(number(each), number(best)) > 0 ? each : best));

  function branch(driver) {
    const major = number(driver)[0];
    const range = Object.entries(facts.branches).find(([from, end]) => Number(from) <= major && major < end);
    return range ? Number(range[0]) : major;
  }

  // The last driver branch for one of the cards, and which card ends first.
  function lastBranch(sms) {
    let last = null;
    let of = null;
    for (const sm of sms) {
      const end = facts.cards[sm] && facts.cards[sm][1];
      if (!end) continue;
      if (last === null || end < last || (end === last && sm < of)) [last, of] = [end, sm];
    }
    return [last, of];
  }

  // --- wheels of PyTorch

  const hasCode = (wheel, sm) => wheel.sm.some((code) => sassRuns(code, sm)) || wheel.ptx.some((code) => sm >= code);

  function pip(wheel) {
    const line = `pip install torch==${wheel.torch}`;
    return wheel.index === "pypi" ? line : `${line} --index-url ${facts.index}/cu${wheel.cuda.replace(".", "")}`;
  }

  function driverProblem(wheel, q, floor, last, of) {
    if (last !== null && branch(floor) > last) {
      return [`no driver runs it: it needs ${floor} or newer, and ${last} is the last branch for sm_${of}`, false];
    }
    if (q.driver && !reaches(q.driver, floor)) {
      return [`driver ${q.driver} is too old: torch ${wheel.torch} with CUDA ${wheel.cuda} needs ${floor} or newer`, true];
    }
    if (q.driver && last !== null && branch(q.driver) > last) {
      return [`driver ${q.driver} does not know sm_${of}: branch ${last} is the last that does`, true];
    }
    return [null, false];
  }

  function judge(wheel, q) {
    const lost = q.sms.filter((sm) => !hasCode(wheel, sm));
    const served = q.sms.filter((sm) => !lost.includes(sm));
    const needed = [wheel.needed];
    for (const sm of served) {
      if (facts.cards[sm] && facts.cards[sm][0]) needed.push(String(facts.cards[sm][0]));
      // Without machine code the driver compiles PTX, which minor-version compatibility does not cover.
      if (!wheel.sm.some((code) => sassRuns(code, sm))) needed.push(wheel.full);
    }
    const [last, of] = lastBranch(served);
    const floor = highest(needed);
    const drivers = `${floor} or newer` + (last ? `, up to branch ${last}` : "");
    let [problem, another] = driverProblem(wheel, q, floor, last, of);
    if (q.glibc && wheel.glibc && compare(number(q.glibc), number(wheel.glibc)) < 0) {
      problem = `torch ${wheel.torch} with CUDA ${wheel.cuda} needs glibc ${wheel.glibc} or newer, not ${q.glibc}`;
      another = false;
    }
    if (q.python && !wheel.pythons.includes(q.python)) {
      problem = `there is no wheel of torch ${wheel.torch} for ${q.python}: ${wheel.pythons.join(", ")}`;
      another = false;
    }
    const without = served.filter((sm) => wheel.cudnn !== null && sm < wheel.cudnn)
      .map((sm) => `cuDNN on sm_${sm}: its cuDNN begins at sm_${wheel.cudnn}, so convolutions fail until torch.backends.cudnn.enabled = False`);
    const runs = problem === null && !lost.length;
    return {
      runs, verdict: runs ? "yes" : "no", torch: wheel.torch, cuda: wheel.cuda, pip: pip(wheel), pythons: wheel.pythons, glibc: wheel.glibc,
      drivers, lost, problem, update: another ? drivers : null, without, but: caveats(wheel, served, q), unknown: null,
    };
  }

  // What to know of a wheel that has code for the cards.
  function caveats(wheel, served, q) {
    const compiled = facts.compilers[wheel.cuda] || served;
    const but = served.filter((sm) => !compiled.includes(sm))
      .map((sm) => `NVRTC and ptxas of CUDA ${wheel.cuda} do not know sm_${sm}: what is compiled at run time (torch.compile, some operations) can fail`);
    for (const { sm, since, text } of facts.doubts) {
      if (compare(number(since), number(wheel.torch)) <= 0 && served.some((each) => sm.includes(each))) but.push(text);
    }
    if (q.cpu && facts.old_cpus[q.cpu]) but.push(facts.old_cpus[q.cpu]);
    if (wheel.unconfirmed) but.push(`not confirmed: ${wheel.unconfirmed}`);
    if (facts.faults[wheel.torch]) but.push(facts.faults[wheel.torch]);
    return but;
  }

  const NONE = {
    runs: false, verdict: "no", torch: null, cuda: null, pip: null, pythons: [], glibc: null, drivers: null, lost: [], problem: null,
    update: null, without: [], but: [], unknown: null,
  };

  // Why nothing is said of a release and CUDA that the catalogue has no wheel of.
  function noSuchWheel(q) {
    const unknown = (text) => ({ ...NONE, verdict: "not known", unknown: text });
    if (!q.torch) return unknown(`the catalogue has no wheel with CUDA ${q.cuda} on ${q.platform}`);
    const wheels = facts.wheels.filter((wheel) => wheel.torch === q.torch && wheel.platform === q.platform);
    const cudas = [...new Set(wheels.map((wheel) => wheel.cuda))].sort((one, other) => compare(number(one), number(other)));
    const named = cudas.map((cuda) => `CUDA ${cuda}`).join(", ") || "no CUDA";
    return unknown(`the catalogue has no such wheel: on ${q.platform} torch ${q.torch} came with ${named}`);
  }

  function best(q) {
    let found = null;
    let asked = false;
    for (const wheel of facts.wheels) {
      if (wheel.platform !== q.platform || (q.torch && wheel.torch !== q.torch) || (q.cuda && wheel.cuda !== q.cuda)) continue;
      asked = true;
      const answer = judge(wheel, q);
      if (answer.lost.length === q.sms.length) continue;
      const rank = answer.lost.length * 2 + (answer.problem ? 1 : 0);
      if (rank === 0) return answer;
      if (found === null || rank < found[0]) found = [rank, answer];
    }
    if (!asked && q.cuda) return noSuchWheel(q);
    return found ? found[1] : NONE;
  }

  // Why no newer release runs on the cards.
  function whyNotNewer(q, torch) {
    for (const wheel of facts.wheels) {
      if (compare(number(wheel.torch), number(torch)) <= 0) return null;
      if (wheel.platform !== q.platform) continue;
      const answer = judge(wheel, q);
      if (!answer.lost.length) return answer.problem;
    }
    return null;
  }

  // --- wheels for the CPU alone: farm/plan/compat/official_cpu.py

  function cpuProblem(wheel, q) {
    if (q.python && !wheel.pythons.includes(q.python)) {
      return `there is no wheel of torch ${wheel.torch} for ${q.python}: ${wheel.pythons.join(", ")}`;
    }
    if (q.glibc && wheel.glibc && compare(number(q.glibc), number(wheel.glibc)) < 0) {
      return `torch ${wheel.torch} needs glibc ${wheel.glibc} or newer, not ${q.glibc}`;
    }
    return null;
  }

  function bestForCpu(q) {
    const place = facts.cpu.places[q.platform] || {};
    const end = place.last ? `torch ${place.last} is the last for ${q.platform} (${place.source})` : null;
    const wheels = facts.cpu.wheels.filter((wheel) => wheel.platform === q.platform && (!q.torch || q.torch === wheel.torch));
    const none = { wheel: null, problem: null, newer: null, but: [], unknown: null };
    if (!wheels.length && end) return { ...none, problem: end };
    if (!wheels.length) return { ...none, unknown: `the catalogue has no ${q.torch ? `torch ${q.torch}` : "wheel for the CPU"} for ${q.platform}` };
    const problems = wheels.map((wheel) => cpuProblem(wheel, q));
    const running = Math.max(0, problems.indexOf(null));
    const wheel = wheels[running];
    const but = [q.cpu ? facts.old_cpus[q.cpu] : null, facts.faults[wheel.torch], place.instead].filter(Boolean);
    return { wheel, problem: problems[running], newer: running ? problems[0] : end, but, unknown: null };
  }

  function cpuHeadline(q, answer) {
    if (answer.unknown) return `not known: ${answer.unknown}`;
    if (answer.problem) return `no: ${answer.problem}`;
    return `yes: PyTorch's own wheel of torch ${answer.wheel.torch} runs on ${q.cpu ? `a CPU with ${q.cpu}` : "the CPU"}`;
  }

  const MAC_MACHINES = { aarch64: "arm64" };
  const cpuPlatform = (system, machine) => `${system}-${(system === "macos" && MAC_MACHINES[machine]) || machine || "x86_64"}`;

  // The question about a CPU alone that a text without a card asks; null: it asks none.
  function askCpu(pasted, choices) {
    const mac = pasted.platform === "macos";
    if (pasted.cards.length || pasted.problem || !(pasted.cpu || mac)) return null;
    const system = pasted.platform || choices.platform;
    const machine = pasted.cpu ? facts.cpu.machines[pasted.cpu] : pasted.machine;
    if (mac && !machine) return null;
    return {
      sms: [], platform: cpuPlatform(system, machine), python: choices.python || pasted.python, torch: null, cpu: pasted.cpu,
      glibc: system === "linux" ? pasted.glibc : null,
    };
  }

  // --- others, and builds of one's own

  function isFor(row, q) {
    if (!row.platforms.includes(q.platform) || !q.sms.every((sm) => hasCode(row, sm))) return false;
    const outside = q.torch && (compare(number(row.since), number(q.torch)) > 0 || compare(number(q.torch), number(row.torch)) > 0);
    if (outside || (q.cuda && q.cuda !== row.cuda)) return false;
    if (row.pythons && row.pythons.length && q.python && !row.pythons.includes(q.python)) return false;
    const needed = facts.floors[q.platform.split("-")[0]][row.cuda.split(".")[0]] || "0";
    const [last] = lastBranch(q.sms);
    if (last !== null && number(needed)[0] > last) return false;
    return !q.driver || reaches(q.driver, needed);
  }

  function others(q) {
    const found = new Map();
    for (const row of facts.makers) {
      const key = `${row.maker} ${row.cuda.split(".")[0]}`;
      if (isFor(row, q) && !found.has(key)) found.set(key, { ...row, install: row.install.replaceAll("{arch}", q.sms.join(",")) });
    }
    return [...found.values()];
  }

  // Builds of one's own: release, CUDA, how far it was proved, words. null: that question is not in the data.
  function own(q) {
    if (q.sms.length > 1 || q.python) return null;
    const rows = (facts.own[q.platform] || {})[q.sms[0]] || [];
    const build = { sm: q.sms, ptx: [], pythons: [], cudnn: null, torch: "", cuda: "", index: "pypi" };
    return rows.filter((row) => judge({ ...build, needed: row[4], full: row[4] }, q).problem === null).slice(0, MAX_BUILDS);
  }

  // --- a text becomes a question

  // The cards of a text with their SMs, the question that it asks, notes; or a problem.
  function ask(text, choices) {
    const pasted = paste.read(text);
    const cpu = askCpu(pasted, choices);
    if (cpu) return { pasted, cpu };
    if (!pasted.cards.length) return { pasted, problem: pasted.problem || "no card is named there" };
    const known = [];
    const errors = [];
    for (const card of pasted.cards) {
      const { sm, problem } = cards.resolve(card);
      if (problem) errors.push(problem);
      else known.push({ name: card.name, sm, usual: cards.machine(card.name, sm) });
    }
    if (!known.length) return { pasted, problem: errors[0] };
    const machines = new Set(known.map((card) => (card.usual === "aarch64" ? card.usual : pasted.machine || card.usual)));
    if (machines.size > 1) return { pasted, problem: `no machine has all of ${pasted.cards.map((card) => card.name).join(", ")}: some sit beside Arm cores alone` };
    const platform = `${pasted.platform || choices.platform}-${[...machines][0]}`;
    if (!facts.platforms.includes(platform)) return { pasted, problem: `PyTorch publishes no CUDA wheels for ${platform}` };
    const q = {
      sms: [...new Set(known.map((card) => card.sm))], platform, driver: pasted.driver,
      python: choices.python || (facts.pythons.includes(pasted.python) ? pasted.python : null), torch: null, cuda: null,
      glibc: platform.startsWith("linux") ? pasted.glibc : null, cpu: pasted.cpu,
    };
    const named = known.map((card) => cards.named(card.name, card.sm)).join(" and ");
    return { pasted, q, named, notes: [...pasted.notes, ...errors.map((error) => `Left out: ${error}.`)] };
  }

  // Yes or no in one sentence.
  function headline(named, answer) {
    if (answer.unknown) return `not known: ${answer.unknown}`;
    if (answer.torch === null) return `no: none of PyTorch's own wheels in the catalogue has code for ${named}`;
    if (answer.runs) return `yes: PyTorch's own wheel of torch ${answer.torch} with CUDA ${answer.cuda} runs on ${named}`;
    if (answer.lost.length) {
      const lost = answer.lost.map((sm) => `sm_${sm}`).join(", ");
      return `no: no wheel has code for all of ${named}; torch ${answer.torch} leaves out ${lost}`;
    }
    return `no: ${answer.problem}`;
  }

  // --- what is shown: blocks of a kind, which page.js draws

  const line = (text) => ({ kind: "line", text });
  const note = (text) => ({ kind: "note", text });
  const bad = (text) => ({ kind: "bad", text });
  const heading = (text) => ({ kind: "heading", text });
  const command = (text) => ({ kind: "command", text });
  const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");

  // Rows of the index: verified ones first, and of them torch.
  const inOrder = (rows) => [...rows].sort((one, other) => rank(one) - rank(other));
  const rank = (row) => (row.project === "torch" ? 0 : 1) + (row.verified ? 0 : 2);

  const forCards = (sms) => inOrder(facts.there.filter((row) => sms.every((sm) => row.sms.some((code) => sassRuns(code, sm)))));

  function listed(rows) {
    if (!rows.length) return [line("No wheel here is in a group for it.")];
    return [{ kind: "wheels", rows: rows.slice(0, MAX_LISTED) }, ...(rows.length > MAX_LISTED ? [note(`and ${rows.length - MAX_LISTED} more`)] : [])];
  }

  function wheelOfPyTorch(answer, q) {
    const ends = q.sms.map((sm) => facts.ends[sm]).filter(Boolean);
    const announced = [...new Set(ends.map((end) => `The end: ${end.text} (${end.source}).`))].map(note);
    if (answer.torch === null) return announced;
    const newer = answer.runs ? whyNotNewer(q, answer.torch) : null;
    const pythons = answer.pythons.map((word) => `${word[2]}.${word.slice(3)}`).join(" ");
    const glibc = answer.glibc ? `, glibc ${answer.glibc} or newer` : "";
    return [
      ...(answer.update && !answer.lost.length ? [line(sentence(`another driver is enough: ${answer.update}`))] : []),
      command(answer.pip),
      note(`${q.platform}${glibc}; Python ${pythons}; driver ${answer.drivers}`),
      ...answer.without.map((text) => bad(sentence(`without ${text}`))),
      ...answer.but.map((text) => note(sentence(`but: ${text}`))),
      ...(newer ? [note(sentence(`newer ones: ${newer}`))] : []),
      ...announced,
    ];
  }

  function ownBuilds(q) {
    const reasons = q.sms.map((sm) => facts.no_variant[sm]).filter(Boolean);
    if (reasons.length) return [heading("A wheel of your own"), line(sentence(`none either: ${reasons[0]}`))];
    let builds = own(q);
    let late = null;
    if (builds && !builds.length && q.driver) {
      builds = own({ ...q, driver: null });
      const floors = builds.map((row) => row[4]);
      const [last] = lastBranch(q.sms);
      if (floors.length) {
        const lowest = floors.reduce((one, other) => (compare(number(other), number(one)) < 0 ? other : one));
        late = `With driver ${lowest} or newer${last ? `, up to branch ${last}` : ""}:`;
      }
    }
    if (builds && !builds.length) {
      const board = q.sms.some((sm) => tegra.has(sm));
      return board ? [heading("A wheel of your own"), line(sentence(`none either: ${facts.jetson}`))] : [];
    }
    if (!builds) {
      const words = [`farm why --official ${q.sms.map((sm) => `--gpu sm_${sm}`).join(" ")} --platform ${q.platform.split("-")[0]}`];
      if (q.driver) words.push(`--driver ${q.driver}`);
      if (q.python) words.push(`--python ${q.python}`);
      return [heading("A wheel of your own"), command(words.join(" "))];
    }
    const blocks = [heading("A wheel of your own"), ...(late ? [line(late)] : [])];
    for (const [torch, cuda, standing, words, , without] of builds) {
      blocks.push(line(`torch ${torch}${cuda ? `, CUDA ${cuda}` : ""} (${standing})`), command(`farm submit ${words}`));
      if (without) blocks.push(note(`Without ${without}.`));
    }
    return blocks;
  }

  function otherMakers(q) {
    const rows = others(q);
    const about = (row) => `${row.maker}: torch ${row.torch}, CUDA ${row.cuda}. Has ${row.has}; lacks ${row.lacks}; not confirmed: ${row.unconfirmed}.`;
    const beside = facts.beside.filter((row) => q.sms.some((sm) => row.sm.includes(sm)))
      .map((row) => note(`Beside torch, ${row.maker}: ${row.has}; lacks ${row.lacks}; not confirmed: ${row.unconfirmed}.`));
    if (!rows.length && !beside.length) return [];
    return [heading("Other makers"), ...rows.flatMap((row) => [line(about(row)), command(row.install)]), ...beside];
  }

  // A line names one wheel: which one, where the group has several of that version.
  const madeFor = (row) => (row.pip_for ? ` (${row.pip_for})` : "");

  // The answer about cards: the line to copy first.
  function aboutCards({ pasted, q, named, notes }) {
    const answer = best(q);
    const here = forCards(q.sms);
    const inIndex = here.find((row) => row.project === "torch" && row.verified && row.pip);
    const blocks = [];
    if (inIndex && !(answer.runs && !answer.without.length)) {
      blocks.push(line(`This index has torch ${inIndex.version} for ${named}${madeFor(inIndex)}.`), command(inIndex.pip));
    }
    blocks.push(line(sentence(headline(named, answer))), ...wheelOfPyTorch(answer, q));
    blocks.push(note(sentence(`read: ${paste.summary(pasted)}`)), ...notes.map(note));
    if (!answer.runs || answer.without.length) blocks.push(...otherMakers(q), ...ownBuilds(q));
    return [...blocks, heading("In this index"), ...listed(here)];
  }

  // A CPU alone: its wheel of PyTorch, then what this index has for its level.
  function aboutCpu(q) {
    const answer = bestForCpu(q);
    const blocks = [line(sentence(cpuHeadline(q, answer)))];
    if (answer.wheel) {
      const pythons = answer.wheel.pythons.map((word) => `${word[2]}.${word.slice(3)}`).join(" ");
      const glibc = answer.wheel.glibc ? `, glibc ${answer.wheel.glibc} or newer` : "";
      blocks.push(command(answer.wheel.pip), note(`${q.platform}${glibc}; Python ${pythons}`));
    }
    if (answer.newer) blocks.push(note(sentence(`newer ones: ${answer.newer}`)));
    blocks.push(...answer.but.map((text) => note(sentence(`but: ${text}`))));
    blocks.push(note("`farm detect` names the CPU level of a machine, `farm plan --variant cpu-avx2-py311` what a wheel of your own costs."));
    const group = q.cpu ? `cpu-${q.cpu}` : "cpu";
    const rows = inOrder(facts.there.filter((row) => row.group === group || (!q.cpu && row.group.startsWith("cpu-"))));
    return [...blocks, heading("In this index"), ...listed(rows)];
  }

  // `cpu`, `cpu-avx`: typed, without a card.
  function ofCpuWord(word, { platform, python }) {
    const level = word.slice("cpu-".length).split("-")[0];
    const cpu = Object.hasOwn(facts.cpu.machines, level) ? level : null;
    return { sms: [], platform: cpuPlatform(platform, cpu && facts.cpu.machines[cpu]), python, torch: null, cpu, glibc: null };
  }

  // Links to projects; `place`: what of their pages is shown.
  const links = (names, place) => ({ kind: "projects", names: names.slice(0, MAX_LISTED), place: place || null });
  const releaseOf = (version) => version.split("+")[0];

  // A project, also as NAME==VERSION: the line that installs it from the first of its groups. Only the newest wheel of a group is in
  // the data: the lines of an older one are on the project's page.
  function aboutProject(name, version) {
    const rows = inOrder(facts.there.filter((row) => row.project === name));
    const row = version ? rows.find((each) => each.version === version || releaseOf(each.version) === version) : rows[0];
    const blocks = row && row.pip ? [line(`${name} ${row.version}, from the group ${row.group}${madeFor(row)}:`), command(row.pip)] : [];
    const summary = (facts.projects || []).find((each) => each.name === name);
    const release = version && summary && summary.releases.includes(releaseOf(version)) ? releaseOf(version) : null;
    if (version && !release) blocks.push(line(`No wheel of ${name} ${version} is here.`));
    if (release && !row) blocks.push(line(`${name} ${release} is not the newest of its groups; its page has the lines that install it.`));
    return [...blocks, links([name], release && `release-${release}`), heading("In this index"), ...listed(rows)];
  }

  function aboutGroup(group) {
    const rows = inOrder(facts.there.filter((row) => row.group === group));
    const first = rows.find((row) => row.pip);
    return [...(first ? [line(`${first.project} ${first.version}, from the group ${group}${madeFor(first)}:`), command(first.pip)] : []), heading("In this index"), ...listed(rows)];
  }

  // A project that the text names exactly, with its version: `torch 2.6.0`, `torch==2.6.0`, `pytorch`, or `2.6.0` alone, of torch.
  function projectOf(text, projects) {
    const torch = (facts.projects || []).find((each) => each.name === "torch");
    if (torch && torch.releases.includes(releaseOf(text))) return ["torch", text];
    const found = /^([a-z0-9][a-z0-9._-]*?)(?:(?:\s*==\s*|\s+)v?(\d[\w.+!-]*))?$/i.exec(text);
    if (!found) return null;
    const normal = found[1].toLowerCase().replace(/[-_.]+/g, "-");
    const name = Object.hasOwn(facts.aliases, normal) ? facts.aliases[normal] : normal;
    return projects.includes(name) ? [name, found[2] || null] : null;
  }

  // What is shown for a text: blocks, and the projects that the table below keeps; null: all of them.
  function reply(text, { platform, python, projects }) {
    const word = text.trim();
    if (!word) return { blocks: [], projects: null };
    const exact = projectOf(word, projects);
    if (exact) return { blocks: aboutProject(...exact), projects: [exact[0]] };
    const small = word.toLowerCase();
    if (facts.there.some((row) => row.group === small)) return { blocks: aboutGroup(small), projects: null };
    if (/^cpu(?:-\w*)?$/.test(small)) return { blocks: aboutCpu(ofCpuWord(small, { platform, python })), projects: null };
    const question = ask(text, { platform, python });
    const named = projects.filter((name) => name.includes(small));
    if (question.cpu) {
      const read = [note(sentence(`read: ${paste.summary(question.pasted)}`)), note("No card is named there; this is about the CPU alone.")];
      return { blocks: [...aboutCpu(question.cpu), ...read, ...question.pasted.notes.map(note)], projects: null };
    }
    if (question.q) return { blocks: [...aboutCards(question), ...(named.length ? [links(named)] : [])], projects: null };
    if (named.length) return { blocks: [links(named)], projects: named };
    return { blocks: [note(sentence(question.problem)), ...question.pasted.notes.map(note)], projects: null };
  }

  return { best, bestForCpu, others, own, ask, headline, reply, find: cards.find, maker: cards.maker, read: paste.read, summary: paste.summary, sassRuns };
};
