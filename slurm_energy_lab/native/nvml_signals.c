/*
 * NVML stub: signals of one GPU: temperature, PCIe and NVLink traffic, throttling, and GPM.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "nvml_stub.h"

#include <stdlib.h>

#define ALL_LINKS UINT32_MAX
#define GPM_VERSION 1
#define MEBI 1048576.0

enum { GPM_SM = 2, GPM_TENSOR = 5, GPM_DRAM = 10 };
enum { GPM_PCIE_TRANSMIT = 20, GPM_PCIE_RECEIVE = 21, GPM_LINK_RECEIVE = 60, GPM_LINK_TRANSMIT = 61 };

typedef struct snv_signals *nvmlGpmSample_t;

typedef struct {
    unsigned int metric_id;
    nvmlReturn_t result;
    double value;
    struct {
        char *short_name, *long_name, *unit;
    } info;
} nvmlGpmMetric_t;

typedef struct {
    unsigned int version, count;
    nvmlGpmSample_t earlier, later;
    nvmlGpmMetric_t metrics[]; /* the caller's header decides how many there are */
} nvmlGpmMetricsGet_t;

typedef struct {
    unsigned int version, supported;
} nvmlGpmSupport_t;

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *celsius) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, celsius, &gpu);
    if (result == NVML_SUCCESS && sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *celsius = gpu.signals.temperature_celsius;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned int *kb_per_s) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, kb_per_s, &gpu);
    if (result == NVML_SUCCESS)
        *kb_per_s = counter == 0 ? gpu.signals.pcie_transmit_kb_per_s : gpu.signals.pcie_receive_kb_per_s;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, int *is_active) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, is_active, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (gpu.signals.link_count == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (link >= gpu.signals.link_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *is_active = 1;
    return NVML_SUCCESS;
}

int snv_answer_signal_field(const struct snv_gpu *gpu, nvmlFieldValue_t *field) {
    const struct snv_signals *signals = &gpu->signals;
    int is_link = field->field_id == FIELD_LINK_TRANSMIT || field->field_id == FIELD_LINK_RECEIVE;
    if (!is_link && field->field_id != FIELD_POWER_VIOLATION && field->field_id != FIELD_THERMAL_VIOLATION)
        return 0;
    field->value_type = VALUE_TYPE_UINT64;
    if (field->field_id == FIELD_POWER_VIOLATION)
        field->value.ull = signals->power_violation_ns;
    else if (field->field_id == FIELD_THERMAL_VIOLATION)
        field->value.ull = signals->thermal_violation_ns;
    else if (field->scope_id != ALL_LINKS || signals->link_count == 0)
        field->result = NVML_ERROR_NOT_SUPPORTED;
    else if (field->field_id == FIELD_LINK_TRANSMIT)
        field->value.ull = signals->nvlink_transmit_bytes / 1024;
    else
        field->value.ull = signals->nvlink_receive_bytes / 1024;
    return 1;
}

/* GPM: a sample is a copy of the counters, and a metric is the mean between two samples. */

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, support, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (support->version != GPM_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->supported = gpu.signals.has_gpm;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    if (sample == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *sample = calloc(1, sizeof **sample);
    return *sample == NULL ? NVML_ERROR_OPERATING_SYSTEM : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    free(sample);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    struct snv_gpu gpu;
    nvmlReturn_t result = snv_fetch(device, sample, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (!gpu.signals.has_gpm)
        return NVML_ERROR_NOT_SUPPORTED;
    *sample = gpu.signals;
    return NVML_SUCCESS;
}

static int metric(const struct snv_signals *from, const struct snv_signals *to, unsigned int number,
                  double *value) {
    double ns = (double)(to->time_ns - from->time_ns);
    switch (number) {
    case GPM_SM:
        *value = 100 * (double)(to->sm_active_ns - from->sm_active_ns) / ns;
        return 1;
    case GPM_TENSOR:
        *value = 100 * (double)(to->tensor_active_ns - from->tensor_active_ns) / ns;
        return 1;
    case GPM_DRAM:
        *value = 100 * (double)(to->dram_active_ns - from->dram_active_ns) / ns;
        return 1;
    case GPM_PCIE_TRANSMIT:
        *value = (double)(to->pcie_transmit_bytes - from->pcie_transmit_bytes) * 1e9 / ns / MEBI;
        return 1;
    case GPM_PCIE_RECEIVE:
        *value = (double)(to->pcie_receive_bytes - from->pcie_receive_bytes) * 1e9 / ns / MEBI;
        return 1;
    case GPM_LINK_RECEIVE:
        *value = (double)(to->nvlink_receive_bytes - from->nvlink_receive_bytes) * 1e9 / ns / MEBI;
        return 1;
    case GPM_LINK_TRANSMIT:
        *value = (double)(to->nvlink_transmit_bytes - from->nvlink_transmit_bytes) * 1e9 / ns / MEBI;
        return 1;
    default:
        return 0;
    }
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request) {
    if (request == NULL || request->earlier == NULL || request->later == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (request->version != GPM_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (request->later->time_ns <= request->earlier->time_ns)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < request->count; i++) {
        nvmlGpmMetric_t *one = &request->metrics[i];
        int is_known = metric(request->earlier, request->later, one->metric_id, &one->value);
        one->result = is_known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}
