/* micro DIR WHAT [N]: small system-call workloads on DIR/m; prints seconds for one operation. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char buf[4096], from[4096], to[4096];
static const char *dir;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static void must(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "micro: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}
static char *name(char *out, long i, const char *suffix) {
    snprintf(out, 4096, "%s/m/d%03ld/f%06ld%s", dir, i / 100, i, suffix);
    return out;
}
static void touch(long i, int flags, size_t len, off_t at) {
    int fd = open(name(from, i, ""), flags, 0644);
    must(fd >= 0, from);
    if (flags & (O_WRONLY | O_RDWR)) must(pwrite(fd, buf, len, at) == (ssize_t)len, "pwrite");
    else if (len) must(read(fd, buf, len) >= 0, "read");
    close(fd);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    dir = argv[1];
    const char *what = argv[2];
    long n = argc > 3 ? atol(argv[3]) : 10000, dirs = (n + 99) / 100, ops = n;
    struct stat st;
    memset(buf, 'x', sizeof buf);
    double start = now();
    if (!strcmp(what, "mkdir")) {
        snprintf(from, 4096, "%s/m", dir);
        must(mkdir(from, 0755) == 0 || errno == EEXIST, from);
        for (long i = 0; i < dirs; i++) {
            snprintf(from, 4096, "%s/m/d%03ld", dir, i);
            must(mkdir(from, 0755) == 0, from);
        }
        ops = dirs;
    } else if (!strcmp(what, "rmdir")) {
        for (long i = 0; i < dirs; i++) {
            snprintf(from, 4096, "%s/m/d%03ld", dir, i);
            must(rmdir(from) == 0, from);
        }
        ops = dirs;
    } else if (!strcmp(what, "append")) {
        snprintf(from, 4096, "%s/append.dat", dir);
        int fd = open(from, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0644);
        must(fd >= 0, from);
        for (long i = 0; i < n; i++) must(write(fd, buf, 4096) == 4096, "write");
        close(fd);
        unlink(from);
    } else if (!strcmp(what, "mmapread") || !strcmp(what, "mmapwrite")) {
        int writing = what[4] == 'w';
        snprintf(from, 4096, "%s/big.dat", dir);
        int fd = open(from, writing ? O_RDWR : O_RDONLY);
        must(fd >= 0 && fstat(fd, &st) == 0, from);
        off_t len = writing && st.st_size > 64 << 20 ? 64 << 20 : st.st_size;
        char *map = mmap(0, len, PROT_READ | (writing ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
        must(map != MAP_FAILED, "mmap");
        volatile unsigned sum = 0;
        for (off_t at = 0; at < len; at += 4096) {
            if (writing) map[at]++;
            else sum += map[at];
        }
        munmap(map, len);
        close(fd);
        ops = len / 4096;
    } else {
        for (long i = 0; i < n; i++) {
            if (!strcmp(what, "create")) touch(i, O_CREAT | O_EXCL | O_WRONLY, 1024, 0);
            else if (!strcmp(what, "stat")) must(lstat(name(from, i, ""), &st) == 0, from);
            else if (!strcmp(what, "absent")) must(lstat(name(from, i, ".no"), &st) != 0, from);
            else if (!strcmp(what, "openclose")) touch(i, O_RDONLY, 0, 0);
            else if (!strcmp(what, "readsmall")) touch(i, O_RDONLY, 4096, 0);
            else if (!strcmp(what, "rewrite")) touch(i, O_WRONLY | O_TRUNC, 1500, 0);
            else if (!strcmp(what, "patch")) touch(i, O_RDWR, 64, 128);
            else if (!strcmp(what, "rename")) must(rename(name(from, i, ""), name(to, i, ".r")) == 0, from);
            else if (!strcmp(what, "unlink")) must(unlink(name(from, i, ".r")) == 0, from);
            else return 2;
        }
    }
    printf("%.9f\n", (now() - start) / ops);
    return 0;
}
