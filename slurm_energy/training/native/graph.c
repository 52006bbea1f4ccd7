/* Submission of the tasks of batches. StarPU derives the dependencies from the handles that each task reads
 * and writes. */
#include "taskgraph.h"
#include <stdlib.h>
#include <time.h>

/* Submitted tasks, at most and after a wait: enough to keep all workers busy, and a bound on memory. */
#define MAX_SUBMITTED 512
#define RESUME_SUBMITTED 256
#define MAX_ACCESSES 4096

enum action { CHUNK_PASS, GATHER, FORWARD, JOIN, LOSS, BACKWARD_INPUT, BACKWARD_WEIGHTS, UPDATE, APPLY };

struct task {
    enum action action;
    struct tg_batch *batch;
    int stage, chunk, group, groups;
    int first, last; /* samples of the batch; last is exclusive */
};

struct accesses {
    struct starpu_data_descr items[MAX_ACCESSES];
    int n;
};

static size_t start_of(size_t features, int group, int groups) { return features * group / groups; }

static void forward_all(struct tg_batch *batch, int first, int last, void *scratch) {
    struct tg_network *network = batch->run->network;
    struct tg_kernels const *kernels = network->kernels;
    kernels->gather(batch, first, last);
    for (int s = 0; s < network->n_stages; s++) {
        kernels->forward(network, s, first, last, 0, tg_features_of(network, s),
                         network->stages[s].partial_outputs, scratch);
        if (network->stages[s].spec.kind == TG_DENSE)
            kernels->join(network, s, first, last, 1);
    }
}

static size_t inputs_of(struct tg_network const *network, int s) {
    return network->stages[s].spec.kind == TG_DENSE ? (size_t)network->stages[s].taps
                                                    : (size_t)network->shapes[s].channels;
}

/* Return whether one task computes a batch with its update. */
static int is_single_task(struct tg_network const *network) {
    return network->chunks * network->groups * network->ranks == 1;
}

/* Compute a chunk through all stages and back; with a single chunk also the update. */
static void pass_chunk(struct task const *task, void *scratch) {
    struct tg_batch *batch = task->batch;
    struct tg_network *network = batch->run->network;
    struct tg_kernels const *kernels = network->kernels;
    int first = task->first, last = task->last;
    if (first < last)
        forward_all(batch, first, last, scratch);
    if (batch->run->mode == TG_PREDICT) {
        kernels->emit(batch, first, last);
        return;
    }
    batch->losses[task->chunk] = kernels->loss(batch, first, last);
    for (int s = network->n_stages - 1; s >= network->first_trained; s--) {
        if (network->stages[s].spec.kind == TG_CONVOLUTION)
            kernels->backward_weights(network, s, task->chunk, first, last, 0,
                                      network->stages[s].spec.outputs, scratch);
        if (s > network->first_trained && first < last)
            kernels->backward_input(network, s, first, last, 0, inputs_of(network, s), scratch);
    }
    for (int s = 0; s < network->n_stages && is_single_task(network); s++)
        if (network->stages[s].spec.weights)
            kernels->update(batch, s, 0, tg_features_of(network, s));
}

static void compute_stage(struct task const *task, void *scratch) {
    struct tg_batch *batch = task->batch;
    struct tg_network *network = batch->run->network;
    struct tg_kernels const *kernels = network->kernels;
    int s = task->stage, first = task->first, last = task->last,
        is_dense = network->stages[s].spec.kind == TG_DENSE;
    size_t features = task->action == BACKWARD_INPUT ? inputs_of(network, s) : tg_features_of(network, s);
    size_t begin = start_of(features, task->group, task->groups),
           end = start_of(features, task->group + 1, task->groups);
    void *out = is_dense ? (char *)network->stages[s].partial_outputs + (size_t)task->group * network->batch *
                                                                            network->stages[s].spec.outputs *
                                                                            network->dtype
                         : NULL;
    switch (task->action) {
    case FORWARD:
        kernels->forward(network, s, first, last, begin, end, out, scratch);
        break;
    case JOIN:
        kernels->join(network, s, first, last, task->groups);
        break;
    case BACKWARD_INPUT:
        kernels->backward_input(network, s, first, last, begin, end, scratch);
        break;
    case BACKWARD_WEIGHTS:
        kernels->backward_weights(network, s, task->chunk, first, last, begin, end, scratch);
        break;
    default:
        kernels->update(batch, s, begin, end);
    }
}

