/* Minimum, maximum, sum and sum of squares of float32, bfloat16 or float16 numbers in one pass over memory; on request
 * the number of elements below a magnitude, and the sum of squared deviations from the mean. Where there is NaN or an
 * infinity, a second pass counts them.
 *
 * Compiled without Python's headers, if there is a C compiler. The caller, probe/core/backend/fused_reduce.py,
 * decides the meaning of the numbers and the treatment of extreme magnitudes.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Numbers of a row. */
enum { MIN, MAX, SUM, SUMSQ, BELOW, M2, MEAN, NANS, INFS, NUMBERS };
/* Kinds of elements, in the order of KINDS there. */
enum { FLOAT32, BFLOAT16, FLOAT16 };
/* What is computed besides the first four. */
enum { COUNT_BELOW = 1, DEVIATIONS = 2 };

/* float32 additions in a row before the sum goes on in float64: rounding grows with their number. */
#define RUN 32
/* Bytes ahead of the pass at which Intel's processors fetch memory (a fetch beyond the end does nothing): beyond the
 * caches it takes them from 17 to 27 GB/s. AMD's fetch well by themselves, and lose a sixth by it. */
#define AHEAD 2048
/* Elements whose NaN are counted in 16 bits. */
#define COUNTED 32768
/* Elements after which a pass that has met NaN ends: all results are NaN, but for the counts, which another pass makes.
 * It does not look for infinities: those leave the extremes to be found. */
#define LOOK 65536
/* Elements whose mean is the first centre of the deviations; they are computed anew about the mean itself if the
 * squares about that centre are more than FAR times those about the mean. */
#define SAMPLE 256
#define FAR 3.0
/* Mean square below which squares in float32 have lost digits (the smallest normal float32 is 1.2e-38). */
#define FINEST 1e-31

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* Sums of a pass, of deviations from a centre too. */
struct sums {
    double sum, squares, off, distance, below;
    float least, most;
};

/* Sum of squared deviations from the mean: those from a centre near it, corrected (the shifted-data algorithm: Chan,
 * Golub and LeVeque, 1983). */
INLINE double apart_of(const struct sums *all, size_t n)
{
    const double apart = all->distance - all->off * all->off / (double)n;

    return apart < 0.0 ? 0.0 : apart;
}

/* True if all numbers are finite and float32 can hold the results: no sum or square is out of range, or all numbers are
 * zero. */
static int fits(const double *row, size_t n, int more)
{
    if (row[MIN] == 0.0 && row[MAX] == 0.0 && row[SUMSQ] == 0.0)
        return 1;
    return row[SUMSQ] > FINEST * (double)n && row[SUMSQ] < INFINITY && isfinite(row[SUM]) &&
           !(more & DEVIATIONS && isnan(row[M2]));
}

INLINE float from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float from_float32(float x)
{
    return x;
}

/* A bfloat16 is the upper half of a float32. */
INLINE float from_bfloat16(uint16_t x)
{
    return from_bits((uint32_t)x << 16);
}

/* The exponent of a float16 begins 112 lower than that of a float32; without one it counts units of 2^-24. */
INLINE float from_float16(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000u) << 16, rest = x & 0x7fffu;

    if (rest < 0x0400u)
        return from_bits(bits_of((float)rest * 0x1p-24f) | sign);
    return from_bits(((rest << 13) + (rest < 0x7c00u ? 112u << 23 : 0x70000000u)) | sign);
}

INLINE float magnitude_float32(uint32_t bits)
{
    return from_bits(bits);
}

#define magnitude_bfloat16 from_bfloat16
#define magnitude_float16 from_float16

/* Counts of NaN, infinities and elements below a magnitude, by the bits of elements without their signs: these are in
 * the order of the magnitudes, and those of NaN come after that of an infinity. */
