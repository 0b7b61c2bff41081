// What a pasted text says of a machine: the rules of farm/catalog/paste.yaml, read as farm/catalog/paste.py reads them.
"use strict";

const Paste = (facts, cards) => {
  const rules = facts.paste;
  const MAX_LINES = 2000;
  const MAX_LINE = 300;
  const MAX_FLAGS = 6000;
  const MAX_TYPED = 3;
  const compiled = new Map();

  function pattern(source, flags = "i") {
    const key = flags + source;
    if (!compiled.has(key)) compiled.set(key, new RegExp(source, flags));
    return compiled.get(key);
  }
  const match = (source, text) => pattern(source).exec(text);
  const filled = (template, found) => template.replace(/\$(\d)/g, (_, place) => found[Number(place)] || "");
  const isCut = (card) => card.sm === null && match(rules.cut, card.name) !== null;
  const card = (name, copies = 1, sm = null) => ({ name, copies, sm });

  function value(entries, lines) {
    for (const rule of entries) {
      for (const line of lines) {
        const found = match(rule.pattern, line);
        if (!found) continue;
        const text = filled(rule.value, found);
        if (rule.table === null) return text;
        if (Object.hasOwn(rules.tables[rule.table], text)) return rules.tables[rule.table][text];
      }
    }
    return null;
  }

  function ofCutName(name) {
    if (!match(rules.cut, name)) return null;
    const sms = cards.begins(name.replace(/\.\.\.$/, ""));
    return sms.length === 1 ? Number(sms[0].slice(2)) : null;
  }

  function ofRule(rule, lines) {
    const found = [];
    const names = new Set();
    for (const line of lines) {
      const hit = match(rule.pattern, line);
      if (!hit) continue;
      const name = filled(rule.name, hit);
      if (rule.once && names.has(name)) continue;
      names.add(name);
      const number = rule.sm ? filled(rule.sm, hit).replace(/[^0-9]/g, "") : "";
      found.push(card(name, 1, number ? Number(number) : ofCutName(name)));
    }
    return found;
  }

  // The cards of the first kind of line that names one in full, else of the first with a cut name.
  function listed(lines, once) {
    let cut = [];
    for (const rule of rules.cards) {
      if (rule.once !== once) continue;
      const found = ofRule(rule, lines);
      if (found.some((each) => !isCut(each))) return found;
      if (!cut.length) cut = found;
    }
    return cut;
  }

  function driverNumber(text) {
    const windows = /^\d{1,2}\.\d{1,2}\.1(\d)\.(\d{2})(\d{2})$/.exec(text.trim());
    return windows ? `${windows[1]}${windows[2]}.${windows[3]}` : text;
  }

  // Rows of comma-separated cells, by their header, or by what the cells are.
  function cells(lines) {
    const found = [];
    let driver = null;
    let header = [];
    for (const line of lines) {
      const row = line.split(",").map((cell) => cell.trim());
      const small = row.map((cell) => cell.toLowerCase());
      if (row.length > 1 && rules.columns.name.some((name) => small.includes(name))) {
        header = small;
        continue;
      }
      let versions;
      if (header.length && row.length === header.length) {
        const column = (name) => row[header.lastIndexOf(name)];
        found.push(...rules.columns.name.filter(column).map((name) => card(column(name))));
        versions = rules.columns.driver.filter(column).map(column);
      } else {
        versions = row.filter((cell) => match(rules.version, cell));
        if (row.length < 2 || !versions.length) continue;
        const named = row.filter((cell) => cards.find(cell).length).map((cell) => card(cell));
        found.push(...named);
        if (!named.length) versions = [];
      }
      if (versions.length) driver = driverNumber(header.length ? versions[versions.length - 1] : versions[0]);
    }
    return [found, driver];
  }

  // A name of the catalogue, with how many there are.
  function typedCard(text) {
    if (!match(rules.typed, text)) return null;
    if (cards.find(text).length) return card(text);
    for (const source of rules.times) {
      const found = match(source, text);
      if (found && cards.find(found[2]).length) return card(found[2], Number(found[1] || found[found.length - 1]));
    }
    return null;
  }

  function typed(lines, known) {
    const texts = lines.map((line) => line.trim()).filter(Boolean);
    if (texts.length > MAX_TYPED) return [];
    if (!known) return texts.length === 1 && match(rules.typed, texts[0]) ? [card(texts[0])] : [];
    const found = [];
    for (const line of texts) {
      const whole = typedCard(line);
      const parts = whole ? [] : line.split(pattern(rules.separator));
      found.push(...(whole ? [whole] : parts.map(typedCard).filter(Boolean)));
    }
    return found;
  }

  // Cards of the catalogue that sentences mention.
  function mentioned(lines) {
    const found = [];
    const names = new Set();
    for (const line of lines) {
      for (const hit of line.matchAll(pattern(rules.mentioned, "gi"))) {
        const name = hit[1].trim();
        if (!names.has(name.toLowerCase()) && cards.find(name).length) found.push(card(name));
        names.add(name.toLowerCase());
      }
    }
    return found;
  }

  // NVIDIA's cards, and a note on each other one; all of them where none is NVIDIA's.
  function nvidia(found) {
    const others = new Map();
    const ours = [];
    for (const each of found) {
      const company = each.sm !== null || cards.find(each.name).length ? null : cards.maker(each.name);
      if (company === null) ours.push(each);
      else others.set(each.name, company);
    }
    if (!ours.length) return [found, []];
    return [ours, [...others].map(([name, company]) => `Left out: ${name}, a card of ${company}, which runs no CUDA.`)];
  }

  function together(found) {
    const places = new Map();
    for (const each of found) {
      const key = JSON.stringify([each.name, each.sm]);
      const copies = places.has(key) ? places.get(key).copies : 0;
      places.set(key, { ...each, copies: copies + each.copies });
    }
    return [...places.values()];
  }

  // The highest CPU level whose features a line of flags has.
  function level(lines, machine) {
    for (const line of lines) {
      const found = match(rules.flags, line);
      if (!found) continue;
      const flags = new Set(found[1].toLowerCase().split(/\s+/));
      for (const [name, levels] of Object.entries(rules.levels)) {
        if (machine !== null && machine !== name) continue;
        for (const [each, needs] of Object.entries(levels)) {
          if (needs.length && needs.every((flag) => flags.has(flag))) return each;
        }
      }
    }
    return null;
  }

  function read(text) {
    const spaces = text.replaceAll("\r\n", "\n").replace(/[\u00a0\u2007\u202f\ufeff\t]/g, " ");
    const whole = spaces.split(/[\r\n]/).slice(0, MAX_LINES).map((line) => line.slice(0, MAX_FLAGS));
    const lines = whole.map((line) => line.slice(0, MAX_LINE));
    const values = {};
    for (const [name, entries] of Object.entries(rules.fields)) values[name] = value(entries, lines);
    let found = listed(lines, false);
    if (!found.length) {
      const [rows, driver] = cells(lines);
      found = rows;
      values.driver = values.driver || driver;
    }
    for (const kind of [() => listed(lines, true), () => typed(lines, true), () => mentioned(lines), () => typed(lines, false)]) {
      if (!found.length) found = kind();
    }
    const notes = rules.notes.filter((note) => match(note.pattern, spaces)).map((note) => note.text);
    const said = rules.messages.find((each) => match(each.pattern, spaces));
    let message = said ? said.text : null;
    // What a message says is a card's name there: "bash: nvidia-smi: command not found".
    if (message && !found.some((each) => each.sm !== null || cards.find(each.name).length)) found = [];
    else if (message) {
      notes.push(message);
      message = null;
    }
    const [ours, leftOut] = nvidia(found);
    const named = ours.filter((each) => !isCut(each));
    if (ours.length && !named.length) message = message || rules.cut_text;
    else if (named.length < ours.length) notes.push(rules.cut_text);
    return { cards: together(named), ...values, cpu: level(whole, values.machine), problem: message, notes: [...notes, ...leftOut] };
  }

  function counted(each) {
    const name = each.copies === 1 ? each.name : `${each.copies} x ${each.name}`;
    return each.sm === null ? name : `${name} (sm_${each.sm})`;
  }

  // What was read, in one line.
  function summary(pasted) {
    const parts = pasted.cards.map(counted);
    if (pasted.driver) parts.push(`driver ${pasted.driver}`);
    if (pasted.platform) {
      const system = rules.systems[pasted.platform];
      parts.push(pasted.machine ? `${system} on ${pasted.machine}` : system);
    }
    if (pasted.python) parts.push(`Python 3.${pasted.python.slice(3)}`);
    if (pasted.glibc) parts.push(`glibc ${pasted.glibc}`);
    if (pasted.cpu) parts.push(`a CPU with ${pasted.cpu}`);
    if (pasted.torch) parts.push(`torch ${pasted.torch}${pasted.cuda ? ` with CUDA ${pasted.cuda}` : ""}`);
    return parts.join(", ");
  }

  return { read, summary };
};
