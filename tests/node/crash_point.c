/*
 * Loaded before libc into senergyd: kills it with SIGKILL just before the N-th system call that changes a file.
 *
 * The file named by SENERGY_CRASH_POINT holds two 64-bit numbers: calls until death (0: never), calls so far.
 * Whoever maps it arms and reads them at any time. Every state that a death can leave on disk or in the
 * hardware lies between two such calls, so that counting them up covers all.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

struct crash_point {
    _Atomic int64_t left;
    _Atomic int64_t seen;
};

static struct crash_point *point;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("SENERGY_CRASH_POINT");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *area = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *point, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (area != MAP_FAILED)
        point = area;
    if (fd >= 0)
        close(fd);
}

static void pass(void) {
    if (point == NULL)
        return;
    atomic_fetch_add(&point->seen, 1);
    if (atomic_load(&point->left) > 0 && atomic_fetch_sub(&point->left, 1) == 1)
        kill(getpid(), SIGKILL);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t length) {
    pass();
    return REAL(write)(fd, data, length);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    pass();
    return REAL(pwrite64)(fd, data, length, offset);
}

int fsync(int fd) {
    pass();
    return REAL(fsync)(fd);
}

int rename(const char *from, const char *to) {
    pass();
    return REAL(rename)(from, to);
}

int unlink(const char *path) {
    pass();
    return REAL(unlink)(path);
}

int mkdir(const char *path, mode_t mode) {
    pass();
    return REAL(mkdir)(path, mode);
}

int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if (flags & (O_CREAT | O_TRUNC))
        pass();
    return REAL(open64)(path, flags, mode);
}
