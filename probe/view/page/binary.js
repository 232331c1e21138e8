// Arrays of an answer, as packing.py packs them.

/** @typedef {{ header: any, arrays: Record<string, Float64Array | Float32Array | Uint32Array | Int32Array> }} Binary */

const TYPES = { float64: Float64Array, uint32: Uint32Array, int32: Int32Array, int16: Int16Array };
const SPECIALS = [0, NaN, Infinity, -Infinity];
const BIAS = 350;

/** Split an answer into its header and its arrays: length of the header, header, arrays one after the other.
 * @type {(buffer: ArrayBuffer) => Binary} */
export function unpacked(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  /** @type {any} */
  const arrays = {};
  let at = 4 + size;
  for (const [name, type, length, digits, width] of header.arrays) {
    const Type = TYPES[/** @type {keyof typeof TYPES} */ (type)];
    const bytes = length * Type.BYTES_PER_ELEMENT;
    const own = header.planes ? new Type(joined(new Uint8Array(buffer, at, bytes), length)) : new Type(buffer, at, length);
    arrays[name] = digits ? decimals(own, digits, width) : own;
    at += bytes;
  }
  return { header, arrays };
}

/** Numbers of some digits, of the distances of their places from those before them in their lines.
 * @type {(far: ArrayLike<number>, digits: number, width: number) => Float64Array} */
function decimals(far, digits, width) {
  const least = 10 ** (digits - 1);
  const places = new Int32Array(far.length);
  return Float64Array.from(places, (_, i) => {
    places[i] = (places[i % width ? i - 1 : i - width] ?? 0) + ((far[i] >>> 1) ^ -(far[i] & 1));
    const size = Math.abs(places[i]);
    if (size < SPECIALS.length) return SPECIALS[size];
    const exponent = Math.floor(size / (9 * least)) - BIAS;
    return Math.sign(places[i]) * Number(`${least + (size % (9 * least))}e${exponent}`);
  });
}

/** The bytes of numbers of which those of equal weight stand together.
 * @type {(planes: Uint8Array, length: number) => ArrayBuffer} */
function joined(planes, length) {
  const bytes = new Uint8Array(planes.length);
  const weights = planes.length / length;
  for (let weight = 0; weight < weights; weight++) for (let i = 0; i < length; i++) bytes[i * weights + weight] = planes[weight * length + i];
  return bytes.buffer;
}