#define DEFINE_COUNT(KIND, TYPE, MAGNITUDE, INFINITE, SET, TARGET)                                                     \
    TARGET static void count_##KIND##_##SET(const TYPE *x, size_t n, float eps, double *out)                           \
    {                                                                                                                  \
        TYPE limit = 0;                                                                                                \
                                                                                                                       \
        for (TYPE bit = MAGNITUDE / 2 + 1; bit; bit >>= 1)                                                             \
            if ((limit | bit) <= INFINITE && magnitude_##KIND((TYPE)((limit | bit) - 1)) < eps)                        \
                limit |= bit;                                                                                          \
        out[NANS] = out[INFS] = out[BELOW] = 0.0;                                                                      \
        for (size_t begin = 0; begin < n; begin += COUNTED) {                                                          \
            const size_t end = n - begin < COUNTED ? n : begin + COUNTED;                                              \
            TYPE nans = 0, infs = 0, below = 0;                                                                        \
                                                                                                                       \
            for (size_t i = begin; i < end; i++) {                                                                     \
                const TYPE magnitude = x[i] & MAGNITUDE;                                                               \
                                                                                                                       \
                nans += magnitude > INFINITE;                                                                          \
                infs += magnitude == INFINITE;                                                                         \
                below += magnitude < limit;                                                                            \
            }                                                                                                          \
            out[NANS] += nans;                                                                                         \
            out[INFS] += infs;                                                                                         \
            out[BELOW] += below;                                                                                       \
        }                                                                                                              \
    }

/* Elements one by one: the rest that fills no vector. */
#define DEFINE_REST(KIND, TYPE)                                                                                        \
    INLINE void rest_##KIND(const TYPE *x, size_t n, float eps, double centre, struct sums *all)                       \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++) {                                                                               \
            const float v = from_##KIND(x[i]);                                                                         \
            const double gap = (double)v - centre;                                                                     \
                                                                                                                       \
            all->least = v < all->least ? v : all->least;                                                              \
            all->most = v > all->most ? v : all->most;                                                                 \
            all->sum += v;                                                                                             \
            all->squares += (double)v * v;                                                                             \
            all->below += fabsf(v) < eps;                                                                              \
            all->off += gap;                                                                                           \
            all->distance += gap * gap;                                                                                \
        }                                                                                                              \
    }

DEFINE_REST(float32, float)
DEFINE_REST(bfloat16, uint16_t)
DEFINE_REST(float16, uint16_t)

