/* StarPU with workers that sleep while no task is ready.
 *
 * StarPU's own drivers poll for tasks unless the library was built with --enable-blocking-drivers (Debian's
 * is not): two idle workers use two processors. Here the drivers run in threads of this file, which wait on a
 * condition until the scheduling policy below has a ready task.
 */
#include "taskgraph.h"
#include <pthread.h>
#include <starpu_scheduler.h>
#include <stdlib.h>
#include <time.h>

#define MAX_WORKERS 256

void openblas_set_num_threads(int);
void omp_set_num_threads(int);

static pthread_mutex_t ready_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ready_changed = PTHREAD_COND_INITIALIZER;
static struct starpu_task_list ready_tasks;
static int n_ready, n_waiting, is_stopping, n_workers, n_started;
static struct starpu_driver drivers[MAX_WORKERS];
static pthread_t threads[MAX_WORKERS];

/* Tasks that this worker has taken and not finished: run_once fetches the data in one call and executes in
 * the next. */
static __thread int n_taken;

static void init_policy(unsigned context) {
    (void)context;
    starpu_task_list_init(&ready_tasks);
    n_ready = 0;
}

static void deinit_policy(unsigned context) { (void)context; }

static void change_workers(unsigned context, int *ids, unsigned n) {
    (void)context;
    (void)ids;
    (void)n;
}

static int push_task(struct starpu_task *task) {
    pthread_mutex_lock(&ready_mutex);
    starpu_task_list_push_back(&ready_tasks, task);
    n_ready++;
    int wake = n_waiting > 0;
    pthread_mutex_unlock(&ready_mutex);
    starpu_push_task_end(task);
    if (wake)
        pthread_cond_signal(&ready_changed);
    return 0;
}

static struct starpu_task *pop_task(unsigned context) {
    (void)context;
    struct starpu_task *task = NULL;
    pthread_mutex_lock(&ready_mutex);
    if (n_ready) {
        task = starpu_task_list_pop_front(&ready_tasks);
        n_ready--;
        n_taken++;
    }
    pthread_mutex_unlock(&ready_mutex);
    return task;
}

static void count_finished(struct starpu_task *task, unsigned context) {
    (void)task;
    (void)context;
    n_taken--;
}

static struct starpu_sched_policy blocking_policy = {
    .init_sched = init_policy,
    .deinit_sched = deinit_policy,
    .add_workers = change_workers,
    .remove_workers = change_workers,
    .push_task = push_task,
    .pop_task = pop_task,
    .post_exec_hook = count_finished,
    .policy_name = "senergy-blocking",
    .policy_description = "first in, first out; workers sleep while no task is ready",
};

static void *work(void *argument) {
    struct starpu_driver *driver = argument;
    omp_set_num_threads(1); /* of this thread only: libraries must not start threads inside a task */
    int failed = starpu_driver_init(driver);
    pthread_mutex_lock(&ready_mutex);
    n_started += failed ? -MAX_WORKERS : 1;
    pthread_cond_broadcast(&ready_changed);
    for (;;) {
        while (!n_ready && !n_taken && !is_stopping) {
            n_waiting++;
            pthread_cond_wait(&ready_changed, &ready_mutex);
            n_waiting--;
        }
        if (failed || (!n_ready && !n_taken))
            break;
        pthread_mutex_unlock(&ready_mutex);
        starpu_driver_run_once(driver);
        pthread_mutex_lock(&ready_mutex);
    }
    pthread_mutex_unlock(&ready_mutex);
    if (!failed)
        starpu_driver_deinit(driver);
    return NULL;
}

/* Start StarPU with a number of processor workers. Returns TG_OK or TG_RUNTIME. */
int tg_start(int workers) {
    if (workers < 1 || workers > MAX_WORKERS || n_workers)
        return TG_RUNTIME;
    /* Slurm has bound the process already; StarPU would bind every process of a node to the same first
     * processors. */
    setenv("STARPU_WORKERS_NOBIND", "1", 0);
    setenv("STARPU_SILENT", "1", 0);
    struct starpu_conf conf;
    starpu_conf_init(&conf);
    conf.precedence_over_environment_variables = 1;
    conf.ncpus = workers;
    conf.ncuda = 0;
    conf.nopencl = 0;
    conf.sched_policy = &blocking_policy;
    for (int i = 0; i < workers; i++) {
        drivers[i].type = STARPU_CPU_WORKER;
        drivers[i].id.cpu_id = i;
    }
    conf.not_launched_drivers = drivers;
    conf.n_not_launched_drivers = workers;
    if (tg_start_starpu(&conf) != 0)
        return TG_RUNTIME;
    openblas_set_num_threads(1);
    is_stopping = 0;
    n_started = 0;
    n_workers = workers;
    for (int i = 0; i < workers; i++)
        if (pthread_create(&threads[i], NULL, work, &drivers[i]) != 0)
            abort(); /* StarPU waits for its drivers for ever */
    pthread_mutex_lock(&ready_mutex);
    while (n_started >= 0 && n_started < workers)
        pthread_cond_wait(&ready_changed, &ready_mutex);
    int started = n_started;
    pthread_mutex_unlock(&ready_mutex);
    return started == workers ? TG_OK : TG_RUNTIME;
}

void tg_stop(void) {
    if (!n_workers)
        return;
    tg_wait_for_all();
    pthread_mutex_lock(&ready_mutex);
    is_stopping = 1;
    pthread_cond_broadcast(&ready_changed);
    pthread_mutex_unlock(&ready_mutex);
    for (int i = 0; i < n_workers; i++)
        pthread_join(threads[i], NULL);
    tg_stop_starpu();
    n_workers = 0;
}

int tg_workers(void) { return n_workers; }

double tg_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static void do_nothing(void *buffers[], void *argument) {
    (void)buffers;
    (void)argument;
}

static double process_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Return the processor seconds that StarPU needs for one task of a fork and join: submission, dependencies,
 * wake-up. */
double tg_task_overhead_s(int tasks) {
    static struct starpu_codelet codelet = {
        .cpu_funcs = {do_nothing}, .nbuffers = 2, .modes = {STARPU_R, STARPU_RW}, .name = "empty"};
    starpu_data_handle_t shared, own[2];
    static double value[3];
    starpu_variable_data_register(&shared, STARPU_MAIN_RAM, (uintptr_t)&value[0], sizeof(double));
    for (int i = 0; i < 2; i++)
        starpu_variable_data_register(&own[i], STARPU_MAIN_RAM, (uintptr_t)&value[i + 1], sizeof(double));
    double start = process_s();
    int done = 0, error = 0;
    for (; done < tasks && !error; done += 3) {
        for (int i = 0; i < 2; i++)
            error |= starpu_task_insert(&codelet, STARPU_R, shared, STARPU_RW, own[i], 0);
        error |= starpu_task_insert(&codelet, STARPU_R, own[0], STARPU_RW, shared, 0);
    }
    starpu_task_wait_for_all();
    double used = process_s() - start;
    starpu_data_unregister(shared);
    for (int i = 0; i < 2; i++)
        starpu_data_unregister(own[i]);
    return error || !done ? -1.0 : used / done;
}
