"use strict";
// The numbers of the page, unpacked on demand; encode.py packed them.
const SPECIAL = 32767;
const [MISSING, NOT_A_NUMBER, INF, MINUS_INF] = [0, 1, 2, 3];

const Cells = {
  packed: Page.data("cells"),
  kept: new Map(),

  // All but the cells: signals, rows, columns, directories, files.
  async about() {
    return JSON.parse(Page.text(await Page.inflated(Page.data("about"))));
  },

  // One op of one signal: `map/{signal}/{op}` or `ranks/{signal}/{op}`; null if there is none.
  async get(name, length) {
    if (!(name in Cells.packed)) return null;
    if (!Cells.kept.has(name)) {
      if (Cells.kept.size > 8) Cells.kept.delete(Cells.kept.keys().next().value);
      Cells.kept.set(name, await Cells.unpacked(Cells.packed[name], length));
    }
    return Cells.kept.get(name);
  },

  async unpacked(packed, length) {
    if ("digits" in packed) return Cells.numbers(packed, length);
    const map = {};
    for (const [name, part] of Object.entries(packed)) {
      map[name] = "digits" in part ? await Cells.numbers(part, length) : await Cells.whole(part, length);
    }
    return map;
  },

  // Whole numbers; bytes of equal weight stand together, the lowest first.
  async whole(packed, length) {
    const numbers = new Int32Array(length);
    if (!packed.type) return numbers;
    const bytes = await Page.inflated(packed.bytes);
    const top = packed.type - 1;
    for (let i = 0; i < length; i++) {
      let number = (bytes[top * length + i] << 24) >> 24;
      for (let at = top - 1; at >= 0; at--) number = (number << 8) | bytes[at * length + i];
      numbers[i] = number;
    }
    return numbers;
  },

  async numbers(packed, length) {
    const [mantissa, exponent] = [await Cells.whole(packed.mantissa, length), await Cells.whole(packed.exponent, length)];
    return { digits: packed.digits, mantissa, exponent, length };
  },

  // null where nothing was written.
  number(numbers, i) {
    const { mantissa, exponent } = numbers;
    if (exponent[i] !== SPECIAL) return Number(`${mantissa[i]}e${exponent[i]}`);
    return [null, NaN, Infinity, -Infinity][mantissa[i]];
  },

  special: (numbers, i) => (numbers.exponent[i] === SPECIAL ? numbers.mantissa[i] : null),

  // The logarithm to base ten of the magnitude, without the detour over text.
  logarithm: (numbers, i) => Math.log10(Math.abs(numbers.mantissa[i])) + numbers.exponent[i],

  // As the CSV file has it, which is C's %g.
  text(numbers, i) {
    const number = Cells.number(numbers, i);
    if (number === null) return "";
    return Cells.written(number, numbers.digits);
  },

  written(number, digits) {
    if (Number.isNaN(number)) return "nan";
    if (!Number.isFinite(number)) return number > 0 ? "inf" : "-inf";
    const power = number === 0 ? 0 : Math.floor(Math.log10(Math.abs(number)) + 1e-12);
    if (power >= -4 && power < digits) return String(Number(number.toPrecision(digits)));
    const [mantissa, exponent] = number.toExponential(digits - 1).split("e");
    const size = exponent.slice(1).padStart(2, "0");
    return `${String(Number(mantissa))}e${exponent[0]}${size}`;
  },
};
