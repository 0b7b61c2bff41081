// The answers of `farm why --official`, from the same data by the same rules: farm/plan/compat/official.py and
// farm/catalog/gpus.py, sentence for sentence. tests/unit/site/test_answers.py asks both the same questions.
"use strict";
const Answers = (() => {
  const number = (text) => text.split(".").map(Number);
  function compare(one, other) {
    for (let place = 0; place < Math.max(one.length, other.length); place++) {
      if (one[place] === undefined) return -1;
      if (other[place] === undefined) return 1;
      if (one[place] !== other[place]) return one[place] - other[place];
    }
    return 0;
  }
  const reaches = (driver, floor) => { const have = number(driver); return compare(have, number(floor).slice(0, have.length)) >= 0; };
  const highest = (versions) => versions.reduce((best, each) => (compare(number(each), number(best)) > 0 ? each : best));

  return (facts) => {
    const tegra = new Set(facts.tegra);
    const sassRuns = (code, card) => (tegra.has(code) || tegra.has(card) ? code === card : Math.floor(code / 10) === Math.floor(card / 10) && code <= card);
    const hasCode = (wheel, sm) => wheel.sm.some((code) => sassRuns(code, sm)) || wheel.ptx.some((code) => sm >= code);
    function branch(driver) {
      const major = number(driver)[0];
      const found = Object.entries(facts.branches).find(([from, end]) => Number(from) <= major && major < end);
      return found ? Number(found[0]) : major;
    }
    const pip = (wheel) => `pip install torch==${wheel.torch}` + (wheel.index === "pypi" ? "" : ` --index-url ${facts.index}/cu${wheel.cuda.replace(".", "")}`);

    function judge(wheel, q) {
      const lost = q.sms.filter((sm) => !hasCode(wheel, sm));
      const served = q.sms.filter((sm) => !lost.includes(sm));
      const needed = [wheel.needed];
      let last = null, of = null;
      for (const sm of served) {
        const card = facts.cards[sm];
        if (card && card[0]) needed.push(String(card[0]));
        if (card && card[1] && (last === null || card[1] < last || (card[1] === last && sm < of))) [last, of] = [card[1], sm];
        if (!wheel.sm.some((code) => sassRuns(code, sm))) needed.push(wheel.full);
      }
      const floor = highest(needed);
      const drivers = `${floor} or newer` + (last ? `, up to branch ${last}` : "");
      let problem = null, update = null;
      if (last !== null && branch(floor) > last) problem = `no driver runs it: it needs ${floor} or newer, and ${last} is the last branch for sm_${of}`;
      else if (q.driver && !reaches(q.driver, floor)) {
        problem = `driver ${q.driver} is too old: torch ${wheel.torch} with CUDA ${wheel.cuda} needs ${floor} or newer`;
        update = drivers;
      } else if (q.driver && last !== null && branch(q.driver) > last) {
        problem = `driver ${q.driver} does not know sm_${of}: branch ${last} is the last that does`;
        update = drivers;
      }
      if (q.glibc && wheel.glibc && compare(number(q.glibc), number(wheel.glibc)) < 0) {
        problem = `torch ${wheel.torch} with CUDA ${wheel.cuda} needs glibc ${wheel.glibc} or newer, not ${q.glibc}`;
        update = null;
      }
      if (q.python && !wheel.pythons.includes(q.python)) {
        problem = `there is no wheel of torch ${wheel.torch} for ${q.python}: ${wheel.pythons.join(", ")}`;
        update = null;
      }
      const without = served.filter((sm) => wheel.cudnn !== null && sm < wheel.cudnn)
        .map((sm) => `cuDNN on sm_${sm}: its cuDNN begins at sm_${wheel.cudnn}, so convolutions fail until torch.backends.cudnn.enabled = False`);
      const compiled = facts.compilers[wheel.cuda] || served;
      const but = served.filter((sm) => !compiled.includes(sm))
        .map((sm) => `NVRTC and ptxas of CUDA ${wheel.cuda} do not know sm_${sm}: what is compiled at run time (torch.compile, some operations) can fail`);
      if (q.cpu && facts.old_cpus[q.cpu]) but.push(facts.old_cpus[q.cpu]);
      if (wheel.unconfirmed) but.push(`not confirmed: ${wheel.unconfirmed}`);
      if (facts.faults[wheel.torch]) but.push(facts.faults[wheel.torch]);
      const runs = problem === null && !lost.length;
      return { runs, verdict: runs ? "yes" : "no", torch: wheel.torch, cuda: wheel.cuda, pip: pip(wheel), pythons: wheel.pythons, glibc: wheel.glibc, drivers, lost, problem, update, without, but, unknown: null };
    }

    const NONE = { runs: false, verdict: "no", torch: null, cuda: null, pip: null, pythons: [], glibc: null, drivers: null, lost: [], problem: null, update: null, without: [], but: [], unknown: null };
    function noSuchWheel(q) {
      const unknown = (text) => ({ ...NONE, verdict: "not known", unknown: text });
      if (!q.torch) return unknown(`the catalogue has no wheel with CUDA ${q.cuda} on ${q.platform}`);
      const cudas = [...new Set(facts.wheels.filter((wheel) => wheel.torch === q.torch && wheel.platform === q.platform).map((wheel) => wheel.cuda))];
      const named = cudas.sort((one, other) => compare(number(one), number(other))).map((cuda) => `CUDA ${cuda}`).join(", ") || "no CUDA";
      return unknown(`the catalogue has no such wheel: on ${q.platform} torch ${q.torch} came with ${named}`);
    }
    function best(q) {
      let found = null, asked = false;
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

    function others(q) {
      const found = new Map();
      for (const row of facts.makers) {
        if (!row.platforms.includes(q.platform) || !q.sms.every((sm) => hasCode(row, sm))) continue;
        if (q.torch && !(compare(number(row.since), number(q.torch)) <= 0 && compare(number(q.torch), number(row.torch)) <= 0)) continue;
        if ((q.cuda && q.cuda !== row.cuda) || (row.pythons && row.pythons.length && q.python && !row.pythons.includes(q.python))) continue;
        const major = row.cuda.split(".")[0];
        const needed = facts.floors[q.platform.split("-")[0]][major] || "0";
        const lasts = q.sms.map((sm) => facts.cards[sm] && facts.cards[sm][1]).filter(Boolean);
        if (lasts.length && number(needed)[0] > Math.min(...lasts)) continue;
        if (q.driver && !reaches(q.driver, needed)) continue;
        if (!found.has(`${row.maker} ${major}`)) found.set(`${row.maker} ${major}`, { ...row, install: row.install.replaceAll("{arch}", q.sms.join(",")) });
      }
      return [...found.values()];
    }

    // Builds of one's own: release, CUDA, how far it was proved, words. null: that question is not in the data.
    function own(q) {
      if (q.sms.length > 1 || q.python) return null;
      const rows = (facts.own[q.platform] || {})[q.sms[0]] || [];
      const build = { sm: q.sms, ptx: [], pythons: [], cudnn: null };
      return rows.filter((row) => judge({ ...build, needed: row[4], full: row[4], torch: "", cuda: "", index: "pypi" }, q).problem === null).slice(0, 3);
    }

    // --- names
    const names = facts.names;
    const marks = new RegExp(names.marks, "g"), brackets = new RegExp(names.brackets), inside = new RegExp(names.inside, "g");
    const strip = names.strip.map((pattern) => new RegExp(pattern, "g"));
    const [family, series] = names.loose.map((pattern) => new RegExp(pattern));
    function full(name) {
      let text = name.slice(0, 200).toLowerCase().replace(marks, " ");
      const bracketed = brackets.exec(text);
      if (bracketed) text = bracketed[1];
      for (const pattern of strip) text = text.replace(pattern, " ");
      return text.replace(/[^a-z0-9]/g, "").replace(inside, "");
    }
    function chipOf(line) {
      const chip = new RegExp(names.chip).exec(line.slice(0, 200).toLowerCase());
      const begun = chip ? Object.keys(names.chips).filter((known) => chip[1].startsWith(known)) : [];
      return begun.length ? names.chips[begun.reduce((one, other) => (other.length > one.length ? other : one))] : null;
    }
    // Pairs of name and SM; several where a name was sold with several chips.
    function find(name) {
      const several = name.includes("/") ? brackets.exec(name.slice(0, 200).toLowerCase()) : null;
      if (several) {
        const head = name.slice(0, several.index);
        for (const each of several[1].split("/")) { const cards = find(`${head}[${each.trim()}]`); if (cards.length) return cards; }
        return [];
      }
      const whole = full(name), bare = whole.replace(family, ""), keys = [whole, bare, bare.replace(series, "")];
      for (const [place, key] of keys.entries()) {
        const found = Object.hasOwn(names.index[place], key) ? names.index[place][key] : null;
        if (!found) continue;
        const chip = chipOf(name), ours = found.filter(([, sm]) => sm === chip);
        return ours.length ? ours : found;
      }
      return [];
    }
    function maker(name) {
      const text = name.slice(0, 200).toLowerCase().replace(marks, " ").replace(/[^a-z0-9]+/g, " ");
      const words = text.replace(/\b(?:amd|ati|intel|apple)\b/g, " ").trim();
      for (const [company, known] of Object.entries(names.others)) {
        if (text.trim().split(/\s+/).includes(company.toLowerCase()) || known.some((each) => new RegExp(`^(?:${each})\\b`).test(words))) return company;
      }
      return null;
    }

    // --- pasted text
    const paste = facts.paste;
    const first = (patterns, line) => patterns.map((pattern) => new RegExp(pattern).exec(line)).filter(Boolean).map((match) => match[1]);
    function csv(lines) {
      const cards = [];
      let driver = null, columns = [];
      for (const line of lines) {
        const cells = line.split(",").map((cell) => cell.trim());
        const versions = cells.filter((cell) => new RegExp(paste.version).test(cell));
        if (cells.includes(paste.columns.name)) columns = cells;
        else if (columns.length && cells.length === columns.length) {
          cards.push(cells[columns.lastIndexOf(paste.columns.name)]);
          const place = columns.lastIndexOf(paste.columns.driver);
          if (place >= 0) driver = cells[place];
        } else if (cells.length > 1 && versions.length) {
          const found = cells.filter((cell) => find(cell).length);
          cards.push(...found);
          if (found.length) driver = versions[0];
        }
      }
      return [cards, driver];
    }
    function read(text) {
      const lines = text.split("\n").slice(0, 2000).map((line) => line.slice(0, 300));
      let cards = lines.flatMap((line) => first(paste.cards, line));
      let driver = lines.flatMap((line) => first(paste.drivers, line))[0] || null;
      if (!cards.length) { const [named, found] = csv(lines); cards = named; driver = driver || found; }
      const windows = new RegExp(paste.windows).exec(text);
      if (driver === null && windows) driver = `${windows[1]}${windows[2]}.${windows[3]}`;
      const filled = lines.map((line) => line.trim()).filter(Boolean);
      if (!cards.length && filled.length <= 3) cards = filled.filter((line) => new RegExp(paste.typed).test(line) && (filled.length === 1 || find(line).length));
      const message = paste.messages.find((each) => new RegExp(each.pattern).test(text));
      return { cards: message ? [] : cards, driver, problem: message ? message.text : null };
    }
    return { best, others, own, find, maker, read, sassRuns };
  };
})();
if (typeof module !== "undefined") module.exports = Answers;
