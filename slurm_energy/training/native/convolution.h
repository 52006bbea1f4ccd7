/* Direct convolution. A block of MAPS feature maps and up to three vectors of a row stay in registers while
 * the taps (input channels times kernel area) are summed, so that no im2col matrix is written.
 *
 * The gradient of the input is the same sum over the gradient of the output with a border and the kernel
 * reversed. The gradient of the weights keeps MAPS times three sums in registers while it reads rows.
 */
#define MAPS 8

/* Sum the taps for `maps` rows of one output row at `n` vectors. Weights are packed [tap][map]. */
#define ROW_KERNEL(NAME, M, N)                                                                               \
    static void NAME(const REAL *in, const int32_t *offsets, int taps, const REAL *weights,                  \
                     const REAL *bias, REAL *out, size_t out_plane) {                                        \
        vector_t sums[M][N];                                                                                 \
        for (int m = 0; m < M; m++)                                                                          \
            for (int v = 0; v < N; v++)                                                                      \
                sums[m][v] = (vector_t){} + bias[m];                                                         \
        for (int t = 0; t < taps; t++, weights += M) {                                                       \
            const REAL *from = in + offsets[t];                                                              \
            vector_t x[N];                                                                                   \
            for (int v = 0; v < N; v++)                                                                      \
                x[v] = load(from + v * LANES);                                                               \
            for (int m = 0; m < M; m++)                                                                      \
                for (int v = 0; v < N; v++)                                                                  \
                    sums[m][v] += x[v] * weights[m];                                                         \
        }                                                                                                    \
        for (int m = 0; m < M; m++)                                                                          \
            for (int v = 0; v < N; v++)                                                                      \
                store(out + m * out_plane + v * LANES, sums[m][v]);                                          \
    }

ROW_KERNEL(row_8_3, 8, 3)
ROW_KERNEL(row_8_2, 8, 2)
ROW_KERNEL(row_8_1, 8, 1)
ROW_KERNEL(row_3_3, 3, 3)
ROW_KERNEL(row_3_2, 3, 2)
ROW_KERNEL(row_3_1, 3, 1)
ROW_KERNEL(row_1_3, 1, 3)
ROW_KERNEL(row_1_2, 1, 2)
ROW_KERNEL(row_1_1, 1, 1)

typedef void row_kernel(const REAL *, const int32_t *, int, const REAL *, const REAL *, REAL *, size_t);
static row_kernel *const ROW_KERNELS[3][3] = {
    {row_8_1, row_8_2, row_8_3}, {row_3_1, row_3_2, row_3_3}, {row_1_1, row_1_2, row_1_3}};

/* Number of maps in the next block of `left` maps. */
static int block_of(int left) { return left >= MAPS ? MAPS : left >= 3 ? 3 : 1; }

/* Compute one row of a block of maps; rows of `out` are padded to whole vectors. */
static void convolve_row(const REAL *in, const int32_t *offsets, int taps, const REAL *weights,
                         const REAL *bias, int maps, int width, REAL *out, size_t out_plane) {
    row_kernel *const *kernels = ROW_KERNELS[maps == MAPS ? 0 : maps == 3 ? 1 : 2];
    int vectors = padded(width) / LANES;
    for (int v = 0; v < vectors;) {
        int n = vectors - v >= 3 ? 3 : vectors - v;
        kernels[n - 1](in + v * LANES, offsets, taps, weights, bias, out + v * LANES, out_plane);
        v += n;
    }
}

static void pack_forward(struct tg_stage const *stage, int map, int maps, REAL *packed, REAL *bias) {
    const REAL *weights = stage->spec.weights, *biases = stage->spec.bias;
    for (int m = 0; m < maps; m++) {
        bias[m] = biases ? biases[map + m] : 0;
        for (int t = 0; t < stage->taps; t++)
            packed[t * maps + m] = weights[(size_t)(map + m) * stage->taps + t];
    }
}

/* Rectify a row of the output. NaN stays NaN, so that a diverged training is seen. */
static void write_row(const REAL *from, int width, int stride, int relu, REAL *to) {
    for (int x = 0; x < width; x++) {
        REAL v = from[x * stride];
        to[x] = relu && v < 0 ? 0 : v;
    }
}

static void pool_rows(const REAL *rows, size_t row, struct tg_stage const *stage, int width, REAL *to,
                      uint8_t *indices);

