// Arrays of an answer, as packing.py packs them.

/**
 * @typedef {{ header: any, arrays: Record<string, Float64Array | Float32Array | Uint32Array | Int32Array> }} Binary
 */

const TYPES = { float64: Float64Array, uint32: Uint32Array, int32: Int32Array, int16: Int16Array };
const SPECIAL = 32767;
const SPECIALS = [NaN, Infinity, -Infinity];

/**
 * Split an answer into its header and its arrays: length of the header, header, arrays one after the other.
 * @type {(buffer: ArrayBuffer) => Binary}
 */
export function unpacked(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  /** @type {any} */
  const arrays = {};
  let at = 4 + size;
  for (const [name, type, length] of header.arrays) {
    const Type = TYPES[/** @type {keyof typeof TYPES} */ (type)];
    const bytes = length * Type.BYTES_PER_ELEMENT;
    arrays[name] = header.planes ? new Type(joined(new Uint8Array(buffer, at, bytes), length)) : new Type(buffer, at, length);
    at += bytes;
  }
  for (const [name] of header.arrays) {
    const exponents = arrays[`${name}^`]; // of numbers that are mantissas and exponents of ten
    delete arrays[`${name}^`];
    if (exponents) arrays[name] = Float64Array.from(arrays[name], (mantissa, i) => (exponents[i] === SPECIAL ? SPECIALS[mantissa] : Number(`${mantissa}e${exponents[i]}`)));
  }
  return { header, arrays };
}

/**
 * The bytes of numbers of which those of equal weight stand together.
 * @type {(planes: Uint8Array, length: number) => ArrayBuffer}
 */
function joined(planes, length) {
  const bytes = new Uint8Array(planes.length);
  const weights = planes.length / length;
  for (let weight = 0; weight < weights; weight++) for (let i = 0; i < length; i++) bytes[i * weights + weight] = planes[weight * length + i];
  return bytes.buffer;
}
