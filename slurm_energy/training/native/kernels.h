/* Kernels of one element type. The including file defines REAL, INDEX, GEMM and KERNELS. */
#include "taskgraph.h"
#include <cblas.h>
#include <math.h>
#include <string.h>

#include "vectors.h"

#include "convolution.h"
#include "pooling.h"

#include "dense.h"

static void gather(struct tg_batch const *batch, int first, int last) {
    struct tg_run const *run = batch->run;
    struct tg_network *network = run->network;
    struct tg_shape const *shape = &network->shapes[0];
    for (int i = first; i < last; i++) {
        int64_t index = batch->first + i;
        if (run->order)
            index = run->order[index];
        const REAL *from = (const REAL *)run->images + index * shape->features;
        REAL *to = (REAL *)network->values[0] + i * shape->sample;
        if (!shape->pad_h && !shape->pad_w) {
            memcpy(to, from, shape->features * sizeof(REAL));
            continue;
        }
        for (int c = 0; c < shape->channels; c++)
            for (int y = 0; y < shape->height; y++, from += shape->width)
                memcpy(to + c * shape->plane + (y + shape->pad_h) * shape->row + shape->pad_w, from,
                       shape->width * sizeof(REAL));
    }
}

/* Features are output maps, columns of the input (dense), or channels (pooling, ReLU). */
static void forward(struct tg_network *network, int s, int first, int last, size_t begin, size_t end,
                    void *out, void *scratch) {
    switch (network->stages[s].spec.kind) {
    case TG_CONVOLUTION:
        convolution_forward(network, s, first, last, begin, end, scratch);
        break;
    case TG_DENSE:
        dense_forward(network, s, first, last, begin, end, out);
        break;
    case TG_POOL:
        pool_forward(network, s, first, last, begin, end);
        break;
    default:
        relu_forward(network, s, first, last, begin, end);
    }
}

static void backward_input(struct tg_network *network, int s, int first, int last, size_t begin, size_t end,
                           void *scratch) {
    switch (network->stages[s].spec.kind) {
    case TG_CONVOLUTION:
        convolution_backward_input(network, s, first, last, begin, end, scratch);
        break;
    case TG_DENSE:
        dense_backward_input(network, s, first, last, begin, end);
        return; /* masked there: its features are columns */
    case TG_POOL:
        pool_backward(network, s, first, last, begin, end);
        break;
    default:
        relu_backward(network, s, first, last, begin, end);
    }
    mask_inactive(network, s, first, last, begin, end);
}

const struct tg_kernels KERNELS = {
    .gather = gather,
    .forward = forward,
    .join = dense_join,
    .loss = cross_entropy,
    .backward_input = backward_input,
    .backward_weights = convolution_backward_weights,
    .update = update_parameters,
    .apply = apply_ranks,
    .emit = emit_outputs,
};
