/*
 * NVML stub: workload power profiles.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE
#include "nvml_stub.h"

#include <string.h>

#define MAX_PROFILES 255
#define PROFILE_INFO_V1 0x100002cu
#define PROFILES_INFO_V1 0x1002bf8u
#define CURRENT_PROFILES_V1 0x1000064u
#define REQUESTED_PROFILES_V1 0x1000024u

typedef struct {
    unsigned int mask[SNV_MASK_WORDS];
} nvmlMask255_t;

typedef struct {
    unsigned int version, profile_id, priority;
    nvmlMask255_t conflicting_mask;
} nvmlWorkloadPowerProfileInfo_t;

typedef struct {
    unsigned int version;
    nvmlMask255_t profiles;
    nvmlWorkloadPowerProfileInfo_t profile[MAX_PROFILES];
} nvmlWorkloadPowerProfileProfilesInfo_t;

typedef struct {
    unsigned int version;
    nvmlMask255_t offered, requested, enforced;
} nvmlWorkloadPowerProfileCurrentProfiles_t;

typedef struct {
    unsigned int version;
    nvmlMask255_t requested;
} nvmlWorkloadPowerProfileRequestedProfiles_t;

typedef struct {
    unsigned int operation; /* 0 clear, 1 set, 2 set and overwrite */
    nvmlMask255_t mask;
} nvmlWorkloadPowerProfileUpdateProfiles_v1_t;

/* Reads the record of a GPU that offers profiles. `version` is that of the caller's struct. */
static nvmlReturn_t fetch(nvmlDevice_t device, const void *out, unsigned int version, unsigned int expected,
                          struct snv_gpu *gpu) {
    nvmlReturn_t result = snv_fetch(device, out, gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (version != expected)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return gpu->profile_count ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlMask255_t offered(const struct snv_gpu *gpu) {
    nvmlMask255_t all = {{0}};
    for (unsigned int i = 0; i < gpu->profile_count && i < SNV_PROFILES; i++)
        all.mask[gpu->profiles[i].number / 32 % SNV_MASK_WORDS] |= 1u << gpu->profiles[i].number % 32;
    return all;
}

static nvmlMask255_t copied(const uint32_t *words) {
    nvmlMask255_t mask;
    memcpy(mask.mask, words, sizeof mask.mask);
    return mask;
}

EXPORT nvmlReturn_t nvmlDeviceWorkloadPowerProfileGetProfilesInfo(
    nvmlDevice_t device, nvmlWorkloadPowerProfileProfilesInfo_t *info) {
    struct snv_gpu gpu;
    nvmlReturn_t result = fetch(device, info, info ? info->version : 0, PROFILES_INFO_V1, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    memset(info, 0, sizeof *info);
    info->version = PROFILES_INFO_V1;
    info->profiles = offered(&gpu);
    for (unsigned int i = 0; i < gpu.profile_count && i < SNV_PROFILES; i++) {
        struct snv_profile profile = gpu.profiles[i];
        if (profile.number >= MAX_PROFILES)
            continue;
        info->profile[profile.number] = (nvmlWorkloadPowerProfileInfo_t){
            PROFILE_INFO_V1, profile.number, profile.priority, copied(profile.conflicts)};
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(
    nvmlDevice_t device, nvmlWorkloadPowerProfileCurrentProfiles_t *profiles) {
    struct snv_gpu gpu;
    nvmlReturn_t result =
        fetch(device, profiles, profiles ? profiles->version : 0, CURRENT_PROFILES_V1, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    profiles->offered = offered(&gpu);
    profiles->requested = copied(gpu.requested_profiles);
    profiles->enforced = copied(gpu.enforced_profiles);
    return NVML_SUCCESS;
}

static nvmlReturn_t change(nvmlDevice_t device, uint32_t code, const nvmlMask255_t *mask) {
    struct snv_profile_command bytes = {code, {0}};
    memcpy(bytes.mask, mask->mask, sizeof bytes.mask);
    return snv_command(device, &bytes, sizeof bytes);
}

static nvmlReturn_t change_requested(nvmlDevice_t device, uint32_t code,
                                     const nvmlWorkloadPowerProfileRequestedProfiles_t *profiles) {
    struct snv_gpu gpu;
    nvmlReturn_t result =
        fetch(device, profiles, profiles ? profiles->version : 0, REQUESTED_PROFILES_V1, &gpu);
    return result == NVML_SUCCESS ? change(device, code, &profiles->requested) : result;
}

EXPORT nvmlReturn_t nvmlDeviceWorkloadPowerProfileSetRequestedProfiles(
    nvmlDevice_t device, nvmlWorkloadPowerProfileRequestedProfiles_t *profiles) {
    return change_requested(device, SNV_ADD_PROFILES, profiles);
}

EXPORT nvmlReturn_t nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(
    nvmlDevice_t device, nvmlWorkloadPowerProfileRequestedProfiles_t *profiles) {
    return change_requested(device, SNV_CLEAR_PROFILES, profiles);
}

EXPORT nvmlReturn_t nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1(
    nvmlDevice_t device, nvmlWorkloadPowerProfileUpdateProfiles_v1_t *update) {
    static const uint32_t codes[] = {SNV_CLEAR_PROFILES, SNV_ADD_PROFILES, SNV_REPLACE_PROFILES};
    struct snv_gpu gpu;
    nvmlReturn_t result = fetch(device, update, 0, 0, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (update->operation >= sizeof codes / sizeof *codes)
        return NVML_ERROR_INVALID_ARGUMENT;
    return change(device, codes[update->operation], &update->mask);
}
