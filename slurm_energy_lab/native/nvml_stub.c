/*
 * libnvidia-ml.so.1 of the lab: NVML calls on top of the emulated driver's device files.
 *
 * Exports the functions that nvidia-ml-py, zeus and power agents use. Others are missing, which callers see
 * as "function not found". The only state is the open /dev/nvidiactl and the identity of each GPU, so all
 * processes of a node see the same GPUs.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE
#include "nvml_stub.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CONTROL_PATH "/dev/nvidiactl"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned int users;
static int control_fd = -1;
static struct snv_header header;
static struct { int index; } handles[SNV_MAX_GPUS];

nvmlReturn_t snv_from_errno(int code) {
    switch (code) {
    case EACCES:
    case EPERM:
        return NVML_ERROR_NO_PERMISSION;
    case EINVAL:
        return NVML_ERROR_INVALID_ARGUMENT;
    case EOPNOTSUPP:
        return NVML_ERROR_NOT_SUPPORTED;
    case ENOENT:
    case ENXIO:
    case ENODEV:
        return NVML_ERROR_NOT_FOUND;
    case EIO:
    case ENOTCONN:
    case ECONNABORTED:
        return NVML_ERROR_GPU_IS_LOST;
    default:
        return NVML_ERROR_UNKNOWN;
    }
}

static nvmlReturn_t open_control(void) {
    int fd = open(CONTROL_PATH, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    ssize_t got = pread(fd, &header, sizeof header, 0);
    if (got < 0) {
        close(fd);
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    if (got != (ssize_t)sizeof header || memcmp(header.magic, SNV_MAGIC, sizeof header.magic) != 0 ||
        header.header_bytes != sizeof header || header.record_bytes != sizeof(struct snv_gpu) ||
        header.gpu_count > SNV_MAX_GPUS) {
        close(fd);
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    for (int i = 0; i < SNV_MAX_GPUS; i++)
        handles[i].index = i;
    control_fd = fd;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (users == 0)
        result = open_control();
    if (result == NVML_SUCCESS)
        users++;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (users == 0) {
        result = NVML_ERROR_UNINITIALIZED;
    } else if (--users == 0) {
        close(control_fd);
        control_fd = -1;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    static const char *const texts[] = {
        [NVML_SUCCESS] = "The operation was successful",
        [NVML_ERROR_UNINITIALIZED] = "NVML was not initialized",
        [NVML_ERROR_INVALID_ARGUMENT] = "A supplied argument is invalid",
        [NVML_ERROR_NOT_SUPPORTED] = "The device does not support this operation",
        [NVML_ERROR_NO_PERMISSION] = "The caller may not do this",
        [NVML_ERROR_NOT_FOUND] = "The object was not found",
        [NVML_ERROR_INSUFFICIENT_SIZE] = "The buffer is too small",
        [NVML_ERROR_DRIVER_NOT_LOADED] = "The driver is not loaded",
        [NVML_ERROR_GPU_IS_LOST] = "The GPU does not answer",
        [NVML_ERROR_OPERATING_SYSTEM] = "The operating system refused a call",
        [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "The version of an argument is not known",
        [NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Library and driver do not fit together",
    };
    size_t count = sizeof texts / sizeof *texts;
    if (result < 0 || (size_t)result >= count || texts[result] == NULL)
        return "Unknown error";
    return texts[result];
}

nvmlReturn_t snv_copy_text(char *to, unsigned int length, const char *from) {
    if (to == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    size_t bytes = strlen(from) + 1;
    if (length < bytes)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, from, bytes);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    return users ? snv_copy_text(version, length, header.driver_version) : NVML_ERROR_UNINITIALIZED;
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    return users ? snv_copy_text(version, length, header.nvml_version) : NVML_ERROR_UNINITIALIZED;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (version == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = (int)header.cuda_version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* Reading one GPU's record. */

nvmlReturn_t snv_fetch(nvmlDevice_t device, const void *out, struct snv_gpu *gpu) {
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (device == NULL || out == NULL || device->index < 0 || (unsigned int)device->index >= header.gpu_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    off_t where = SNV_RECORD_OFFSET + (off_t)device->index * SNV_RECORD_STRIDE;
    ssize_t got = pread(control_fd, gpu, sizeof *gpu, where);
    if (got < 0)
        return snv_from_errno(errno);
    return got == (ssize_t)sizeof *gpu ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

/* Identity. */

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = header.gpu_count;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (device == NULL || index >= header.gpu_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = (nvmlDevice_t)&handles[index];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (uuid == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < header.gpu_count; i++) {
        struct snv_gpu gpu;
        nvmlReturn_t result = snv_fetch((nvmlDevice_t)&handles[i], device, &gpu);
        if (result != NVML_SUCCESS)
            return result;
        if (strncmp(gpu.uuid, uuid, sizeof gpu.uuid) == 0) {
            *device = (nvmlDevice_t)&handles[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, index, &gpu);
    if (result == NVML_SUCCESS)
        *index = (unsigned int)device->index;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, name, &gpu);
    return result == NVML_SUCCESS ? snv_copy_text(name, length, gpu.name) : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, uuid, &gpu);
    return result == NVML_SUCCESS ? snv_copy_text(uuid, length, gpu.uuid) : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, pci, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    memset(pci, 0, sizeof *pci);
    pci->domain = gpu.pci_domain;
    pci->bus = gpu.pci_bus;
    pci->pci_device_id = gpu.pci_device_id;
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:00.0", pci->domain & 0xffff,
             pci->bus & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:00.0", pci->domain, pci->bus & 0xff);
    return NVML_SUCCESS;
}