/* The whole vectors of x, two or four side by side; returns the number of elements. */
#define DEFINE_VECTORS(KIND, TYPE, SET, TARGET)                                                                        \
    TARGET INLINE size_t vectors_##KIND##_##SET(const TYPE *x, size_t n, float eps, float centre, const int more,      \
                                                struct sums *all)                                                      \
    {                                                                                                                  \
        const size_t step = SET##_SIDE * SET##_LANES, whole = n - n % step;                                            \
        const size_t ahead = __builtin_cpu_is("intel") ? AHEAD : 0;                                                    \
        const SET##_vector limit = SET##_all(eps), middle = SET##_all(centre);                                         \
        SET##_vector low[SET##_SIDE], high[SET##_SIDE];                                                                \
        SET##_doubles sum = SET##_none(), squares = SET##_none(), off = SET##_none(), distance = SET##_none();         \
        int64_t below = 0;                                                                                             \
                                                                                                                       \
        for (int k = 0; k < SET##_SIDE; k++) {                                                                         \
            low[k] = SET##_all(INFINITY);                                                                              \
            high[k] = SET##_all(-INFINITY);                                                                            \
        }                                                                                                              \
        for (size_t begin = 0; begin < whole; begin += RUN * step) {                                                   \
            const size_t end = whole - begin < RUN * step ? whole : begin + RUN * step;                                \
            SET##_vector s[SET##_SIDE], q[SET##_SIDE], d[SET##_SIDE], dd[SET##_SIDE];                                  \
                                                                                                                       \
            for (int k = 0; k < SET##_SIDE; k++)                                                                       \
                s[k] = q[k] = d[k] = dd[k] = SET##_all(0.0f);                                                          \
            for (size_t j = begin; j < end; j += step) {                                                               \
                for (size_t line = 0; line < step * sizeof(TYPE); line += 64)                                          \
                    _mm_prefetch((const char *)(x + j) + ahead + line, _MM_HINT_T0);                                   \
                for (int k = 0; k < SET##_SIDE; k++) {                                                                 \
                    const SET##_vector v = SET##_##KIND(x + j + k * SET##_LANES);                                      \
                                                                                                                       \
                    low[k] = SET##_min(v, low[k]);                                                                     \
                    high[k] = SET##_max(v, high[k]);                                                                   \
                    s[k] = SET##_add(s[k], v);                                                                         \
                    q[k] = SET##_multiply_add(v, v, q[k]);                                                             \
                    if (more & COUNT_BELOW)                                                                            \
                        below += SET##_count_below(v, limit);                                                          \
                    if (more & DEVIATIONS) {                                                                           \
                        const SET##_vector gap = SET##_subtract(v, middle);                                            \
                                                                                                                       \
                        d[k] = SET##_add(d[k], gap);                                                                   \
                        dd[k] = SET##_multiply_add(gap, gap, dd[k]);                                                   \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            sum = SET##_gather(sum, s);                                                                                \
            squares = SET##_gather(squares, q);                                                                        \
            if (begin % LOOK == 0 && isnan(SET##_total(squares)))                                                      \
                break;                                                                                                 \
            if (more & DEVIATIONS) {                                                                                   \
                off = SET##_gather(off, d);                                                                            \
                distance = SET##_gather(distance, dd);                                                                 \
            }                                                                                                          \
        }                                                                                                              \
        for (int k = 0; whole && k < SET##_SIDE; k++) {                                                                \
            const float least = SET##_least(low[k]), most = SET##_most(high[k]);                                       \
                                                                                                                       \
            all->least = least < all->least ? least : all->least;                                                      \
            all->most = most > all->most ? most : all->most;                                                           \
        }                                                                                                              \
        all->sum += SET##_total(sum);                                                                                  \
        all->squares += SET##_total(squares);                                                                          \
        all->below += (double)below;                                                                                   \
        all->off += SET##_total(off);                                                                                  \
        all->distance += SET##_total(distance);                                                                        \
        return whole;                                                                                                  \
    }

/* A row of n elements: the deviations about the mean of the first ones, or, where that is far off, about the mean. */
#define DEFINE_ROW(KIND, TYPE, SET, TARGET)                                                                            \
    TARGET INLINE void all_##KIND##_##SET(const TYPE *x, size_t n, float eps, float centre, const int more,            \
                                          struct sums *all)                                                            \
    {                                                                                                                  \
        const struct sums none = {0.0, 0.0, 0.0, 0.0, 0.0, INFINITY, -INFINITY};                                       \
        size_t done;                                                                                                   \
                                                                                                                       \
        *all = none;                                                                                                   \
        done = vectors_##KIND##_##SET(x, n, eps, centre, more, all);                                                   \
        rest_##KIND(x + done, n - done, eps, centre, all);                                                             \
    }                                                                                                                  \
                                                                                                                       \
    TARGET static void row_##KIND##_##SET(const TYPE *x, size_t n, float eps, int more, double *out)                   \
    {                                                                                                                  \
        struct sums all;                                                                                               \
        float centre = 0.0f;                                                                                           \
                                                                                                                       \
        if (!more) {                                                                                                   \
            all_##KIND##_##SET(x, n, eps, 0.0f, 0, &all);                                                              \
        } else if (more == COUNT_BELOW) {                                                                              \
            all_##KIND##_##SET(x, n, eps, 0.0f, COUNT_BELOW, &all);                                                    \
        } else {                                                                                                       \
            const size_t sampled = n < SAMPLE ? n : SAMPLE;                                                            \
                                                                                                                       \
            all_##KIND##_##SET(x, sampled, eps, 0.0f, 0, &all);                                                        \
            for (int again = 0; again < 2; again++) {                                                                  \
                centre = (float)(all.sum / (double)(again ? n : sampled));                                             \
                all_##KIND##_##SET(x, n, eps, centre, COUNT_BELOW | DEVIATIONS, &all);                                 \
                if (!(all.distance > FAR * apart_of(&all, n)))                                                         \
                    break;                                                                                             \
            }                                                                                                          \
        }                                                                                                              \
        out[MIN] = all.least;                                                                                          \
        out[MAX] = all.most;                                                                                           \
        out[SUM] = all.sum;                                                                                            \
        out[SUMSQ] = all.squares;                                                                                      \
        out[BELOW] = all.below;                                                                                        \
        out[M2] = all.least == all.most ? 0.0 : all.distance > FINEST * (double)n ? apart_of(&all, n) : NAN;           \
        out[MEAN] = centre + all.off / (double)n;                                                                      \
        out[NANS] = out[INFS] = 0.0;                                                                                   \
    }

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* Processors with AVX2, fused multiplication and addition, and float16: eight lanes, sixteen registers. */
#define WITH_AVX2 __attribute__((target("avx2,fma,f16c,popcnt")))
#define AVX2_SIDE 2
#define AVX2_LANES 8
typedef __m256 AVX2_vector;
typedef struct {
    __m256d low, high;
} AVX2_doubles;
#define AVX2_all _mm256_set1_ps
#define AVX2_min _mm256_min_ps
#define AVX2_max _mm256_max_ps
#define AVX2_add _mm256_add_ps
#define AVX2_subtract _mm256_sub_ps
#define AVX2_multiply_add _mm256_fmadd_ps
#define AVX2_float32(x) _mm256_loadu_ps(x)
#define AVX2_bfloat16(x)                                                                                               \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(x))), 16))
#define AVX2_float16(x) _mm256_cvtph_ps(_mm_loadu_si128((const void *)(x)))

WITH_AVX2 INLINE AVX2_doubles AVX2_none(void)
{
    const AVX2_doubles none = {_mm256_setzero_pd(), _mm256_setzero_pd()};

    return none;
}

WITH_AVX2 INLINE AVX2_doubles AVX2_gather(AVX2_doubles sum, const __m256 *parts)
{
    const __m256 both = _mm256_add_ps(parts[0], parts[1]);

    sum.low = _mm256_add_pd(sum.low, _mm256_cvtps_pd(_mm256_castps256_ps128(both)));
    sum.high = _mm256_add_pd(sum.high, _mm256_cvtps_pd(_mm256_extractf128_ps(both, 1)));
    return sum;
}

WITH_AVX2 INLINE double AVX2_total(AVX2_doubles sum)
{
    double each[4];

    _mm256_storeu_pd(each, _mm256_add_pd(sum.low, sum.high));
    return (each[0] + each[1]) + (each[2] + each[3]);
}

WITH_AVX2 INLINE int64_t AVX2_count_below(__m256 v, __m256 limit)
{
    const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);

    return __builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(magnitude, limit, _CMP_LT_OQ)));
}

WITH_AVX2 INLINE float AVX2_least(__m256 v)
{
    const __m128 four = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_min_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_min_ss(two, _mm_shuffle_ps(two, two, 1)));
}

WITH_AVX2 INLINE float AVX2_most(__m256 v)
{
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* Processors with AVX-512: sixteen lanes, thirty-two registers. */
#define WITH_AVX512 __attribute__((target("avx512f,avx512dq,avx2,fma,f16c,popcnt")))
#define AVX512_SIDE 4
#define AVX512_LANES 16
typedef __m512 AVX512_vector;
typedef struct {
    __m512d low, high;
} AVX512_doubles;
#define AVX512_all _mm512_set1_ps
#define AVX512_min _mm512_min_ps
#define AVX512_max _mm512_max_ps
#define AVX512_add _mm512_add_ps
#define AVX512_subtract _mm512_sub_ps
#define AVX512_multiply_add _mm512_fmadd_ps
#define AVX512_least _mm512_reduce_min_ps
#define AVX512_most _mm512_reduce_max_ps
#define AVX512_float32(x) _mm512_loadu_ps(x)
#define AVX512_bfloat16(x)                                                                                             \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(x))), 16))
#define AVX512_float16(x) _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(x)))
#define AVX512_count_below(v, limit)                                                                                   \
    __builtin_popcount(_cvtmask16_u32(_mm512_cmp_ps_mask(_mm512_abs_ps(v), limit, _CMP_LT_OQ)))
#define AVX512_total(sum) _mm512_reduce_add_pd(_mm512_add_pd((sum).low, (sum).high))

WITH_AVX512 INLINE AVX512_doubles AVX512_none(void)
{
    const AVX512_doubles none = {_mm512_setzero_pd(), _mm512_setzero_pd()};

    return none;
}

WITH_AVX512 INLINE AVX512_doubles AVX512_gather(AVX512_doubles sum, const __m512 *parts)
{
    const __m512 all = _mm512_add_ps(_mm512_add_ps(parts[0], parts[1]), _mm512_add_ps(parts[2], parts[3]));

    sum.low = _mm512_add_pd(sum.low, _mm512_cvtps_pd(_mm512_castps512_ps256(all)));
    sum.high = _mm512_add_pd(sum.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(all, 1)));
    return sum;
}

#define DEFINE_SETS(KIND, TYPE, BITS, MAGNITUDE, INFINITE)                                                             \
    DEFINE_COUNT(KIND, BITS, MAGNITUDE, INFINITE, AVX2, WITH_AVX2)                                                     \
    DEFINE_VECTORS(KIND, TYPE, AVX2, WITH_AVX2)                                                                        \
    DEFINE_ROW(KIND, TYPE, AVX2, WITH_AVX2)                                                                            \
    DEFINE_COUNT(KIND, BITS, MAGNITUDE, INFINITE, AVX512, WITH_AVX512)                                                 \
    DEFINE_VECTORS(KIND, TYPE, AVX512, WITH_AVX512)                                                                    \
    DEFINE_ROW(KIND, TYPE, AVX512, WITH_AVX512)

DEFINE_SETS(float32, float, uint32_t, 0x7fffffffu, 0x7f800000u)
DEFINE_SETS(bfloat16, uint16_t, uint16_t, 0x7fffu, 0x7f80u)
DEFINE_SETS(float16, uint16_t, uint16_t, 0x7fffu, 0x7c00u)

#define CHOOSE(FUNCTION, ...)                                                                                          \
    if (__builtin_cpu_supports("avx512dq"))                                                                            \
        FUNCTION##_AVX512(__VA_ARGS__);                                                                                \
    else if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))                                          \
        FUNCTION##_AVX2(__VA_ARGS__);                                                                                  \
    else                                                                                                               \
        FUNCTION##_PLAIN(__VA_ARGS__)
