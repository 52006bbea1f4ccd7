/* Differences between Slurm 22.05 and 26.05: signatures, and symbols that only slurmctld has. */
#ifndef SENERGY_SLURM_RELEASE_H
#define SENERGY_SLURM_RELEASE_H

#if defined HAVE_CONFIG_H
#include "config.h"
#endif
#include "src/common/slurm_xlator.h"

#include "src/common/assoc_mgr.h"
#include "src/common/list.h"
#include "src/common/log.h"
#include "src/slurmctld/slurmctld.h"

/* fini() is a void function from 25.11 on. */
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
#define FINI_TYPE void
#define FINI_RETURN return
#else
#define FINI_TYPE int
#define FINI_RETURN return SLURM_SUCCESS
#endif

/* Marks symbols that Slurm looks up. All others stay hidden, because slurmctld exports symbols of its own. */
#define FOR_SLURM __attribute__((visibility("default")))

/* sshare and other clients also load the plugin but have no job list. A weak symbol makes that possible. */
extern __typeof__(job_list) job_list __attribute__((weak));

#endif
