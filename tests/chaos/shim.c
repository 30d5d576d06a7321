/* Preloaded into a worker: another clock, and system calls on the run directory that fail.

   CHAOS_CONTROL names a file of `struct control`, which the test writes and every process maps. CHAOS_FOLDERS are the
   paths, separated by colons, below which files are affected. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control { int64_t wall_ns, monotonic_ns; int32_t error, per_mille; int64_t failed; };
static struct control none, *control = &none;
static __thread unsigned int random_state;

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("CHAOS_CONTROL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) control = at;
    close(fd);
}

static int is_ours(const char *path) {
    const char *folders = getenv("CHAOS_FOLDERS");
    while (folders && *folders) {
        size_t size = strcspn(folders, ":");
        if (size && !strncmp(path, folders, size)) return 1;
        folders += size + (folders[size] == ':');
    }
    return 0;
}

static int is_our_file(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return is_ours(path);
}

static int draw(void) {
    if (!control->error) return 0;
    if (!random_state) random_state = (unsigned int)(time(NULL) ^ syscall(SYS_gettid));
    return rand_r(&random_state) % 1000 < control->per_mille;
}

static void fail(int reading) {
    __atomic_add_fetch(&control->failed, 1, __ATOMIC_RELAXED);
    errno = reading && control->error == ENOSPC ? EIO : control->error; /* a full disk can be read */
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CACHED(name) static __typeof__(&name) real; if (!real) real = REAL(name)

int clock_gettime(clockid_t clock, struct timespec *now) {
    CACHED(clock_gettime);
    int status = real(clock, now);
    int64_t more = clock == CLOCK_REALTIME ? control->wall_ns : clock == CLOCK_MONOTONIC ? control->monotonic_ns : 0;
    if (status || !more) return status;
    int64_t ns = now->tv_nsec + more % 1000000000;
    now->tv_sec += more / 1000000000 + (ns >= 1000000000) - (ns < 0);
    now->tv_nsec = (ns + 1000000000) % 1000000000;
    return 0;
}

ssize_t write(int fd, const void *data, size_t size) {
    CACHED(write);
    if (draw() && is_our_file(fd)) {
        if (size > 1 && draw()) return real(fd, data, size / 2); /* a short write: the rest may fail */
        fail(0);
        return -1;
    }
    return real(fd, data, size);
}

#define FAILING(type, name, parameters, arguments, ours, reading) \
    type name parameters { CACHED(name); if (draw() && (ours)) { fail(reading); return -1; } return real arguments; }

FAILING(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size), is_our_file(fd), 1)
FAILING(ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at), is_our_file(fd), 1)
FAILING(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), is_our_file(fd), 0)
FAILING(int, fsync, (int fd), (fd), is_our_file(fd), 0)
FAILING(int, fdatasync, (int fd), (fd), is_our_file(fd), 0)
FAILING(int, link, (const char *from, const char *to), (from, to), is_ours(to), 0)
FAILING(int, rename, (const char *from, const char *to), (from, to), is_ours(to), 0)
