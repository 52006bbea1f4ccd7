/*
 * libamd_smi.so of the lab: AMD SMI calls on top of a shared state file.
 *
 * The vendor's Python package binds every symbol of the library when it is imported, so all must exist.
 * Symbols without a body here are in amdsmi_rest.h, which `slurm_energy_lab.amdsmi_library` generates from
 * the package together with amdsmi_layout.h, the offsets of the structures.
 *
 * The state is in the file named by SENERGY_LAB_AMDSMI: struct header, then struct gpu for each GPU.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "amdsmi_layout.h"

#define EXPORT __attribute__((visibility("default")))
#define DEFAULT_STATE "/run/senergy-lab/amdsmi.state"
#define MAGIC 0x31534d41u /* "AMS1" */
#define MAX_GPUS 16
#define MICROWATTS 1000000u

enum { SUCCESS = 0, INVAL = 1, NOT_SUPPORTED = 2, NO_PERM = 10, NOT_INIT = 32, DRIVER_NOT_LOADED = 34 };

struct header {
    uint32_t magic, gpus;
};

struct gpu {
    uint64_t accumulator;
    float resolution_uj;
    uint64_t cap_uw, default_cap_uw, least_cap_uw, most_cap_uw;
    uint64_t samples, power_samples, heat_samples;
    char name[64];
};

static struct header *state;
static size_t state_bytes;

static struct gpu *gpu_of(void *handle) {
    uintptr_t number = (uintptr_t)handle;
    if (state == NULL || number == 0 || number > state->gpus)
        return NULL;
    return (struct gpu *)(state + 1) + (number - 1);
}

static void put64(void *base, size_t offset, uint64_t value) {
    memcpy((char *)base + offset, &value, sizeof(value));
}

EXPORT int amdsmi_init(uint64_t flags) {
    (void)flags;
    const char *path = getenv("SENERGY_LAB_AMDSMI");
    /* Without write permission the file is opened for reading, like the driver's files. */
    int writable = 1, fd = open(path ? path : DEFAULT_STATE, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        writable = 0;
        fd = open(path ? path : DEFAULT_STATE, O_RDONLY | O_CLOEXEC);
    }
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0 || (size_t)status.st_size < sizeof(struct header)) {
        if (fd >= 0)
            close(fd);
        return DRIVER_NOT_LOADED;
    }
    state_bytes = (size_t)status.st_size;
    state = mmap(NULL, state_bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    close(fd);
    if (state == MAP_FAILED || state->magic != MAGIC || state->gpus > MAX_GPUS ||
        state_bytes < sizeof(struct header) + state->gpus * sizeof(struct gpu)) {
        state = NULL;
        return DRIVER_NOT_LOADED;
    }
    return SUCCESS;
}

EXPORT int amdsmi_shut_down(void) {
    if (state == NULL)
        return NOT_INIT;
    munmap(state, state_bytes);
    state = NULL;
    return SUCCESS;
}

/* One socket per GPU, as on real cards. */
EXPORT int amdsmi_get_socket_handles(uint32_t *count, void **handles) {
    if (state == NULL)
        return NOT_INIT;
    for (uint32_t i = 0; handles != NULL && i < *count && i < state->gpus; i++)
        handles[i] = (void *)(uintptr_t)(i + 1);
    *count = state->gpus;
    return SUCCESS;
}

EXPORT int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
    if (gpu_of(socket) == NULL)
        return INVAL;
    if (handles != NULL && *count > 0)
        handles[0] = socket;
    *count = 1;
    return SUCCESS;
}

EXPORT int amdsmi_get_energy_count(void *handle, uint64_t *accumulator, float *resolution, uint64_t *time) {
    struct gpu *gpu = gpu_of(handle);
    if (gpu == NULL || accumulator == NULL || resolution == NULL || time == NULL)
        return INVAL;
    *accumulator = gpu->accumulator;
    *resolution = gpu->resolution_uj;
    *time = 0;
    return SUCCESS;
}

EXPORT int amdsmi_get_power_cap_info(void *handle, uint32_t sensor, void *info) {
    struct gpu *gpu = gpu_of(handle);
    if (gpu == NULL || info == NULL || sensor != 0)
        return INVAL;
    memset(info, 0, SIZE_POWER_CAP_INFO);
    put64(info, AT_POWER_CAP_INFO_POWER_CAP, gpu->cap_uw);
    put64(info, AT_POWER_CAP_INFO_DEFAULT_POWER_CAP, gpu->default_cap_uw);
    put64(info, AT_POWER_CAP_INFO_MIN_POWER_CAP, gpu->least_cap_uw);
    put64(info, AT_POWER_CAP_INFO_MAX_POWER_CAP, gpu->most_cap_uw);
    return SUCCESS;
}

/* amdgpu divides by 10^6 and stores whole watts; only root can write its file. */
EXPORT int amdsmi_set_power_cap(void *handle, uint32_t sensor, uint64_t cap_uw) {
    struct gpu *gpu = gpu_of(handle);
    if (gpu == NULL || sensor != 0 || cap_uw < gpu->least_cap_uw || cap_uw > gpu->most_cap_uw)
        return INVAL;
    if (geteuid() != 0)
        return NO_PERM;
    gpu->cap_uw = cap_uw / MICROWATTS * MICROWATTS;
    return SUCCESS;
}

EXPORT int amdsmi_get_gpu_asic_info(void *handle, void *info) {
    struct gpu *gpu = gpu_of(handle);
    if (gpu == NULL || info == NULL)
        return INVAL;
    memset(info, 0, SIZE_ASIC_INFO);
    memcpy((char *)info + AT_ASIC_INFO_MARKET_NAME, gpu->name, sizeof(gpu->name) - 1);
    return SUCCESS;
}

/* Fields that the firmware does not report have all bits set. */
EXPORT int amdsmi_get_gpu_metrics_info(void *handle, void *info) {
    struct gpu *gpu = gpu_of(handle);
    if (gpu == NULL || info == NULL)
        return INVAL;
    memset(info, 0xff, SIZE_GPU_METRICS);
    if (gpu->samples == 0)
        return SUCCESS;
    put64(info, AT_GPU_METRICS_ACCUMULATION_COUNTER, gpu->samples);
    put64(info, AT_GPU_METRICS_PPT_RESIDENCY_ACC, gpu->power_samples);
    put64(info, AT_GPU_METRICS_SOCKET_THM_RESIDENCY_ACC, gpu->heat_samples);
    return SUCCESS;
}

#define ABSENT(name)                                                                                         \
    EXPORT int name(void) { return NOT_SUPPORTED; }
#include "amdsmi_rest.h"
