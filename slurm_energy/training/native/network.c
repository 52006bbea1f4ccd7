/* Memory of a network: tensors of a whole batch, scratch memory of the workers, and StarPU's handles. */
#include "taskgraph.h"
#include <stdlib.h>
#include <string.h>

/* Kernels read whole vectors, at most this many elements beyond a row, also at the end of an array. */
#define SLACK 256
#define MAX_LANES 16
#define MAPS 8
#define BAND_ELEMENTS (32 * 1024)

static size_t padded(size_t width) { return (width + MAX_LANES - 1) / MAX_LANES * MAX_LANES; }

static void set_shape(struct tg_shape *shape, int channels, int height, int width,
                      struct tg_stage_spec const *reader) {
    int is_convolved = reader && reader->kind == TG_CONVOLUTION;
    *shape = (struct tg_shape){.channels = channels, .height = height, .width = width};
    shape->pad_h = is_convolved ? reader->pad_h : 0;
    shape->pad_w = is_convolved ? reader->pad_w : 0;
    shape->row = width + 2 * shape->pad_w;
    shape->plane = shape->row * (height + 2 * shape->pad_h);
    shape->sample = shape->plane * channels;
    shape->features = (size_t)channels * height * width;
}

static int out_size(int in, int pad, int kernel, int stride) { return (in + 2 * pad - kernel) / stride + 1; }

static void set_output(struct tg_stage *stage, struct tg_shape const *in, struct tg_shape *out,
                       struct tg_stage_spec const *reader) {
    struct tg_stage_spec const *spec = &stage->spec;
    int height = in->height, width = in->width, channels = in->channels;
    if (spec->kind == TG_CONVOLUTION || spec->kind == TG_POOL) {
        height = out_size(height, spec->pad_h, spec->kernel_h, spec->stride_h);
        width = out_size(width, spec->pad_w, spec->kernel_w, spec->stride_w);
    }
    stage->conv_h = height;
    stage->conv_w = width;
    if (spec->kind == TG_CONVOLUTION) {
        channels = spec->outputs;
        height /= spec->pool_h ? spec->pool_h : 1;
        width /= spec->pool_w ? spec->pool_w : 1;
        stage->taps = in->channels * spec->kernel_h * spec->kernel_w;
    } else if (spec->kind == TG_DENSE) {
        stage->taps = in->features;
        channels = spec->outputs;
        height = width = 1;
    }
    stage->n_weights = (size_t)stage->taps * spec->outputs;
    set_shape(out, channels, height, width, reader);
}

static int32_t *offsets_of(int channels, int kernel_h, int kernel_w, size_t plane, size_t row) {
    int32_t *offsets = malloc(sizeof(int32_t) * channels * kernel_h * kernel_w);
    for (int c = 0, t = 0; offsets && c < channels; c++)
        for (int y = 0; y < kernel_h; y++)
            for (int x = 0; x < kernel_w; x++)
                offsets[t++] = c * plane + y * row + x;
    return offsets;
}

static int prepare_convolution(struct tg_stage *stage, struct tg_shape const *in) {
    struct tg_stage_spec const *spec = &stage->spec;
    int tall = (stage->conv_h - 1) * spec->stride_h + 1;
    stage->gradient_row = padded(in->width + 2 * spec->pad_w + 2 * (spec->kernel_w - 1));
    stage->gradient_plane = stage->gradient_row * (tall + 2 * (spec->kernel_h - 1));
    stage->forward_offsets = offsets_of(in->channels, spec->kernel_h, spec->kernel_w, in->plane, in->row);
    stage->backward_offsets =
        offsets_of(spec->outputs, spec->kernel_h, spec->kernel_w, stage->gradient_plane, stage->gradient_row);
    return stage->forward_offsets && stage->backward_offsets ? TG_OK : TG_NO_MEMORY;
}

/* Return the number of features over which the tasks of a stage are split: maps, columns or channels. */
size_t tg_features_of(struct tg_network const *network, int s) {
    struct tg_stage const *stage = &network->stages[s];
    if (stage->spec.kind == TG_DENSE)
        return stage->taps;
    return network->shapes[s + 1].channels;
}

size_t tg_scratch_bytes(struct tg_network const *network) {
    size_t elements = 0;
    for (int s = 0; s < network->n_stages; s++) {
        struct tg_stage const *stage = &network->stages[s];
        struct tg_stage_spec const *spec = &stage->spec;
        if (spec->kind != TG_CONVOLUTION)
            continue;
        struct tg_shape const *in = &network->shapes[s];
        size_t row = padded((stage->conv_w - 1) * spec->stride_w + 1),
               window = spec->pool_h ? spec->pool_h : 1;
        size_t sizes[3] = {
            MAPS * ((size_t)stage->taps + 1 + row * window),
            stage->gradient_plane * spec->outputs + stage->gradient_row +
                (size_t)spec->outputs * spec->kernel_h * spec->kernel_w * in->channels +
                MAPS * padded(in->width),
            BAND_ELEMENTS + MAPS * row,
        };
        for (int i = 0; i < 3; i++)
            elements = sizes[i] > elements ? sizes[i] : elements;
    }
    return (elements + 2 * SLACK) * network->dtype;
}