static void convolution_forward(struct tg_network *network, int s, int first, int last, size_t begin,
                                size_t end, void *scratch) {
    struct tg_stage const *stage = &network->stages[s];
    struct tg_stage_spec const *spec = &stage->spec;
    struct tg_shape const *in = &network->shapes[s], *out = &network->shapes[s + 1];
    int window = spec->pool_h ? spec->pool_h : 1;
    int wide = (stage->conv_w - 1) * spec->stride_w + 1;
    size_t row = padded(wide), plane = row * window;
    REAL *packed = scratch, *bias = packed + (size_t)stage->taps * MAPS, *rows = bias + MAPS;
    for (size_t map = begin, maps; map < end; map += maps) {
        maps = block_of(end - map);
        pack_forward(stage, map, maps, packed, bias);
        for (int i = first; i < last; i++) {
            const REAL *image = (const REAL *)network->values[s] + i * in->sample;
            REAL *result = (REAL *)network->values[s + 1] + i * out->sample + map * out->plane +
                           out->pad_h * out->row + out->pad_w;
            uint8_t *indices = stage->indices + i * out->features + map * out->height * out->width;
            for (int y = 0; y < out->height; y++) {
                for (int r = 0; r < window; r++)
                    convolve_row(image + (size_t)(y * window + r) * spec->stride_h * in->row,
                                 stage->forward_offsets, stage->taps, packed, bias, maps, wide,
                                 rows + r * row, plane);
                for (size_t m = 0; m < maps; m++) {
                    REAL *to = result + m * out->plane + y * out->row;
                    if (spec->pool_h)
                        pool_rows(rows + m * plane, row, stage, out->width, to,
                                  indices + (m * out->height + y) * out->width);
                    else
                        write_row(rows + m * plane, out->width, spec->stride_w, spec->relu, to);
                }
            }
        }
    }
}

/* Write the gradients of one row before pooling by windows two columns wide; `r` is the row in the window. */
static void spread_pairs(const REAL *gradient, const uint8_t *indices, int width, int r, REAL *to) {
    mask_t low, high;
    for (int i = 0; i < LANES; i++) {
        low[i] = i / 2 + i % 2 * LANES;
        high[i] = low[i] + LANES / 2;
    }
    for (int x = 0; x < width; x += LANES) {
        vector_t g = load(gradient + x); /* beyond the row: the next row, or the slack of the array */
        mask_t index = __builtin_convertvector(*(const bytes_t *)(indices + x), mask_t);
        vector_t left = keep(g, index == 2 * r), right = keep(g, index == 2 * r + 1);
        REAL pairs[2 * LANES];
        REAL *out = x + LANES <= width ? to + 2 * x : pairs;
        store(out, __builtin_shuffle(left, right, low));
        store(out + LANES, __builtin_shuffle(left, right, high));
        if (out == pairs)
            memcpy(to + 2 * x, pairs, 2 * (width - x) * sizeof(REAL));
    }
}

/* Write one row of the gradient before pooling, with the stride's zeros between elements. */
static void expand_row(struct tg_stage_spec const *spec, const REAL *gradient, const uint8_t *indices,
                       int width, int r, REAL *to, size_t row) {
    int ph = spec->pool_h ? spec->pool_h : 1, pw = spec->pool_w ? spec->pool_w : 1, stride = spec->stride_w;
    if (ph * pw == 1 && stride == 1) {
        memcpy(to, gradient, width * sizeof(REAL));
        memset(to + width, 0, (row - width) * sizeof(REAL));
    } else if (pw == 2 && stride == 1) {
        spread_pairs(gradient, indices, width, r, to);
        memset(to + 2 * width, 0, (row - 2 * width) * sizeof(REAL));
    } else {
        memset(to, 0, row * sizeof(REAL));
        for (int x = 0; x < width; x++)
            if (ph * pw == 1)
                to[x * stride] = gradient[x];
            else if (indices[x] != TG_INACTIVE && indices[x] / pw == r)
                to[(x * pw + indices[x] % pw) * stride] = gradient[x];
    }
}

/* Write rows [top, bottom) of the gradient of a feature map before pooling. */
static void expand_gradient(struct tg_network const *network, int s, int sample, size_t map, int top,
                            int bottom, REAL *to, size_t row) {
    struct tg_stage const *stage = &network->stages[s];
    struct tg_stage_spec const *spec = &stage->spec;
    struct tg_shape const *out = &network->shapes[s + 1];
    size_t offset = (sample * (size_t)out->channels + map) * out->height * out->width;
    const REAL *gradient = (const REAL *)network->gradients[s + 1] + offset;
    const uint8_t *indices = stage->indices + offset;
    int ph = spec->pool_h ? spec->pool_h : 1;
    for (int y = top; y < bottom; y++, to += row) {
        int source = y / spec->stride_h / ph, r = y / spec->stride_h % ph;
        if (y % spec->stride_h || source >= out->height)
            memset(to, 0, row * sizeof(REAL));
        else
            expand_row(spec, gradient + source * out->width, indices + source * out->width, out->width, r, to,
                       row);
    }
}

