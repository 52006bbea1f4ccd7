/* Kernels for float32. */
#define REAL float
#define INDEX int32_t
#define GEMM cblas_sgemm
#define KERNELS tg_kernels_float
#include "kernels.h"
