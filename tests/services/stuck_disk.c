/* Library for LD_PRELOAD with which the file system at STUCK_DISK never answers. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int asked(const char *name, const char *path, void *found) {
    const char *stuck = getenv("STUCK_DISK");
    while (stuck && !strcmp(path, stuck)) sleep(1);
    return ((int (*)(const char *, void *))dlsym(RTLD_NEXT, name))(path, found);
}

int statvfs(const char *path, struct statvfs *found) { return asked("statvfs", path, found); }
int statvfs64(const char *path, struct statvfs64 *found) { return asked("statvfs64", path, found); }