static void pack_backward(struct tg_stage const *stage, int maps_out, size_t channel, int channels,
                          REAL *packed) {
    int area = stage->spec.kernel_h * stage->spec.kernel_w;
    const REAL *weights = stage->spec.weights;
    for (int f = 0; f < maps_out; f++)
        for (int k = 0; k < area; k++)
            for (int c = 0; c < channels; c++)
                *packed++ = weights[(size_t)f * stage->taps + (channel + c) * area + area - 1 - k];
}

static void convolution_backward_input(struct tg_network *network, int s, int first, int last, size_t begin,
                                       size_t end, void *scratch) {
    struct tg_stage const *stage = &network->stages[s];
    struct tg_stage_spec const *spec = &stage->spec;
    struct tg_shape const *in = &network->shapes[s], *out = &network->shapes[s + 1];
    int border_h = spec->kernel_h - 1, border_w = spec->kernel_w - 1;
    int taps = out->channels * spec->kernel_h * spec->kernel_w,
        tall = (stage->conv_h - 1) * spec->stride_h + 1;
    size_t row = stage->gradient_row, plane = stage->gradient_plane, all = plane * out->channels;
    REAL *bordered = scratch, *packed = bordered + all + row + 4 * LANES,
         *line = packed + (size_t)taps * (end - begin);
    const REAL bias[MAPS] = {0};
    for (size_t c = begin, n; c < end; c += n) {
        n = block_of(end - c);
        pack_backward(stage, out->channels, c, n, packed + (c - begin) * taps);
    }
    memset(bordered, 0, (all + row + 4 * LANES) * sizeof(REAL));
    for (int i = first; i < last; i++) {
        for (int f = 0; f < out->channels; f++)
            for (int y = 0; y < tall;
                 y++) /* row by row, because the left border belongs to no row of the gradient */
                expand_gradient(network, s, i, f, y, y + 1,
                                bordered + f * plane + (y + border_h) * row + border_w, row - border_w);
        for (size_t c = begin, n; c < end; c += n) {
            n = block_of(end - c);
            REAL *to =
                (REAL *)network->gradients[s] + (i * (size_t)in->channels + c) * in->height * in->width;
            for (int y = 0; y < in->height; y++) {
                int padded_y = y + spec->pad_h;
                /* Rows and columns of the input that no window reaches have no gradient. */
                if (padded_y >= tall + border_h) {
                    for (size_t m = 0; m < n; m++)
                        memset(to + (m * in->height + y) * in->width, 0, in->width * sizeof(REAL));
                    continue;
                }
                convolve_row(bordered + padded_y * row + spec->pad_w, stage->backward_offsets, taps,
                             packed + (c - begin) * taps, bias, n, in->width, line, padded(in->width));
                for (size_t m = 0; m < n; m++)
                    memcpy(to + (m * in->height + y) * in->width, line + m * padded(in->width),
                           in->width * sizeof(REAL));
            }
        }
    }
}

/* Rows of one sample whose gradients lie expanded in the scratch memory: [map][row]. */
struct band {
    int sample, top, bottom;
    REAL *gradients;
};

