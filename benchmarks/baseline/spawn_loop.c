/* The tightest loop that spawns and reaps N processes: no server, no protocol, no output files.
 *
 * usage: spawn_loop COUNT THREADS PROGRAM
 *
 * Each thread clones with shared memory (CLONE_VM | CLONE_VFORK | CLONE_PIDFD) on a stack of its own,
 * executes PROGRAM with an empty environment and waits for it by pidfd. Exits 1 if anything fails.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif
#define STACK_SIZE (64 * 1024)

static atomic_long left;
static atomic_int failed;
static char *program;
static char **environment;

static int child(void *unused)
{
    (void)unused;
    char *argv[] = {program, NULL};
    execve(program, argv, environment);
    _exit(127);
}

static void *work(void *unused)
{
    (void)unused;
    char *stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) {
        failed = 1;
        return NULL;
    }
    while (atomic_fetch_sub(&left, 1) > 0) {
        int pidfd = -1;
        int pid = clone(child, stack + STACK_SIZE,
                        CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, NULL, &pidfd);
        siginfo_t info = {0};
        if (pid < 0 || waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED) != 0
            || info.si_code != CLD_EXITED || info.si_status != 0) {
            failed = 1;
            return NULL;
        }
        close(pidfd);
    }
    return NULL;
}

int main(int argc, char **argv, char **envp)
{
    if (argc != 4) {
        fprintf(stderr, "usage: spawn_loop COUNT THREADS PROGRAM\n");
        return 2;
    }
    left = atol(argv[1]);
    int threads = atoi(argv[2]);
    program = argv[3];
    environment = envp;
    pthread_t ids[64];
    if (threads < 1 || threads > 64)
        return 2;
    for (int i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, work, NULL) != 0)
            return 1;
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    return failed ? 1 : 0;
}