#else
#define CHOOSE(FUNCTION, ...) FUNCTION##_PLAIN(__VA_ARGS__)
#endif

/* Any other processor: lanes that a compiler makes vectors of. */
#define LANES 32
#define DEFINE_PLAIN(KIND, TYPE)                                                                                       \
    INLINE size_t vectors_##KIND##_PLAIN(const TYPE *x, size_t n, float eps, float centre, const int more,             \
                                         struct sums *all)                                                             \
    {                                                                                                                  \
        const size_t whole = n - n % LANES;                                                                            \
        float low[LANES], high[LANES];                                                                                 \
                                                                                                                       \
        for (int i = 0; i < LANES; i++) {                                                                              \
            low[i] = INFINITY;                                                                                         \
            high[i] = -INFINITY;                                                                                       \
        }                                                                                                              \
        for (size_t begin = 0; begin < whole; begin += RUN * LANES) {                                                  \
            const size_t end = whole - begin < RUN * LANES ? whole : begin + RUN * LANES;                              \
            float s[LANES] = {0}, q[LANES] = {0}, d[LANES] = {0}, dd[LANES] = {0};                                     \
            int32_t below[LANES] = {0};                                                                                \
                                                                                                                       \
            for (size_t j = begin; j < end; j += LANES)                                                                \
                for (int i = 0; i < LANES; i++) {                                                                      \
                    const float v = from_##KIND(x[j + i]);                                                             \
                                                                                                                       \
                    low[i] = v < low[i] ? v : low[i];                                                                  \
                    high[i] = v > high[i] ? v : high[i];                                                               \
                    s[i] += v;                                                                                         \
                    q[i] += v * v;                                                                                     \
                    if (more & COUNT_BELOW)                                                                            \
                        below[i] += fabsf(v) < eps;                                                                    \
                    if (more & DEVIATIONS) {                                                                           \
                        d[i] += v - centre;                                                                            \
                        dd[i] += (v - centre) * (v - centre);                                                          \
                    }                                                                                                  \
                }                                                                                                      \
            for (int i = 0; i < LANES; i++) {                                                                          \
                all->sum += s[i];                                                                                      \
                all->squares += q[i];                                                                                  \
                all->below += below[i];                                                                                \
                all->off += d[i];                                                                                      \
                all->distance += dd[i];                                                                                \
            }                                                                                                          \
            if (isnan(all->squares))                                                                                   \
                break;                                                                                                 \
        }                                                                                                              \
        for (int i = 0; i < LANES; i++) {                                                                              \
            all->least = low[i] < all->least ? low[i] : all->least;                                                    \
            all->most = high[i] > all->most ? high[i] : all->most;                                                     \
        }                                                                                                              \
        return whole;                                                                                                  \
    }