#define TAP_KERNEL(NAME, M, N)                                                                               \
    static void NAME(struct band const *bands, int n_bands, const REAL *in, size_t sample, size_t in_row,    \
                     size_t row, REAL *sums_out, size_t stride) {                                            \
        vector_t sums[M][N] = {};                                                                            \
        for (int b = 0; b < n_bands; b++) {                                                                  \
            size_t plane = (bands[b].bottom - bands[b].top) * row;                                           \
            for (int y = bands[b].top; y < bands[b].bottom; y++) {                                           \
                const REAL *from = in + bands[b].sample * sample + y * in_row;                               \
                const REAL *gradient = bands[b].gradients + (y - bands[b].top) * row;                        \
                for (size_t x = 0; x < row; x += LANES) {                                                    \
                    vector_t shifted[N];                                                                     \
                    for (int k = 0; k < N; k++)                                                              \
                        shifted[k] = load(from + x + k);                                                     \
                    for (int m = 0; m < M; m++) {                                                            \
                        vector_t g = load(gradient + m * plane + x);                                         \
                        for (int k = 0; k < N; k++)                                                          \
                            sums[m][k] += g * shifted[k];                                                    \
                    }                                                                                        \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
        for (int m = 0; m < M; m++)                                                                          \
            for (int k = 0; k < N; k++)                                                                      \
                sums_out[m * stride + k] += sum_of(sums[m][k]);                                              \
    }

TAP_KERNEL(taps_8_3, 8, 3)
TAP_KERNEL(taps_8_2, 8, 2)
TAP_KERNEL(taps_8_1, 8, 1)
TAP_KERNEL(taps_3_3, 3, 3)
TAP_KERNEL(taps_3_2, 3, 2)
TAP_KERNEL(taps_3_1, 3, 1)
TAP_KERNEL(taps_1_3, 1, 3)
TAP_KERNEL(taps_1_2, 1, 2)
TAP_KERNEL(taps_1_1, 1, 1)

typedef void tap_kernel(struct band const *, int, const REAL *, size_t, size_t, size_t, REAL *, size_t);
static tap_kernel *const TAP_KERNELS[3][3] = {
    {taps_8_1, taps_8_2, taps_8_3}, {taps_3_1, taps_3_2, taps_3_3}, {taps_1_1, taps_1_2, taps_1_3}};

static void add_products(struct tg_network const *network, int s, struct band const *bands, int n_bands,
                         int maps, size_t row, REAL *gradient) {
    struct tg_stage const *stage = &network->stages[s];
    struct tg_stage_spec const *spec = &stage->spec;
    struct tg_shape const *in = &network->shapes[s];
    tap_kernel *const *kernels = TAP_KERNELS[maps == MAPS ? 0 : maps == 3 ? 1 : 2];
    for (int c = 0; c < in->channels; c++)
        for (int ky = 0; ky < spec->kernel_h; ky++)
            for (int kx = 0, n; kx < spec->kernel_w; kx += n) {
                n = spec->kernel_w - kx >= 3 ? 3 : spec->kernel_w - kx;
                kernels[n - 1](bands, n_bands,
                               (const REAL *)network->values[s] + c * in->plane + ky * in->row + kx,
                               in->sample, in->row, row,
                               gradient + (c * spec->kernel_h + ky) * spec->kernel_w + kx, stage->taps);
            }
}

/* Scratch elements for expanded gradients: they should stay in the second-level cache. */
#define BAND_ELEMENTS (32 * 1024)
#define MAX_BANDS 256

static REAL bias_gradient(struct tg_network const *network, int s, int sample, size_t map) {
    struct tg_stage const *stage = &network->stages[s];
    struct tg_shape const *out = &network->shapes[s + 1];
    size_t area = (size_t)out->height * out->width, offset = (sample * (size_t)out->channels + map) * area;
    const REAL *gradient = (const REAL *)network->gradients[s + 1] + offset;
    const uint8_t *indices = stage->spec.pool_h ? stage->indices + offset : NULL;
    REAL sum = 0;
    for (size_t i = 0; i < area; i++)
        sum += indices && indices[i] == TG_INACTIVE ? 0 : gradient[i];
    return sum;
}

static void convolution_backward_weights(struct tg_network *network, int s, int chunk, int first, int last,
                                         size_t begin, size_t end, void *scratch) {
    struct tg_stage const *stage = &network->stages[s];
    struct tg_stage_spec const *spec = &stage->spec;
    int tall = (stage->conv_h - 1) * spec->stride_h + 1;
    size_t row = padded((stage->conv_w - 1) * spec->stride_w + 1);
    REAL *gradients = (REAL *)stage->chunk_gradients + chunk * (stage->n_weights + spec->outputs);
    memset(gradients + begin * stage->taps, 0, (end - begin) * stage->taps * sizeof(REAL));
    int max_rows = BAND_ELEMENTS / (row * MAPS);
    max_rows = max_rows < 1 ? 1 : max_rows;
    for (size_t map = begin, maps; map < end; map += maps) {
        maps = block_of(end - map);
        struct band bands[MAX_BANDS];
        int n_bands = 0, rows = 0;
        for (int i = first; i < last; i++)
            for (int top = 0; top < tall;) {
                int height = tall - top < max_rows - rows ? tall - top : max_rows - rows;
                struct band *band = &bands[n_bands++];
                *band = (struct band){i, top, top + height, (REAL *)scratch + rows * row * maps};
                for (size_t m = 0; m < maps; m++)
                    expand_gradient(network, s, i, map + m, top, top + height,
                                    band->gradients + m * height * row, row);
                top += height;
                rows += height;
                if (rows == max_rows || n_bands == MAX_BANDS || (i == last - 1 && top == tall)) {
                    add_products(network, s, bands, n_bands, maps, row, gradients + map * stage->taps);
                    n_bands = rows = 0;
                }
            }
        for (size_t m = 0; m < maps; m++) {
            REAL sum = 0;
            for (int i = first; i < last; i++)
                sum += bias_gradient(network, s, i, map + m);
            gradients[stage->n_weights + map + m] = sum;
        }
    }
}
