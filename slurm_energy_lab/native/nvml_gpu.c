/*
 * NVML stub: readings and commands of one GPU.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE
#include "nvml_stub.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Defines a getter of one number: nvmlDeviceGet<NAME>(device, TYPE *value). */
#define GETTER(name, type, expression)                                                                       \
    EXPORT nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t device, type *value) {                              \
        struct snv_gpu gpu;                                                                                  \
        nvmlReturn_t result = snv_fetch(device, value, &gpu);                                                \
        if (result == NVML_SUCCESS)                                                                          \
            *value = (expression);                                                                           \
        return result;                                                                                       \
    }

GETTER(PowerUsage, unsigned int, gpu.power_mw)
GETTER(PowerManagementLimit, unsigned int, gpu.limit_mw)
GETTER(EnforcedPowerLimit, unsigned int, gpu.enforced_limit_mw)
GETTER(PowerManagementDefaultLimit, unsigned int, gpu.default_limit_mw)
GETTER(PowerManagementMode, int, 1)
GETTER(PersistenceMode, int, (int)gpu.persistence)
GETTER(ComputeMode, int, 0)
GETTER(Architecture, unsigned int, gpu.architecture)
GETTER(CurrentClocksEventReasons, unsigned long long, gpu.clocks_event_reasons)
GETTER(CurrentClocksThrottleReasons, unsigned long long, gpu.clocks_event_reasons)
GETTER(SupportedClocksEventReasons, unsigned long long, 7)
GETTER(SupportedClocksThrottleReasons, unsigned long long, 7)
GETTER(MinorNumber, unsigned int, gpu.minor)

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy_mj) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, energy_mj, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (gpu.architecture < ARCHITECTURE_VOLTA)
        return NVML_ERROR_NOT_SUPPORTED;
    *energy_mj = gpu.energy_mj;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *min_mw,
                                                                 unsigned int *max_mw) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, min_mw == NULL ? NULL : max_mw, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    *min_mw = gpu.min_limit_mw;
    *max_mw = gpu.max_limit_mw;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, rates, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    rates->gpu = gpu.utilisation_percent;
    rates->memory = gpu.memory_utilisation_percent;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *mhz) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, mhz, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    switch (type) {
    case NVML_CLOCK_GRAPHICS:
        *mhz = gpu.graphics_mhz;
        return NVML_SUCCESS;
    case NVML_CLOCK_SM:
        *mhz = gpu.sm_mhz;
        return NVML_SUCCESS;
    case NVML_CLOCK_MEM:
        *mhz = gpu.memory_mhz;
        return NVML_SUCCESS;
    case NVML_CLOCK_VIDEO:
        *mhz = gpu.video_mhz;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned int *mhz) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, mhz, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (type < NVML_CLOCK_GRAPHICS || type > NVML_CLOCK_VIDEO)
        return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = type == NVML_CLOCK_MEM ? gpu.max_memory_mhz : gpu.max_graphics_mhz;
    return NVML_SUCCESS;
}

static nvmlReturn_t copy_clocks(const uint16_t *from, unsigned int have, unsigned int *count,
                                unsigned int *mhz) {
    unsigned int room = *count;
    *count = have;
    if (mhz == NULL || room < have)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < have; i++)
        mhz[i] = from[i];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count,
                                                       unsigned int *mhz) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, count, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    uint16_t clocks[SNV_MEMORY_CLOCKS];
    memcpy(clocks, gpu.memory_clocks_mhz, sizeof clocks);
    return copy_clocks(clocks, gpu.memory_clock_count, count, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_mhz,
                                                         unsigned int *count, unsigned int *mhz) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, count, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    unsigned int found = 0;
    for (unsigned int i = 0; i < gpu.memory_clock_count; i++)
        found |= gpu.memory_clocks_mhz[i] == memory_mhz;
    if (!found)
        return NVML_ERROR_NOT_FOUND;
    uint16_t clocks[SNV_GRAPHICS_CLOCKS];
    memcpy(clocks, gpu.graphics_clocks_mhz, sizeof clocks);
    return copy_clocks(clocks, gpu.graphics_clock_count, count, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, memory, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    memory->total = gpu.memory_bytes;
    memory->used = (unsigned long long)gpu.memory_used_mib << 20;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, memory, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (memory->version != MEMORY_V2)
        return NVML_ERROR_INVALID_ARGUMENT;
    memory->total = gpu.memory_bytes;
    memory->reserved = 0;
    memory->used = (unsigned long long)gpu.memory_used_mib << 20;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, major == NULL ? NULL : minor, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    *major = (int)gpu.compute_major;
    *minor = (int)gpu.compute_minor;
    return NVML_SUCCESS;
}

