/*
 * Shared declarations of the NVML stub: NVML's types and constants, and the function that reads a GPU's
 * record.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef SENERGY_NVML_STUB_H
#define SENERGY_NVML_STUB_H

#include <stddef.h>

#include "nvidia_device.h"

#define EXPORT __attribute__((visibility("default")))

typedef int nvmlReturn_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_OPERATING_SYSTEM = 17,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

enum { NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO };
enum { FIELD_TOTAL_ENERGY = 83, FIELD_POWER_AVERAGE = 185, FIELD_POWER_INSTANT = 186 };
enum {
    FIELD_POWER_VIOLATION = 74,
    FIELD_THERMAL_VIOLATION = 75,
    FIELD_LINK_TRANSMIT = 138,
    FIELD_LINK_RECEIVE = 139
};
enum { VALUE_TYPE_UINT = 1, VALUE_TYPE_UINT64 = 3 };
enum { ARCHITECTURE_VOLTA = 5 };
#define MEMORY_V2 0x02000028u

typedef struct {
    int index;
} * nvmlDevice_t;

typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned int field_id, scope_id;
    long long timestamp, latency_us;
    int value_type;
    nvmlReturn_t result;
    union {
        double d;
        unsigned int ui;
        unsigned long long ull;
    } value;
} nvmlFieldValue_t;

/* Reads the record of a GPU. `out`, the caller's result pointer, is only checked for NULL. */
nvmlReturn_t snv_fetch(nvmlDevice_t device, const void *out, struct snv_gpu *gpu);

/* Answers a field of throttling or NVLink traffic; returns whether the field is one of these. */
int snv_answer_signal_field(const struct snv_gpu *gpu, nvmlFieldValue_t *field);

/* Writes a command to the device file of a GPU. */
nvmlReturn_t snv_command(nvmlDevice_t device, const void *bytes, size_t size);

/* Returns NVML's error code for a failed system call. */
nvmlReturn_t snv_from_errno(int code);

/* Copies a text with its NUL; NVML_ERROR_INSUFFICIENT_SIZE if it does not fit. */
nvmlReturn_t snv_copy_text(char *to, unsigned int length, const char *from);

#endif