static double thread_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static void execute(void *buffers[], void *argument) {
    (void)buffers;
    struct task const *task = argument;
    struct tg_network *network = task->batch->run->network;
    void *scratch = network->scratch[starpu_worker_get_id()];
    double start = thread_s();
    switch (task->action) {
    case CHUNK_PASS:
        pass_chunk(task, scratch);
        break;
    case GATHER:
        network->kernels->gather(task->batch, task->first, task->last);
        break;
    case LOSS:
        if (task->batch->run->mode == TG_PREDICT)
            network->kernels->emit(task->batch, task->first, task->last);
        else
            task->batch->losses[task->chunk] = network->kernels->loss(task->batch, task->first, task->last);
        break;
    case APPLY:
        network->kernels->apply(task->batch, task->stage);
        break;
    default:
        compute_stage(task, scratch);
    }
    int64_t used_ns = (thread_s() - start) * 1e9;
    __atomic_fetch_add(&network->task_ns, used_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&network->n_tasks, 1, __ATOMIC_RELAXED);
}

static struct starpu_codelet codelet = {.cpu_funcs = {execute},
                                        .cpu_funcs_name = {"execute"},
                                        .nbuffers = STARPU_VARIABLE_NBUFFERS,
                                        .name = "senergy_train"};

static void add(struct accesses *accesses, struct tg_handles const *handles, int chunk,
                enum starpu_data_access_mode mode) {
    for (int g = 0; g < handles->groups && accesses->n < MAX_ACCESSES; g++)
        accesses->items[accesses->n++] =
            (struct starpu_data_descr){.handle = handles->items[chunk * handles->groups + g], .mode = mode};
}

static void add_group(struct accesses *accesses, struct tg_handles const *handles, int chunk, int group,
                      enum starpu_data_access_mode mode) {
    accesses->items[accesses->n++] =
        (struct starpu_data_descr){.handle = handles->items[chunk * handles->groups + group], .mode = mode};
}

static int submit(struct accesses *accesses, struct task task) {
    struct task *copy = malloc(sizeof task);
    if (!copy)
        return TG_NO_MEMORY;
    *copy = task;
    int error = starpu_task_insert(&codelet, STARPU_DATA_MODE_ARRAY, accesses->items, accesses->n,
                                   STARPU_CL_ARGS, copy, sizeof task, 0);
    accesses->n = 0;
    return error ? TG_RUNTIME : TG_OK;
}

/* Exchange the gradients of a stage with all ranks and update the parameters with their sum. */
static int submit_exchange(struct tg_batch *batch, struct accesses *accesses, int s) {
    struct tg_network *network = batch->run->network;
    if (tg_exchange(&network->ranks_of[s], s))
        return TG_RUNTIME;
    add(accesses, &network->parameters_of[s], 0, STARPU_RW);
    for (int r = 0; r < network->ranks; r++)
        add(accesses, &network->ranks_of[s], r, STARPU_R);
    return submit(accesses, (struct task){APPLY, batch, s, 0, 0, 1, 0, 0});
}

