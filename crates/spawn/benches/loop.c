/* The tightest way to spawn and reap N processes: clone with shared memory, wait on the pidfd, nothing else.
 *
 * usage: loop PROGRAM COUNT THREADS
 * Prints the seconds it took. The environment is inherited as it is.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x1000
#endif
#ifndef P_PIDFD
#define P_PIDFD 3
#endif

enum { STACK = 64 * 1024, THREADS_MAX = 256 };

extern char **environ;
static char *program;
static long per_thread;

static int child(void *unused)
{
    char *argv[] = {program, NULL};
    (void)unused;
    execve(program, argv, environ);
    _exit(127);
}

static void *spawn_and_reap(void *unused)
{
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    long i;
    (void)unused;
    if (stack == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    for (i = 0; i < per_thread; i++) {
        int pidfd = -1;
        siginfo_t info;
        if (clone(child, stack + STACK, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, NULL, &pidfd) < 0) {
            perror("clone");
            exit(1);
        }
        while (waitid((idtype_t)P_PIDFD, (id_t)pidfd, &info, WEXITED) != 0) {
        }
        close(pidfd);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MAX];
    struct timespec begin, end;
    int count, i;
    if (argc != 4 || (count = atoi(argv[3])) < 1 || count > THREADS_MAX) {
        fprintf(stderr, "usage: loop PROGRAM COUNT THREADS\n");
        return 2;
    }
    program = argv[1];
    per_thread = atol(argv[2]) / count;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (i = 0; i < count; i++) {
        if (pthread_create(&threads[i], NULL, spawn_and_reap, NULL) != 0) {
            return 1;
        }
    }
    for (i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.6f\n", (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9);
    return 0;
}
