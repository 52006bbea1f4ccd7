/* Dense layers (BLAS), softmax cross entropy, and the update of parameters. */

/* Multiply columns [begin, end) of the input with the weights, into `out` of [sample of the batch][output].
 */
static void dense_forward(struct tg_network *network, int s, int first, int last, size_t begin, size_t end,
                          void *out) {
    struct tg_stage const *stage = &network->stages[s];
    int outputs = stage->spec.outputs, inputs = stage->taps;
    const REAL *in = (const REAL *)network->values[s] + (size_t)first * inputs + begin;
    GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, last - first, outputs, end - begin, 1, in, inputs,
         (const REAL *)stage->spec.weights + begin, inputs, 0, (REAL *)out + (size_t)first * outputs,
         outputs);
}

/* Add the products of all groups of columns in their order, and the bias. */
static void dense_join(struct tg_network *network, int s, int first, int last, int groups) {
    struct tg_stage const *stage = &network->stages[s];
    int outputs = stage->spec.outputs;
    const REAL *bias = stage->spec.bias;
    for (int i = first; i < last; i++)
        for (int o = 0; o < outputs; o++) {
            REAL sum = 0;
            for (int g = 0; g < groups; g++)
                sum += ((const REAL *)stage->partial_outputs)[((size_t)g * network->batch + i) * outputs + o];
            sum += bias ? bias[o] : 0;
            ((REAL *)network->values[s + 1])[(size_t)i * outputs + o] = stage->spec.relu && sum < 0 ? 0 : sum;
        }
}

static void dense_backward_input(struct tg_network *network, int s, int first, int last, size_t begin,
                                 size_t end) {
    struct tg_stage const *stage = &network->stages[s];
    int outputs = stage->spec.outputs, inputs = stage->taps;
    const REAL *gradient = (const REAL *)network->gradients[s + 1] + (size_t)first * outputs;
    REAL *to = (REAL *)network->gradients[s] + (size_t)first * inputs + begin;
    GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, last - first, end - begin, outputs, 1, gradient, outputs,
         (const REAL *)stage->spec.weights + begin, inputs, 0, to, inputs);
    struct tg_stage_spec const *previous = s ? &network->stages[s - 1].spec : NULL;
    if (!previous || (!previous->relu && previous->kind != TG_RELU) || previous->pool_h ||
        previous->kind == TG_POOL)
        return;
    const REAL *values = (const REAL *)network->values[s] + (size_t)first * inputs + begin;
    for (int i = first; i < last; i++, to += inputs, values += inputs)
        for (size_t x = 0; x < end - begin; x++)
            to[x] = values[x] <= 0 ? 0 : to[x];
}

/* Return the summed loss and write the gradient of the batch's mean loss. */
static double cross_entropy(struct tg_batch const *batch, int first, int last) {
    struct tg_run const *run = batch->run;
    struct tg_network *network = run->network;
    int t = network->n_stages;
    size_t classes = network->shapes[t].features;
    double total = 0;
    for (int i = first; i < last; i++) {
        int64_t index = batch->first + i;
        int64_t label = run->labels[run->order ? run->order[index] : index];
        const REAL *logits = (const REAL *)network->values[t] + i * classes;
        REAL *gradient = (REAL *)network->gradients[t] + i * classes;
        double maximum = logits[0], sum = 0;
        for (size_t k = 1; k < classes; k++)
            maximum = logits[k] > maximum || logits[k] != logits[k] ? logits[k] : maximum;
        for (size_t k = 0; k < classes; k++)
            sum += exp(logits[k] - maximum);
        for (size_t k = 0; k < classes; k++)
            gradient[k] = (exp(logits[k] - maximum) / sum - ((int64_t)k == label)) / batch->total;
        total += log(sum) + maximum - logits[label];
    }
    mask_inactive(network, t, first, last, 0, network->shapes[t].channels);
    return total;
}

/* Add the factor times the gradients to the values, or write the gradients alone. */
static void add_chunks(struct tg_network const *network, struct tg_stage const *stage, size_t from, size_t n,
                       REAL factor, int keep, REAL *to) {
    for (size_t i = 0; i < n; i++) {
        REAL sum = 0;
        for (int c = 0; c < network->chunks; c++) /* in this order, whatever order the chunks finished in */
            sum += ((const REAL *)
                        stage->chunk_gradients)[c * (stage->n_weights + stage->spec.outputs) + from + i];
        to[i] = (keep ? to[i] : 0) + factor * sum;
    }
}