static int submit_updates(struct tg_batch *batch, struct accesses *accesses) {
    struct tg_network *network = batch->run->network;
    int error = TG_OK;
    for (int s = 0; s < network->n_stages; s++) {
        struct tg_handles const *parameters = &network->parameters_of[s];
        for (int g = 0; g < parameters->groups; g++) {
            if (network->ranks > 1)
                add(accesses, &network->ranks_of[s], network->rank, STARPU_W);
            else
                add_group(accesses, parameters, 0, g, STARPU_RW);
            for (int c = 0; c < network->chunks; c++) {
                if (network->groups == 1) {
                    add(accesses, &network->values_of[0], c,
                        STARPU_R); /* stands for all arrays of the chunk */
                } else if (network->stages[s].spec.kind == TG_DENSE) {
                    add(accesses, &network->values_of[s], c, STARPU_R);
                    add(accesses, &network->gradients_of[s + 1], c, STARPU_R);
                } else {
                    add(accesses, &network->chunks_of[s], c, STARPU_R);
                }
            }
            error |=
                submit(accesses, (struct task){UPDATE, batch, s, 0, g, parameters->groups, 0, batch->count});
        }
        if (network->ranks > 1 && parameters->groups)
            error |= submit_exchange(batch, accesses, s);
    }
    return error;
}

static int submit_chunk_pass(struct tg_batch *batch, struct accesses *accesses, struct task task) {
    struct tg_network *network = batch->run->network;
    int updates = is_single_task(network) && batch->run->mode != TG_PREDICT;
    for (int s = 0; s < network->n_stages; s++)
        add(accesses, &network->parameters_of[s], 0, updates ? STARPU_RW : STARPU_R);
    add(accesses, &network->values_of[0], task.chunk, STARPU_RW);
    return submit(accesses, task);
}

static int submit_forward(struct tg_batch *batch, struct accesses *accesses, struct task task) {
    struct tg_network *network = batch->run->network;
    task.action = GATHER;
    add(accesses, &network->values_of[0], task.chunk, STARPU_W);
    int error = submit(accesses, task);
    for (int s = 0; s < network->n_stages; s++) {
        int is_dense = network->stages[s].spec.kind == TG_DENSE;
        struct tg_handles const *to = is_dense ? &network->chunks_of[s] : &network->values_of[s + 1];
        task.stage = s;
        task.action = FORWARD;
        task.groups = to->groups;
        for (task.group = 0; task.group < to->groups; task.group++) {
            add(accesses, &network->values_of[s], task.chunk, STARPU_R);
            add(accesses, &network->parameters_of[s], 0, STARPU_R);
            add_group(accesses, to, task.chunk, task.group, STARPU_W);
            error |= submit(accesses, task);
        }
        if (!is_dense)
            continue;
        task.action = JOIN;
        add(accesses, to, task.chunk, STARPU_R);
        add(accesses, &network->parameters_of[s], 0, STARPU_R);
        add(accesses, &network->values_of[s + 1], task.chunk, STARPU_W);
        error |= submit(accesses, task);
    }
    return error;
}

static int submit_backward(struct tg_batch *batch, struct accesses *accesses, struct task task) {
    struct tg_network *network = batch->run->network;
    int error = TG_OK;
    for (int s = network->n_stages - 1; s >= network->first_trained; s--) {
        task.stage = s;
        struct tg_handles const *sums = &network->chunks_of[s], *to = &network->gradients_of[s];
        if (network->stages[s].spec.kind == TG_CONVOLUTION) {
            task.action = BACKWARD_WEIGHTS;
            task.groups = sums->groups;
            for (task.group = 0; task.group < sums->groups; task.group++) {
                add(accesses, &network->values_of[s], task.chunk, STARPU_R);
                add(accesses, &network->values_of[s + 1], task.chunk, STARPU_R);
                add(accesses, &network->gradients_of[s + 1], task.chunk, STARPU_R);
                add_group(accesses, sums, task.chunk, task.group, STARPU_W);
                error |= submit(accesses, task);
            }
        }
        task.action = BACKWARD_INPUT;
        task.groups = to->groups;
        for (task.group = 0; s > network->first_trained && task.group < to->groups; task.group++) {
            add(accesses, &network->parameters_of[s], 0, STARPU_R);
            add(accesses, &network->values_of[s], task.chunk, STARPU_R);
            add(accesses, &network->values_of[s + 1], task.chunk, STARPU_R);
            add(accesses, &network->gradients_of[s + 1], task.chunk, STARPU_R);
            add_group(accesses, to, task.chunk, task.group, STARPU_W);
            error |= submit(accesses, task);
        }
    }
    return error;
}