/* Not emulated: processes (the list is empty) and MIG (not supported). */

static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned int *count) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, count, &gpu);
    if (result == NVML_SUCCESS)
        *count = 0;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                            void *processes) {
    (void)processes;
    return no_processes(device, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                             void *processes) {
    (void)processes;
    return no_processes(device, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, current == NULL ? NULL : pending, &gpu);
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

static long long unix_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void answer_field(const struct snv_gpu *gpu, nvmlFieldValue_t *field) {
    field->timestamp = unix_us();
    field->latency_us = 0;
    field->result = NVML_SUCCESS;
    field->value.ull = 0;
    if (snv_answer_signal_field(gpu, field))
        return;
    if (field->scope_id != 0) {
        field->result = NVML_ERROR_NOT_SUPPORTED;
        return;
    }
    switch (field->field_id) {
    case FIELD_TOTAL_ENERGY:
        field->value_type = VALUE_TYPE_UINT64;
        field->value.ull = gpu->energy_mj;
        return;
    case FIELD_POWER_INSTANT:
        field->value_type = VALUE_TYPE_UINT;
        field->value.ui = gpu->power_instant_mw;
        return;
    case FIELD_POWER_AVERAGE:
        if (gpu->power_average_mw != SNV_UNKNOWN) {
            field->value_type = VALUE_TYPE_UINT;
            field->value.ui = gpu->power_average_mw;
            return;
        }
        /* fall through */
    default:
        field->result = NVML_ERROR_NOT_SUPPORTED;
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, fields, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    for (int i = 0; i < count; i++)
        answer_field(&gpu, &fields[i]);
    return NVML_SUCCESS;
}

/* Commands. */

nvmlReturn_t snv_command(nvmlDevice_t device, const void *bytes, size_t size) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, device, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    char path[32];
    snprintf(path, sizeof path, "/dev/nvidia%u", gpu.minor);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return snv_from_errno(errno);
    ssize_t put = pwrite(fd, bytes, size, 0);
    result = put < 0 ? snv_from_errno(errno) : NVML_SUCCESS;
    close(fd);
    return result;
}

static nvmlReturn_t command(nvmlDevice_t device, uint32_t code, uint32_t first, uint32_t second) {
    struct snv_command bytes = {code, first, second};
    return snv_command(device, &bytes, sizeof bytes);
}

EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit_mw) {
    return command(device, SNV_SET_POWER_LIMIT, limit_mw, 0);
}

EXPORT nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int min_mhz,
                                                 unsigned int max_mhz) {
    return command(device, SNV_LOCK_GRAPHICS, min_mhz, max_mhz);
}

EXPORT nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device) {
    return command(device, SNV_RESET_GRAPHICS, 0, 0);
}

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int min_mhz,
                                                    unsigned int max_mhz) {
    return command(device, SNV_LOCK_MEMORY, min_mhz, max_mhz);
}

EXPORT nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device) {
    return command(device, SNV_RESET_MEMORY, 0, 0);
}

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, int mode) {
    return command(device, SNV_SET_PERSISTENCE, (uint32_t)mode, 0);
}
