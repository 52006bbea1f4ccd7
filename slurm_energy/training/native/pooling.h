/* Maximum pooling, ReLU, and the masks of their gradients. As in PyTorch the first of equal maxima receives
 * the gradient, and NaN is a maximum.
 */

/* Pool LANES windows of 2 x 2. */
static inline void pool_lanes(const REAL *upper, const REAL *lower, int relu, REAL *to, uint8_t *indices) {
    mask_t even, odd, index = {}, bits;
    for (int i = 0; i < LANES; i++) {
        even[i] = 2 * i;
        odd[i] = 2 * i + 1;
    }
    vector_t best = __builtin_shuffle(load(upper), load(upper + LANES), even);
    for (int k = 1; k < 4; k++) {
        const REAL *row = k < 2 ? upper : lower;
        vector_t v = __builtin_shuffle(load(row), load(row + LANES), k % 2 ? odd : even);
        bits = (v > best) | (v != v);
        best = (vector_t)((mask_t)keep(v, bits) | (mask_t)keep(best, ~bits));
        index = (index & ~bits) | (k & bits);
    }
    if (relu) {
        bits = best <= (vector_t){};
        best = keep(best, ~bits);
        index |= bits & TG_INACTIVE;
    }
    store(to, best);
    *(bytes_t *)indices = __builtin_convertvector(index, bytes_t);
}

/* Pool a row of windows of 2 x 2. The rows lie in scratch memory, where whole vectors can be read. */
static void pool_two_by_two(const REAL *upper, const REAL *lower, int relu, int width, REAL *to,
                            uint8_t *indices) {
    int x = 0;
    for (; x + LANES <= width; x += LANES)
        pool_lanes(upper + 2 * x, lower + 2 * x, relu, to + x, indices + x);
    if (x < width) {
        REAL values[LANES];
        uint8_t bytes[LANES];
        pool_lanes(upper + 2 * x, lower + 2 * x, relu, values, bytes);
        memcpy(to + x, values, (width - x) * sizeof(REAL));
        memcpy(indices + x, bytes, width - x);
    }
}

static void pool_rows(const REAL *rows, size_t row, struct tg_stage const *stage, int width, REAL *to,
                      uint8_t *indices) {
    struct tg_stage_spec const *spec = &stage->spec;
    if (spec->pool_h == 2 && spec->pool_w == 2 && spec->stride_w == 1) {
        pool_two_by_two(rows, rows + row, spec->relu, width, to, indices);
        return;
    }
    for (int x = 0; x < width; x++) {
        REAL best = 0;
        int index = 0;
        for (int r = 0; r < spec->pool_h; r++)
            for (int k = 0; k < spec->pool_w; k++) {
                REAL v = rows[r * row + (x * spec->pool_w + k) * spec->stride_w];
                if ((!r && !k) || v > best || v != v) {
                    best = v;
                    index = r * spec->pool_w + k;
                }
            }
        if (spec->relu && best <= 0) {
            best = 0;
            index = TG_INACTIVE;
        }
        to[x] = best;
        indices[x] = index;
    }
}

static void pool_forward(struct tg_network *network, int s, int first, int last, size_t begin, size_t end) {
    struct tg_stage const *stage = &network->stages[s];
    struct tg_stage_spec const *spec = &stage->spec;
    struct tg_shape const *in = &network->shapes[s], *out = &network->shapes[s + 1];
    for (int i = first; i < last; i++)
        for (size_t c = begin; c < end; c++) {
            const REAL *from = (const REAL *)network->values[s] + i * in->sample + c * in->plane;
            REAL *to = (REAL *)network->values[s + 1] + i * out->sample + c * out->plane +
                       out->pad_h * out->row + out->pad_w;
            uint8_t *index = stage->indices + i * out->features + c * out->height * out->width;
            for (int y = 0; y < out->height; y++)
                for (int x = 0; x < out->width; x++, index++) {
                    REAL best = 0;
                    for (int k = 0; k < spec->kernel_h * spec->kernel_w; k++) {
                        int dy = k / spec->kernel_w, dx = k % spec->kernel_w;
                        REAL v = from[(y * spec->stride_h + dy) * in->row + x * spec->stride_w + dx];
                        if (!k || v > best || v != v) {
                            best = v;
                            *index = k;
                        }
                    }
                    if (spec->relu && best <= 0) {
                        best = 0;
                        *index = TG_INACTIVE;
                    }
                    to[y * out->row + x] = best;
                }
        }
}