static void *zeroed(size_t elements, int dtype) {
    void *memory = NULL;
    size_t bytes = (elements + SLACK) * dtype;
    if (posix_memalign(&memory, 64, bytes) != 0)
        return NULL;
    return memset(memory, 0, bytes);
}

static int allocate(struct tg_network *network) {
    int n = network->n_stages, ok = 1;
    for (int t = 0; t <= n; t++) {
        struct tg_shape const *shape = &network->shapes[t];
        ok &= (network->values[t] = zeroed(shape->sample * network->batch, network->dtype)) != NULL;
        if (t)
            ok &= (network->gradients[t] = zeroed(shape->features * network->batch, network->dtype)) != NULL;
    }
    for (int s = 0; s < n; s++) {
        struct tg_stage *stage = &network->stages[s];
        if (stage->spec.kind == TG_POOL || stage->spec.pool_h)
            ok &= (stage->indices = malloc(network->shapes[s + 1].features * network->batch + SLACK)) != NULL;
    }
    network->scratch_bytes = tg_scratch_bytes(network);
    for (int w = 0; w < tg_workers(); w++)
        ok &= (network->scratch[w] = zeroed(network->scratch_bytes / network->dtype, network->dtype)) != NULL;
    return ok ? TG_OK : TG_NO_MEMORY;
}

struct tg_network *tg_network_new(const struct tg_stage_spec *specs, int n_stages, int dtype, int channels,
                                  int height, int width, int batch) {
    struct tg_network *network = calloc(1, sizeof *network);
    if (!network)
        return NULL;
    network->dtype = dtype;
    network->n_stages = n_stages;
    network->rank = tg_rank();
    network->ranks = tg_ranks();
    network->global_batch = batch;
    network->batch = (batch + network->ranks - 1) / network->ranks;
    network->kernels = dtype == 4 ? &tg_kernels_float : &tg_kernels_double;
    network->stages = calloc(n_stages, sizeof *network->stages);
    network->shapes = calloc(n_stages + 1, sizeof *network->shapes);
    network->values = calloc(n_stages + 1, sizeof *network->values);
    network->gradients = calloc(n_stages + 1, sizeof *network->gradients);
    network->values_of = calloc(n_stages + 1, sizeof(struct tg_handles));
    network->gradients_of = calloc(n_stages + 1, sizeof(struct tg_handles));
    network->chunks_of = calloc(n_stages, sizeof(struct tg_handles));
    network->parameters_of = calloc(n_stages, sizeof(struct tg_handles));
    network->ranks_of = calloc(n_stages, sizeof(struct tg_handles));
    network->scratch = calloc(tg_workers(), sizeof *network->scratch);
    set_shape(&network->shapes[0], channels, height, width, &specs[0]);
    network->first_trained = n_stages;
    int error = TG_OK;
    for (int s = 0; s < n_stages; s++) {
        network->stages[s].spec = specs[s];
        set_output(&network->stages[s], &network->shapes[s], &network->shapes[s + 1],
                   s + 1 < n_stages ? &specs[s + 1] : NULL);
        if (specs[s].kind == TG_CONVOLUTION && prepare_convolution(&network->stages[s], &network->shapes[s]))
            error = TG_NO_MEMORY;
        if ((specs[s].kind == TG_CONVOLUTION || specs[s].kind == TG_DENSE) &&
            network->first_trained == n_stages)
            network->first_trained = s;
    }
    if (error || allocate(network)) {
        tg_network_free(network);
        return NULL;
    }
    return network;
}

static void unregister(struct tg_handles *handles) {
    for (int i = 0; i < handles->chunks * handles->groups; i++)
        starpu_data_unregister(handles->items[i]);
    free(handles->items);
    *handles = (struct tg_handles){0};
}

static void unregister_all(struct tg_network *network) {
    for (int t = 0; t <= network->n_stages; t++) {
        unregister(&network->values_of[t]);
        unregister(&network->gradients_of[t]);
    }
    for (int s = 0; s < network->n_stages; s++) {
        unregister(&network->chunks_of[s]);
        unregister(&network->parameters_of[s]);
        unregister(&network->ranks_of[s]);
    }
}

