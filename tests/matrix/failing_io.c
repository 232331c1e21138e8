/* Makes one kind of system call fail with EIO on files of one folder, as a broken disk does. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static char failing[16];
static int failed;

/* Which call fails from now on; "" for none. Returns how often the last one has. */
int fail_io(const char *call) {
    int before = failed;
    failed = 0;
    strncpy(failing, call, sizeof failing - 1);
    return before;
}

static int ours(const char *path) {
    const char *folder = getenv("MONITOR_OUTPUT_DIR");
    return folder && strncmp(path, folder, strlen(folder)) == 0;
}

static int fails(const char *call, int fd) {
    char name[64], path[4096];
    ssize_t length;
    if (strcmp(call, failing) != 0) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    length = readlink(name, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    if (!ours(path)) return 0;
    __sync_fetch_and_add(&failed, 1);
    errno = EIO;
    return 1;
}

#define REAL(type, name, parameters) \
    static type(*real) parameters;   \
    if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name)

#define CALL(kind, type, name, parameters, arguments) \
    type name parameters {                            \
        REAL(type, name, parameters);                 \
        if (fails(kind, fd)) return -1;               \
        return real arguments;                        \
    }

CALL("write", ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
CALL("write", ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
CALL("write", ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
CALL("write", ssize_t, writev, (int fd, const struct iovec *parts, int number), (fd, parts, number))
CALL("fsync", int, fsync, (int fd), (fd))
CALL("fsync", int, fdatasync, (int fd), (fd))

/* The file is closed all the same, as Linux does. */
int close(int fd) {
    REAL(int, close, (int));
    int broken = fails("close", fd);
    int result = real(fd);
    if (!broken) return result;
    errno = EIO;
    return -1;
}

int rename(const char *from, const char *to) {
    REAL(int, rename, (const char *, const char *));
    if (strcmp("rename", failing) == 0 && ours(to)) {
        __sync_fetch_and_add(&failed, 1);
        errno = EIO;
        return -1;
    }
    return real(from, to);
}
