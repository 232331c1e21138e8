/* Minimum, maximum, sum and sum of squares of float32 or bfloat16 numbers in one pass over memory.
 *
 * Compiled without Python's headers, if there is a C compiler. The caller, probe/core/backend/fused_reduce.py,
 * decides the meaning of the numbers and the treatment of NaN, infinities and extreme magnitudes.
 */

#include <limits.h> /* defines __GLIBC__ if the C library is glibc */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Accumulators side by side, and elements in each run of float32 sums: rounding grows with the length of a run. */
#define LANES 32
#define RUN 1024

/* Vectors as wide as the running processor allows. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define CLONED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONED
#endif

static inline float from_float32(float x)
{
    return x;
}

/* A bfloat16 is the upper half of a float32. */
static inline float from_bfloat16(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* probe_fused_KIND: four numbers of n elements. probe_fused_KIND_each: the same of count arrays, one row each. */
#define DEFINE(KIND, TYPE)                                                                                             \
    CLONED void probe_fused_##KIND(const TYPE *restrict x, size_t n, double *restrict out)                             \
    {                                                                                                                  \
        double sum = 0.0, squares = 0.0;                                                                               \
        float low[LANES], high[LANES], least = INFINITY, most = -INFINITY;                                             \
        const size_t whole = n - n % LANES;                                                                            \
                                                                                                                       \
        for (int i = 0; i < LANES; i++) {                                                                              \
            low[i] = INFINITY;                                                                                         \
            high[i] = -INFINITY;                                                                                       \
        }                                                                                                              \
        for (size_t begin = 0; begin < whole; begin += RUN) {                                                          \
            const size_t end = whole - begin < RUN ? whole : begin + RUN;                                              \
            float s[LANES] = {0}, q[LANES] = {0};                                                                      \
                                                                                                                       \
            for (size_t j = begin; j < end; j += LANES)                                                                \
                for (int i = 0; i < LANES; i++) {                                                                      \
                    const float v = from_##KIND(x[j + i]);                                                             \
                                                                                                                       \
                    low[i] = v < low[i] ? v : low[i];                                                                  \
                    high[i] = v > high[i] ? v : high[i];                                                               \
                    s[i] += v;                                                                                         \
                    q[i] += v * v;                                                                                     \
                }                                                                                                      \
            for (int i = 0; i < LANES; i++) {                                                                          \
                sum += s[i];                                                                                           \
                squares += q[i];                                                                                       \
            }                                                                                                          \
        }                                                                                                              \
        for (int i = 0; i < LANES; i++) {                                                                              \
            least = low[i] < least ? low[i] : least;                                                                   \
            most = high[i] > most ? high[i] : most;                                                                    \
        }                                                                                                              \
        for (size_t j = whole; j < n; j++) {                                                                           \
            const float v = from_##KIND(x[j]);                                                                         \
                                                                                                                       \
            least = v < least ? v : least;                                                                             \
            most = v > most ? v : most;                                                                                \
            sum += v;                                                                                                  \
            squares += (double)v * v;                                                                                  \
        }                                                                                                              \
        out[0] = least;                                                                                                \
        out[1] = most;                                                                                                 \
        out[2] = sum;                                                                                                  \
        out[3] = squares;                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    void probe_fused_##KIND##_each(const TYPE *const *xs, const size_t *sizes, size_t count, double *out)              \
    {                                                                                                                  \
        for (size_t i = 0; i < count; i++)                                                                             \
            probe_fused_##KIND(xs[i], sizes[i], out + 4 * i);                                                          \
    }

DEFINE(float32, float)
DEFINE(bfloat16, uint16_t)
