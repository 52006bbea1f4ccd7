/* Training of convolutional networks as a graph of StarPU tasks.
 *
 * Python (slurm_energy/training/taskgraph) describes the network as stages and passes pointers to numpy
 * arrays. One call submits the tasks of many batches. Tensors are NCHW. A tensor may have a border of zeros
 * as wide as the padding of the convolution that reads it, so that a kernel never tests for the edge.
 */
#ifndef TASKGRAPH_H
#define TASKGRAPH_H

#include <starpu.h>
#include <stddef.h>
#include <stdint.h>

enum tg_kind { TG_CONVOLUTION, TG_DENSE, TG_POOL, TG_RELU };
enum tg_mode { TG_TRAIN, TG_GRADIENT, TG_PREDICT };
enum tg_error { TG_OK = 0, TG_NO_MEMORY = -1, TG_RUNTIME = -2 };

/* Value of an index byte where the rectified maximum is 0 and no gradient passes. */
#define TG_INACTIVE 255

/* A stage: one layer, with the activation and the pooling that are computed while its output is in the cache.
 */
struct tg_stage_spec {
    int32_t kind;
    int32_t outputs; /* feature maps or neurons */
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    int32_t relu;           /* a ReLU follows */
    int32_t pool_h, pool_w; /* a pooling with this kernel and an equal stride follows; 0 for none */
    void *weights, *bias;   /* values, updated in place; bias may be NULL */
    void *weights_gradient, *bias_gradient; /* written in mode TG_GRADIENT */
};

struct tg_shape {
    int channels, height, width;
    int pad_h, pad_w;
    size_t row, plane, sample; /* distances in elements, borders included */
    size_t features;           /* elements of a sample without borders */
};

struct tg_stage {
    struct tg_stage_spec spec;
    int conv_h, conv_w; /* output of the convolution, before pooling */
    int taps;           /* input channels times kernel area */
    size_t n_weights;
    int32_t *forward_offsets;            /* taps: offset of each input element from the output's position */
    int32_t *backward_offsets;           /* the same in the gradient, for the gradient of the input */
    size_t gradient_row, gradient_plane; /* of one feature map's gradient with its border */
    uint8_t *indices;                    /* position of the maximum in each pooling window */
    void *chunk_gradients;               /* per chunk: n_weights + outputs elements */
    void *rank_gradients;                /* several ranks: per rank n_weights + outputs elements */
    void *partial_outputs;               /* dense: per group of columns the products of the whole batch */
};

/* StarPU's handles of one array: groups of features for each chunk. */
struct tg_handles {
    int chunks, groups;
    starpu_data_handle_t *items; /* [chunk][group] */
};

struct tg_network {
    int dtype; /* bytes per element: 4 or 8 */
    int n_stages, batch;
    struct tg_stage *stages;
    struct tg_shape *shapes;       /* n_stages + 1: the input, then the output of each stage */
    void **values;                 /* n_stages + 1 tensors of a whole batch */
    void **gradients;              /* the same without borders; [0] is NULL */
    int rank, ranks, global_batch; /* processes that share each batch; `batch` is the most samples of one */
    int chunks, groups; /* groups of features per stage; 1: one task computes all stages of a chunk */
    int first_trained;  /* first stage with parameters: no gradient is needed before it */
    struct tg_handles *values_of, *gradients_of; /* per tensor */
    struct tg_handles *chunks_of;     /* per stage: gradients of parameters, or products of a dense layer */
    struct tg_handles *ranks_of;      /* per stage: the gradients of each rank */
    struct tg_handles *parameters_of; /* per stage */
    struct tg_kernels const *kernels;
    void **scratch; /* per worker */
    size_t scratch_bytes;
    int64_t task_ns; /* processor time inside tasks, all workers */
    int64_t n_tasks;
};

/* The arrays of one call and the position of one batch in them. */
struct tg_run {
    struct tg_network *network;
    enum tg_mode mode;
    const void *images;
    const int64_t *labels;
    const int64_t *order; /* index of the sample at each position; NULL for the order given */
    double learning_rate;
    void *outputs;
};

struct tg_batch {
    struct tg_run *run;
    int64_t first; /* position of the first sample */
    int count;
    int total;      /* samples of the batch on all ranks */
    double *losses; /* per chunk */
};

/* Kernels for one element type. Feature ranges are [begin, end). */
struct tg_kernels {
    void (*gather)(struct tg_batch const *, int first, int last);
    void (*forward)(struct tg_network *, int stage, int first, int last, size_t begin, size_t end, void *out,
                    void *scratch);
    void (*join)(struct tg_network *, int stage, int first, int last, int groups);
    double (*loss)(struct tg_batch const *, int first, int last);
    void (*backward_input)(struct tg_network *, int stage, int first, int last, size_t begin, size_t end,
                           void *scratch);
    void (*backward_weights)(struct tg_network *, int stage, int chunk, int first, int last, size_t begin,
                             size_t end, void *scratch);
    void (*update)(struct tg_batch const *, int stage, size_t begin, size_t end);
    void (*apply)(struct tg_batch const *, int stage);
    void (*emit)(struct tg_batch const *, int first, int last);
};
extern const struct tg_kernels tg_kernels_float, tg_kernels_double;

/* runtime.c */
int tg_start(int workers);
void tg_stop(void);
int tg_workers(void);
double tg_task_overhead_s(int tasks);
double tg_now_s(void);

/* network.c */
struct tg_network *tg_network_new(const struct tg_stage_spec *, int n_stages, int dtype, int channels,
                                  int height, int width, int batch);
void tg_network_free(struct tg_network *);
int tg_network_split(struct tg_network *, int chunks, int groups);
void tg_counters(struct tg_network const *, int64_t values[2]);
size_t tg_features_of(struct tg_network const *, int stage);
size_t tg_scratch_bytes(struct tg_network const *);

/* ranks.c: several processes, if compiled with TG_MPI */
int tg_start_starpu(struct starpu_conf *);
void tg_stop_starpu(void);
void tg_wait_for_all(void);
int tg_rank(void);
int tg_ranks(void);
int tg_exchange(struct tg_handles const *, int64_t tag);
int tg_sum_losses(double *losses, int64_t n);

/* graph.c */
int tg_run(struct tg_network *, int mode, const void *images, const int64_t *labels, const int64_t *order,
           int64_t count, double learning_rate, double *losses, void *outputs);

#endif
