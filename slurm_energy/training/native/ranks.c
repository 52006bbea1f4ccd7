/* Several processes, which share each batch: every process computes its samples, sends the gradients to all
 * others, and adds those of all ranks in the order of the ranks. StarPU-MPI orders messages and tasks by the
 * handles.
 */
#include "taskgraph.h"
#include <stdlib.h>
#include <string.h>

#ifdef TG_MPI
#include <starpu_mpi.h>

static int rank, ranks = 1;

int tg_start_starpu(struct starpu_conf *conf) {
    int error = starpu_mpi_init_conf(NULL, NULL, 1, MPI_COMM_WORLD, conf);
    if (!error) {
        starpu_mpi_comm_rank(MPI_COMM_WORLD, &rank);
        starpu_mpi_comm_size(MPI_COMM_WORLD, &ranks);
    }
    return error;
}

void tg_stop_starpu(void) { starpu_mpi_shutdown(); }

void tg_wait_for_all(void) { starpu_mpi_wait_for_all(MPI_COMM_WORLD); }

int tg_rank(void) { return rank; }

int tg_ranks(void) { return ranks; }

/* Send this rank's array to all others and receive theirs; `handles` has one per rank. */
int tg_exchange(struct tg_handles const *handles, int64_t tag) {
    int error = 0;
    for (int r = 0; r < ranks; r++) {
        if (r == rank)
            continue;
        error |= starpu_mpi_irecv_detached(handles->items[r], r, tag * ranks + r, MPI_COMM_WORLD, NULL, NULL);
        error |= starpu_mpi_isend_detached(handles->items[rank], r, tag * ranks + rank, MPI_COMM_WORLD, NULL,
                                           NULL);
    }
    return error ? TG_RUNTIME : TG_OK;
}
#else
int tg_start_starpu(struct starpu_conf *conf) { return starpu_init(conf); }

void tg_stop_starpu(void) { starpu_shutdown(); }

void tg_wait_for_all(void) { starpu_task_wait_for_all(); }

int tg_rank(void) { return 0; }

int tg_ranks(void) { return 1; }

int tg_exchange(struct tg_handles const *handles, int64_t tag) {
    (void)handles;
    (void)tag;
    return TG_OK;
}
#endif

#define LOSS_TAG 1000000

/* Add each rank's part of the losses. */
int tg_sum_losses(double *losses, int64_t n) {
    int n_ranks = tg_ranks(), error = TG_OK;
    if (n_ranks == 1)
        return TG_OK;
    double *all = calloc(n_ranks * n, sizeof *all);
    starpu_data_handle_t *items = calloc(n_ranks, sizeof *items);
    struct tg_handles handles = {n_ranks, 1, items};
    if (!all || !items) {
        free(all);
        free(items);
        return TG_NO_MEMORY;
    }
    memcpy(all + tg_rank() * n, losses, n * sizeof *all);
    for (int r = 0; r < n_ranks; r++)
        starpu_vector_data_register(&items[r], STARPU_MAIN_RAM, (uintptr_t)(all + r * n), n, sizeof *all);
    error = tg_exchange(&handles, LOSS_TAG);
    tg_wait_for_all();
    for (int r = 0; r < n_ranks; r++)
        starpu_data_unregister(items[r]);
    for (int64_t i = 0; i < n; i++) {
        losses[i] = 0;
        for (int r = 0; r < n_ranks; r++)
            losses[i] += all[r * n + i];
    }
    free(all);
    free(items);
    return error;
}
