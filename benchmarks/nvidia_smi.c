/*
 * Substitute for `nvidia-smi --query-gpu=power.draw --format=csv`, for tools that start that program. It
 * prints the power of every GPU from NVML. It is cheaper than the original, so the measured cost of a tool is
 * a lower bound.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*init_call)(void);
typedef int (*count_call)(unsigned int *count);
typedef int (*handle_call)(unsigned int index, void **handle);
typedef int (*power_call)(void *handle, unsigned int *milliwatts);

int main(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL)
        return 9;
    init_call init = (init_call)dlsym(library, "nvmlInit_v2");
    count_call count = (count_call)dlsym(library, "nvmlDeviceGetCount_v2");
    handle_call handle = (handle_call)dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    power_call power = (power_call)dlsym(library, "nvmlDeviceGetPowerUsage");
    unsigned int gpus = 0;
    if (!init || !count || !handle || !power || init() != 0 || count(&gpus) != 0)
        return 9;
    puts("power.draw [W]");
    for (unsigned int index = 0; index < gpus; index++) {
        void *gpu = NULL;
        unsigned int milliwatts = 0;
        if (handle(index, &gpu) != 0 || power(gpu, &milliwatts) != 0)
            return 9;
        printf("%.2f W\n", milliwatts / 1000.0);
    }
    return 0;
}
