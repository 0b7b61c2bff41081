// Names of cards and their SMs, as farm/catalog/gpus.py and farm/cli/cards.py read them, from the same data.
"use strict";

const Cards = (facts) => {
  const names = facts.names;
  const tegra = new Set(facts.tegra);
  const armAlone = new Set([...facts.tegra, ...facts.arm_alone]);
  const armNames = new Set(names.arm);
  const withoutVariantSm = new Set(names.no_variant);
  const marks = new RegExp(names.marks, "g");
  const brackets = new RegExp(names.brackets);
  const inside = new RegExp(names.inside, "g");
  const strip = names.strip.map((pattern) => new RegExp(pattern, "g"));
  const [family, series] = names.loose.map((pattern) => new RegExp(pattern));
  const MAX_NAME = 200;

  const lower = (name) => name.slice(0, MAX_NAME).toLowerCase();

  // The name without vendor words, sizes and punctuation.
  function full(name) {
    let text = lower(name).replace(marks, " ");
    const bracketed = brackets.exec(text);
    if (bracketed) text = bracketed[1];
    for (const pattern of strip) text = text.replace(pattern, " ");
    return text.replace(/[^a-z0-9]/g, "").replace(inside, "");
  }

  // The SM of the chip that a line of lspci names before the card's name in brackets.
  function chipOf(line) {
    const chip = new RegExp(names.chip).exec(lower(line));
    if (!chip) return null;
    const begun = Object.keys(names.chips).filter((known) => chip[1].startsWith(known));
    if (!begun.length) return null;
    return names.chips[begun.reduce((one, other) => (other.length > one.length ? other : one))];
  }

  // Pairs of name and SM; several where a name was sold with several chips.
  function find(name) {
    const several = brackets.exec(lower(name));
    if (several && several[1].includes("/")) {
      const head = name.slice(0, several.index);
      for (const part of several[1].split("/")) {
        const cards = find(`${head}[${part.trim()}]`);
        if (cards.length) return cards;
      }
      return [];
    }
    const whole = full(name);
    const bare = whole.replace(family, "");
    const keys = [whole, bare, bare.replace(series, "")];
    for (const [place, key] of keys.entries()) {
      if (!Object.hasOwn(names.index[place], key)) continue;
      const cards = names.index[place][key];
      const chip = chipOf(name);
      const ofChip = cards.filter(([, sm]) => sm === chip);
      return ofChip.length ? ofChip : cards;
    }
    return [];
  }

  // The SMs of all cards whose names begin like this.
  function begins(name) {
    const start = full(name);
    if (!start) return [];
    const keys = Object.keys(names.index[0]).filter((key) => key.startsWith(start));
    return [...new Set(keys.flatMap((key) => names.index[0][key].map(([, sm]) => sm)))];
  }

  // Who makes a card that is none of NVIDIA's.
  function maker(name) {
    const text = lower(name).replace(marks, " ").replace(/[^a-z0-9]+/g, " ");
    const words = text.replace(/\b(?:amd|ati|intel|apple)\b/g, " ").trim();
    for (const [company, known] of Object.entries(names.others)) {
      if (text.trim().split(/\s+/).includes(company.toLowerCase())) return company;
      if (known.some((word) => new RegExp(`^(?:${word})\\b`).test(words))) return company;
    }
    return null;
  }

  // `35` for sm_35, compute_35, 3.5 and 35.
  function smWord(word) {
    const match = /^(?:sm|compute|cc)?[ _]?([0-9]{1,2})[._]?([0-9])[af]?$/.exec(word.toLowerCase());
    return match ? match[1] + match[2] : null;
  }

  // A card that was named: its SM, or why it has none.
  function resolve(card) {
    const name = card.name.trim();
    const word = smWord(card.sm === null ? name : `sm_${card.sm}`);
    if (word !== null && (facts.cards[word] || names.too_old[`sm${word}`])) return { sm: Number(word) };
    if (word !== null && withoutVariantSm.has(Number(word))) {
      return { problem: `${name} is sm_${word}: no PyTorch of the catalogue is built for it` };
    }
    const sms = [...new Set(find(name).map(([, sm]) => names.renamed[sm] || sm))];
    if (!sms.length) return { problem: unknown(name) };
    const numbers = sms.map((sm) => Number(sm.slice(2))).sort((one, other) => one - other);
    if (sms.length === 1 && withoutVariantSm.has(numbers[0])) {
      return { problem: `${name} is sm_${numbers[0]}: no PyTorch of the catalogue is built for it` };
    }
    if (sms.every((sm) => names.too_old[sm])) return { sm: numbers[numbers.length - 1] };
    if (sms.length > 1) {
      const chips = numbers.map((number) => `sm_${number}`).join(", ");
      return { problem: `${name} was sold with several chips: ${chips}; type the one that it has, or paste what lspci prints` };
    }
    return { sm: numbers[0] };
  }

  function unknown(name) {
    const company = maker(name);
    if (company) return `${name} is a card of ${company}: it runs no CUDA`;
    const family = name.toLowerCase();
    const chips = Object.hasOwn(names.families, family) ? names.families[family] : null;
    if (chips) return `${name} is the name of an architecture, not of a card; its chips: ${chips.join(", ")}`;
    return `the catalogue has no card ${name}`;
  }

  // The kind of machine that a card is in.
  function machine(name, sm) {
    const arm = armAlone.has(sm) || find(name).some(([known]) => armNames.has(known));
    return arm ? "aarch64" : "x86_64";
  }

  // A card with its SM; with all of them where it was sold with several, all too old.
  function named(name, sm) {
    const chips = [...new Set(find(name).map(([, chip]) => chip))].sort();
    if (chips.length > 1 && names.too_old[`sm${sm}`]) {
      return `${name} (${chips.map((chip) => chip.replace("sm", "sm_")).join(" or ")})`;
    }
    return `${name} (sm_${sm})`;
  }

  // Machine code for one SM runs on the same major version and the same or a higher minor one.
  function sassRuns(code, card) {
    if (tegra.has(code) || tegra.has(card)) return code === card;
    return Math.floor(code / 10) === Math.floor(card / 10) && code <= card;
  }

  return { find, begins, maker, resolve, machine, named, sassRuns };
};
