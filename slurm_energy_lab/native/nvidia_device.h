/*
 * Protocol between the emulated NVIDIA driver and the NVML stub in /dev/nvidiactl and /dev/nvidiaN.
 *
 * /dev/nvidiactl: one header at offset 0, the record of GPU i at SNV_RECORD_OFFSET + i * SNV_RECORD_STRIDE.
 * /dev/nvidiaN:   one command per write at offset 0; the error number of the write is the result.
 * slurm_energy_lab/tree/nvidia.py implements the driver. All numbers are little-endian, without padding.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef SENERGY_NVIDIA_DEVICE_H
#define SENERGY_NVIDIA_DEVICE_H

#include <stdint.h>

#define SNV_MAGIC "SNRGYNV1"
#define SNV_RECORD_OFFSET 4096
#define SNV_RECORD_STRIDE 4096
#define SNV_UNKNOWN UINT32_MAX
#define SNV_MAX_GPUS 64
#define SNV_GRAPHICS_CLOCKS 256
#define SNV_MEMORY_CLOCKS 8
#define SNV_PROFILES 32
#define SNV_MASK_WORDS 8

enum snv_command_code {
    SNV_SET_POWER_LIMIT = 1, /* first: milliwatts */
    SNV_LOCK_GRAPHICS,       /* first, second: MHz */
    SNV_RESET_GRAPHICS,
    SNV_LOCK_MEMORY, /* first, second: MHz */
    SNV_RESET_MEMORY,
    SNV_SET_PERSISTENCE, /* first: 0 or 1 */
    /* struct snv_profile_command: remove, add or replace the requested power profiles */
    SNV_CLEAR_PROFILES,
    SNV_ADD_PROFILES,
    SNV_REPLACE_PROFILES,
};

#pragma pack(push, 1)

struct snv_header {
    char magic[8];
    uint32_t header_bytes;
    uint32_t record_bytes;
    uint32_t gpu_count;
    uint32_t cuda_version;
    char driver_version[80];
    char nvml_version[80];
};

/* A workload power profile that a GPU offers. Bit i of a mask stands for profile i. */
struct snv_profile {
    uint32_t number;
    uint32_t priority;
    uint32_t conflicts[SNV_MASK_WORDS];
};

/* Counters since the start of the emulator, and present values. Activities are integrals of the share of
 * time. */
struct snv_signals {
    uint64_t sm_active_ns;
    uint64_t tensor_active_ns;
    uint64_t dram_active_ns;
    uint64_t pcie_transmit_bytes;
    uint64_t pcie_receive_bytes;
    uint64_t nvlink_transmit_bytes;
    uint64_t nvlink_receive_bytes;
    uint64_t power_violation_ns;
    uint64_t thermal_violation_ns;
    uint64_t time_ns;
    uint32_t temperature_celsius;
    uint32_t pcie_transmit_kb_per_s;
    uint32_t pcie_receive_kb_per_s;
    uint32_t has_gpm;
    uint32_t link_count;
};

struct snv_gpu {
    /* dynamic fields */
    uint64_t energy_mj;
    uint64_t clocks_event_reasons;
    uint32_t power_mw; /* value of nvmlDeviceGetPowerUsage on this architecture */
    uint32_t power_instant_mw;
    uint32_t power_average_mw; /* SNV_UNKNOWN if the architecture has none */
    uint32_t limit_mw;
    uint32_t enforced_limit_mw;
    uint32_t graphics_mhz;
    uint32_t sm_mhz;
    uint32_t memory_mhz;
    uint32_t video_mhz;
    uint32_t utilisation_percent;
    uint32_t memory_utilisation_percent;
    uint32_t persistence;
    uint32_t memory_used_mib;
    uint32_t reserved;
    uint32_t requested_profiles[SNV_MASK_WORDS];
    uint32_t enforced_profiles[SNV_MASK_WORDS];
    /* constant fields */
    uint64_t memory_bytes;
    uint32_t default_limit_mw;
    uint32_t min_limit_mw;
    uint32_t max_limit_mw;
    uint32_t max_graphics_mhz;
    uint32_t max_memory_mhz;
    uint32_t architecture;
    uint32_t compute_major;
    uint32_t compute_minor;
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device_id;
    uint32_t minor;
    uint16_t graphics_clock_count;
    uint16_t memory_clock_count;
    uint16_t graphics_clocks_mhz[SNV_GRAPHICS_CLOCKS]; /* falling */
    uint16_t memory_clocks_mhz[SNV_MEMORY_CLOCKS];     /* falling */
    char name[96];
    char uuid[80];
    uint32_t profile_count;
    struct snv_profile profiles[SNV_PROFILES];
    /* dynamic fields */
    struct snv_signals signals;
};

struct snv_command {
    uint32_t code;
    uint32_t first;
    uint32_t second;
};

struct snv_profile_command {
    uint32_t code;
    uint32_t mask[SNV_MASK_WORDS];
};

#pragma pack(pop)

#endif