static void pool_backward(struct tg_network *network, int s, int first, int last, size_t begin, size_t end) {
    struct tg_stage const *stage = &network->stages[s];
    struct tg_stage_spec const *spec = &stage->spec;
    struct tg_shape const *in = &network->shapes[s], *out = &network->shapes[s + 1];
    size_t in_area = (size_t)in->height * in->width, out_area = (size_t)out->height * out->width;
    for (int i = first; i < last; i++)
        for (size_t c = begin; c < end; c++) {
            size_t offset = (i * (size_t)out->channels + c) * out_area;
            const REAL *from = (const REAL *)network->gradients[s + 1] + offset;
            const uint8_t *index = stage->indices + offset;
            REAL *to = (REAL *)network->gradients[s] + (i * (size_t)in->channels + c) * in_area;
            memset(to, 0, in_area * sizeof(REAL));
            for (int y = 0; y < out->height; y++)
                for (int x = 0; x < out->width; x++, index++, from++)
                    if (*index != TG_INACTIVE)
                        to[(y * spec->stride_h + *index / spec->kernel_w) * in->width + x * spec->stride_w +
                           *index % spec->kernel_w] += *from;
        }
}

static void relu_forward(struct tg_network *network, int s, int first, int last, size_t begin, size_t end) {
    struct tg_shape const *in = &network->shapes[s], *out = &network->shapes[s + 1];
    for (int i = first; i < last; i++)
        for (size_t c = begin; c < end; c++)
            for (int y = 0; y < out->height; y++) {
                const REAL *from =
                    (const REAL *)network->values[s] + i * in->sample + c * in->plane + y * in->row;
                REAL *to = (REAL *)network->values[s + 1] + i * out->sample + c * out->plane +
                           (y + out->pad_h) * out->row + out->pad_w;
                write_row(from, out->width, 1, 1, to);
            }
}

static void relu_backward(struct tg_network *network, int s, int first, int last, size_t begin, size_t end) {
    struct tg_shape const *in = &network->shapes[s];
    size_t area = (size_t)in->height * in->width;
    for (int i = first; i < last; i++) {
        size_t offset = (i * (size_t)in->channels + begin) * area;
        memcpy((REAL *)network->gradients[s] + offset, (const REAL *)network->gradients[s + 1] + offset,
               (end - begin) * area * sizeof(REAL));
    }
}

/* Clear the gradient of tensor `t` where its stage's ReLU was inactive. A pooling keeps this in its indices
 * instead. */
static void mask_inactive(struct tg_network *network, int t, int first, int last, size_t begin, size_t end) {
    if (!t)
        return;
    struct tg_stage_spec const *spec = &network->stages[t - 1].spec;
    struct tg_shape const *shape = &network->shapes[t];
    if ((!spec->relu && spec->kind != TG_RELU) || spec->pool_h || spec->kind == TG_POOL)
        return;
    for (int i = first; i < last; i++)
        for (size_t c = begin; c < end; c++)
            for (int y = 0; y < shape->height; y++) {
                const REAL *value = (const REAL *)network->values[t] + i * shape->sample + c * shape->plane +
                                    (y + shape->pad_h) * shape->row + shape->pad_w;
                REAL *gradient = (REAL *)network->gradients[t] +
                                 ((i * (size_t)shape->channels + c) * shape->height + y) * shape->width;
                for (int x = 0; x < shape->width; x++)
                    gradient[x] = value[x] <= 0 ? 0 : gradient[x];
            }
}