/* Return where gradients go: the parameters, the gradients for the caller, or those of this rank. */
static REAL *destination(struct tg_network const *network, struct tg_stage const *stage, int keep,
                         REAL **bias) {
    if (network->ranks > 1) {
        REAL *weights =
            (REAL *)stage->rank_gradients + network->rank * (stage->n_weights + stage->spec.outputs);
        *bias = weights + stage->n_weights;
        return weights;
    }
    *bias = keep ? stage->spec.bias : stage->spec.bias_gradient;
    return keep ? stage->spec.weights : stage->spec.weights_gradient;
}

static void update_dense(struct tg_batch const *batch, int s, size_t begin, size_t end, REAL factor,
                         int keep) {
    struct tg_network *network = batch->run->network;
    struct tg_stage const *stage = &network->stages[s];
    int outputs = stage->spec.outputs, inputs = stage->taps;
    const REAL *gradient = network->gradients[s + 1];
    REAL *bias, *weights = destination(network, stage, keep, &bias);
    GEMM(CblasRowMajor, CblasTrans, CblasNoTrans, outputs, end - begin, batch->count, factor, gradient,
         outputs, (const REAL *)network->values[s] + begin, inputs, keep, weights + begin, inputs);
    for (int o = 0; bias && begin == 0 && o < outputs; o++) {
        REAL sum = 0;
        for (int i = 0; i < batch->count; i++)
            sum += gradient[(size_t)i * outputs + o];
        bias[o] = (keep ? bias[o] : 0) + factor * sum;
    }
}

/* Update a range of parameters: feature maps of a convolution, or columns of a dense layer's weights. */
static void update_parameters(struct tg_batch const *batch, int s, size_t begin, size_t end) {
    struct tg_network *network = batch->run->network;
    struct tg_stage const *stage = &network->stages[s];
    int keep = batch->run->mode == TG_TRAIN && network->ranks == 1;
    REAL factor = keep ? -batch->run->learning_rate : 1;
    if (stage->spec.kind == TG_DENSE) {
        update_dense(batch, s, begin, end, factor, keep);
        return;
    }
    REAL *bias, *weights = destination(network, stage, keep, &bias);
    add_chunks(network, stage, begin * stage->taps, (end - begin) * stage->taps, factor, keep,
               weights + begin * stage->taps);
    if (bias)
        add_chunks(network, stage, stage->n_weights + begin, end - begin, factor, keep, bias + begin);
}

static void add_ranks(struct tg_network const *network, struct tg_stage const *stage, size_t from, size_t n,
                      REAL factor, int keep, REAL *to) {
    for (size_t i = 0; i < n; i++) {
        REAL sum = 0;
        for (int r = 0; r < network->ranks; r++) /* in this order, so that all ranks keep equal parameters */
            sum += ((const REAL *)
                        stage->rank_gradients)[r * (stage->n_weights + stage->spec.outputs) + from + i];
        to[i] = (keep ? to[i] : 0) + factor * sum;
    }
}

/* Update the parameters with the gradients of all ranks. */
static void apply_ranks(struct tg_batch const *batch, int s) {
    struct tg_network *network = batch->run->network;
    struct tg_stage const *stage = &network->stages[s];
    int keep = batch->run->mode == TG_TRAIN;
    REAL factor = keep ? -batch->run->learning_rate : 1;
    add_ranks(network, stage, 0, stage->n_weights, factor, keep,
              keep ? stage->spec.weights : stage->spec.weights_gradient);
    REAL *bias = keep ? stage->spec.bias : stage->spec.bias_gradient;
    if (bias)
        add_ranks(network, stage, stage->n_weights, stage->spec.outputs, factor, keep, bias);
}

static void emit_outputs(struct tg_batch const *batch, int first, int last) {
    struct tg_run const *run = batch->run;
    size_t features = run->network->shapes[run->network->n_stages].features;
    for (int i = first; i < last; i++) {
        int64_t index = batch->first + i;
        memcpy((REAL *)run->outputs + index * features,
               (const REAL *)run->network->values[run->network->n_stages] + i * features,
               features * sizeof(REAL));
    }
}