#define DEFINE(KIND, TYPE, BITS, MAGNITUDE, INFINITE)                                                                  \
    DEFINE_COUNT(KIND, BITS, MAGNITUDE, INFINITE, PLAIN, )                                                             \
    DEFINE_PLAIN(KIND, TYPE)                                                                                           \
    DEFINE_ROW(KIND, TYPE, PLAIN, )                                                                                    \
                                                                                                                       \
    static void row_##KIND(const TYPE *x, size_t n, float eps, int more, double *out)                                  \
    {                                                                                                                  \
        CHOOSE(row_##KIND, x, n, eps, more, out);                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    static void count_##KIND(const BITS *x, size_t n, float eps, double *out)                                          \
    {                                                                                                                  \
        CHOOSE(count_##KIND, x, n, eps, out);                                                                          \
    }

DEFINE(float32, float, uint32_t, 0x7fffffffu, 0x7f800000u)
DEFINE(bfloat16, uint16_t, uint16_t, 0x7fffu, 0x7f80u)
DEFINE(float16, uint16_t, uint16_t, 0x7fffu, 0x7c00u)

/* Complete a row that does not fit. Return whether it is valid, because there is NaN or an infinity. Else finite
 * numbers or their squares are out of the range of float32. */
static int complete(const void *x, size_t n, int kind, float eps, double *row)
{
    if (isfinite(row[SUMSQ]))
        return 0;
    if (kind == FLOAT32)
        count_float32(x, n, eps, row);
    else if (kind == BFLOAT16)
        count_bfloat16(x, n, eps, row);
    else
        count_float16(x, n, eps, row);
    if (row[NANS]) {
        row[MIN] = row[MAX] = row[SUM] = row[SUMSQ] = NAN;
    } else if (row[INFS]) {
        /* Infinities of both signs add up to NaN. */
        row[SUM] = (isinf(row[MIN]) ? row[MIN] : 0.0) + (isinf(row[MAX]) ? row[MAX] : 0.0);
        row[SUMSQ] = INFINITY;
    } else {
        return 0;
    }
    row[MEAN] = row[SUM];
    row[M2] = NAN;
    return 1;
}

/* Write a row of n elements of a kind; return whether it is valid: float32 could hold all sums, or there is NaN or an
 * infinity. */
int probe_row(const void *x, size_t n, int kind, double eps, int more, double *out)
{
    if (kind == FLOAT32)
        row_float32(x, n, (float)eps, more, out);
    else if (kind == BFLOAT16)
        row_bfloat16(x, n, (float)eps, more, out);
    else
        row_float16(x, n, (float)eps, more, out);
    return fits(out, n, more) || complete(x, n, kind, (float)eps, out);
}

/* Write a row of each of count arrays, and whether it is valid. */
void probe_rows(const void *const *xs, const size_t *sizes, const unsigned char *kinds, size_t count, double eps,
                int more, double *out, unsigned char *valid)
{
    for (size_t i = 0; i < count; i++)
        valid[i] = (unsigned char)probe_row(xs[i], sizes[i], kinds[i], eps, more, out + NUMBERS * i);
}