static int submit_batch(struct tg_batch *batch, struct accesses *accesses) {
    struct tg_network *network = batch->run->network;
    int error = TG_OK;
    for (int c = 0; c < network->chunks; c++) {
        struct task task = {.action = CHUNK_PASS, .batch = batch, .chunk = c, .groups = 1};
        task.first = start_of(batch->count, c, network->chunks);
        task.last = start_of(batch->count, c + 1, network->chunks);
        if (network->groups == 1) {
            error |= submit_chunk_pass(batch, accesses, task);
            continue;
        }
        error |= submit_forward(batch, accesses, task);
        task.action = LOSS;
        add(accesses, &network->values_of[network->n_stages], c, STARPU_R);
        add(accesses, &network->gradients_of[network->n_stages], c, STARPU_W);
        error |= submit(accesses, task);
        if (batch->run->mode != TG_PREDICT)
            error |= submit_backward(batch, accesses, task);
    }
    if (batch->run->mode != TG_PREDICT && !is_single_task(network))
        error |= submit_updates(batch, accesses);
    return error;
}

/* Set the samples of this rank in batch `b`: its part of the positions in proportion. Each rank predicts all
 * samples. */
static void place_batch(struct tg_batch *batch, int64_t b, int64_t count) {
    struct tg_network const *network = batch->run->network;
    int is_shared = batch->run->mode != TG_PREDICT;
    int rank = is_shared ? network->rank : 0, ranks = is_shared ? network->ranks : 1;
    int64_t size = is_shared ? network->global_batch : network->batch, left = count - b * size;
    batch->total = left < size ? left : size;
    int begin = start_of(batch->total, rank, ranks);
    batch->first = b * size + begin;
    batch->count = start_of(batch->total, rank + 1, ranks) - begin;
}

static int submit_all(struct tg_run *run, struct tg_batch *batches, int64_t n_batches, int64_t count) {
    struct accesses *accesses = malloc(sizeof *accesses);
    if (!accesses)
        return TG_NO_MEMORY;
    accesses->n = 0;
    int error = TG_OK;
    for (int64_t b = 0; b < n_batches && !error; b++) {
        batches[b].run = run;
        place_batch(&batches[b], b, count);

        error = submit_batch(&batches[b], accesses);
        if (starpu_task_nsubmitted() > MAX_SUBMITTED)
            starpu_task_wait_for_n_submitted(RESUME_SUBMITTED);
    }
    tg_wait_for_all();
    free(accesses);
    return error;
}

/* Train on samples, write the gradients of one batch, or predict; returns when all batches are done.
 *
 * `order` holds `count` indices of samples; `losses` receives the mean loss of each batch. In mode TG_PREDICT
 * `outputs` receives the last stage's values in the order given, and `labels` and `losses` are not used.
 */
int tg_run(struct tg_network *network, int mode, const void *images, const int64_t *labels,
           const int64_t *order, int64_t count, double learning_rate, double *losses, void *outputs) {
    int64_t size = mode == TG_PREDICT ? network->batch : network->global_batch,
            n_batches = (count + size - 1) / size;
    struct tg_batch *batches = calloc(n_batches, sizeof *batches);
    double *chunk_losses = calloc(n_batches * network->chunks, sizeof *chunk_losses);
    struct tg_run run = {network, mode, images, labels, order, learning_rate, outputs};
    int error = batches && chunk_losses ? TG_OK : TG_NO_MEMORY;
    for (int64_t b = 0; b < n_batches && !error; b++)
        batches[b].losses = chunk_losses + b * network->chunks;
    if (!error)
        error = submit_all(&run, batches, n_batches, count);
    for (int64_t b = 0; b < n_batches && !error && losses; b++) {
        double sum = 0;
        for (int c = 0; c < network->chunks; c++)
            sum += batches[b].losses[c];
        losses[b] = sum / batches[b].total;
    }
    if (!error && losses && mode != TG_PREDICT)
        error = tg_sum_losses(losses, n_batches);
    free(batches);
    free(chunk_losses);
    return error;
}
