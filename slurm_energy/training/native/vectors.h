/* Vectors as wide as the processor's registers. Loads and stores need no alignment. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define LANES ((int)(VECTOR_BYTES / sizeof(REAL)))

typedef REAL vector_t __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef INDEX mask_t __attribute__((vector_size(VECTOR_BYTES)));

typedef uint8_t bytes_t __attribute__((vector_size(VECTOR_BYTES / sizeof(REAL)), aligned(1), may_alias));

static inline vector_t load(const REAL *p) { return *(const vector_t *)p; }
static inline void store(REAL *p, vector_t v) { *(vector_t *)p = v; }

static inline REAL sum_of(vector_t v) {
    REAL sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += v[i];
    return sum;
}

/* Round a row of the scratch memory up to whole vectors. */
static inline size_t padded(size_t width) { return (width + LANES - 1) / LANES * LANES; }

/* Clear the elements whose mask is 0; masks are 0 or -1. */
static inline vector_t keep(vector_t v, mask_t mask) { return (vector_t)((mask_t)v & mask); }