void tg_network_free(struct tg_network *network) {
    unregister_all(network);
    for (int s = 0; s < network->n_stages; s++) {
        struct tg_stage *stage = &network->stages[s];
        free(stage->forward_offsets);
        free(stage->backward_offsets);
        free(stage->indices);
        free(stage->chunk_gradients);
        free(stage->partial_outputs);
        free(stage->rank_gradients);
    }
    for (int t = 0; t <= network->n_stages; t++) {
        free(network->values[t]);
        free(network->gradients[t]);
    }
    for (int w = 0; w < tg_workers(); w++)
        free(network->scratch[w]);
    void *arrays[] = {network->stages,
                      network->shapes,
                      network->values,
                      network->gradients,
                      network->values_of,
                      network->gradients_of,
                      network->chunks_of,
                      network->parameters_of,
                      network->ranks_of,
                      network->scratch,
                      network};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

/* Register an array as groups of equal size. Kernels address the arrays directly: all workers share one
 * memory. */
static int register_groups(struct tg_handles *handles, void *array, size_t elements, int dtype, int chunks,
                           int groups) {
    int n = chunks * groups;
    handles->items = calloc(n, sizeof *handles->items);
    if (!handles->items)
        return TG_NO_MEMORY;
    handles->chunks = chunks;
    handles->groups = groups;
    for (int i = 0; i < n; i++) {
        size_t first = elements * i / n, size = elements * (i + 1) / n - first;
        starpu_vector_data_register(&handles->items[i], STARPU_MAIN_RAM, (uintptr_t)array + first * dtype,
                                    size ? size : 1, dtype);
    }
    return TG_OK;
}

/* Multiplications below which the update of a layer is not worth a second task. */
#define UPDATE_GRAIN 4000000

static int update_groups(struct tg_network const *network, int s) {
    struct tg_stage const *stage = &network->stages[s];
    size_t work = stage->spec.kind == TG_DENSE ? (4 + network->batch) * stage->n_weights
                                               : 2 * network->chunks * stage->n_weights;
    size_t groups = work / UPDATE_GRAIN;
    size_t limit =
        (size_t)tg_workers() < tg_features_of(network, s) ? (size_t)tg_workers() : tg_features_of(network, s);
    groups = groups > limit ? limit : groups;
    return network->chunks * network->groups == 1 || network->ranks > 1 || groups < 1 ? 1 : groups;
}

/* Split a stage's arrays. */
static int split_stage(struct tg_network *network, int s) {
    struct tg_stage *stage = &network->stages[s];
    int chunks = network->chunks, dtype = network->dtype;
    size_t features = tg_features_of(network, s), wanted = network->groups;
    int groups = wanted > features ? features : wanted;
    int is_dense = stage->spec.kind == TG_DENSE;
    free(stage->chunk_gradients);
    free(stage->partial_outputs);
    size_t partial = is_dense ? (size_t)groups * network->batch * stage->spec.outputs : 0;
    size_t sums = stage->spec.kind == TG_CONVOLUTION ? chunks * (stage->n_weights + stage->spec.outputs) : 0;
    stage->partial_outputs = partial ? zeroed(partial, dtype) : NULL;
    stage->chunk_gradients = sums ? zeroed(sums, dtype) : NULL;
    if ((partial && !stage->partial_outputs) || (sums && !stage->chunk_gradients))
        return TG_NO_MEMORY;
    int error = TG_OK;
    if (is_dense)
        error |=
            register_groups(&network->chunks_of[s], stage->partial_outputs, partial, dtype, chunks, groups);
    else if (sums)
        error |= register_groups(&network->chunks_of[s], stage->chunk_gradients, sums, dtype, chunks, groups);
    if (network->ranks > 1 && stage->spec.weights) {
        size_t all = network->ranks * (stage->n_weights + stage->spec.outputs);
        if (!stage->rank_gradients && !(stage->rank_gradients = zeroed(all, dtype)))
            return TG_NO_MEMORY;
        error |= register_groups(&network->ranks_of[s], stage->rank_gradients, all, dtype, network->ranks, 1);
    }
    if (stage->spec.weights)
        error |= register_groups(&network->parameters_of[s], stage->spec.weights, stage->n_weights, dtype, 1,
                                 update_groups(network, s));
    error |=
        register_groups(&network->values_of[s + 1], network->values[s + 1],
                        network->shapes[s + 1].sample * network->batch, dtype, chunks, is_dense ? 1 : groups);
    if (s) { /* the reader of a tensor writes its gradient, in groups of the reader's features */
        size_t inputs = is_dense ? features : (size_t)network->shapes[s].channels;
        error |= register_groups(&network->gradients_of[s], network->gradients[s],
                                 network->shapes[s].features * network->batch, dtype, chunks,
                                 wanted > inputs ? inputs : wanted);
    }
    return error;
}

/* Split batches into chunks, and the tasks of each stage into groups of features. The network must be idle.
 */
int tg_network_split(struct tg_network *network, int chunks, int groups) {
    unregister_all(network);
    network->chunks = chunks;
    network->groups = groups;
    int error = register_groups(&network->values_of[0], network->values[0],
                                network->shapes[0].sample * network->batch, network->dtype, chunks, 1);
    for (int s = 0; s < network->n_stages; s++)
        error |= split_stage(network, s);
    int last = network->n_stages;
    error |= register_groups(&network->gradients_of[last], network->gradients[last],
                             network->shapes[last].features * network->batch, network->dtype, chunks, 1);
    return error;
}

/* Write the nanoseconds of processor time inside tasks, and the number of tasks. */
void tg_counters(struct tg_network const *network, int64_t values[2]) {
    values[0] = network->task_ns;
    values[1] = network->n_tasks;
}
