/* Kernels for float64. */
#define REAL double
#define INDEX int64_t
#define GEMM cblas_dgemm
#define KERNELS tg_kernels_double
#include "kernels.h"
