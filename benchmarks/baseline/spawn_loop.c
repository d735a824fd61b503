/* The tightest loop that spawns and reaps N processes: no server, no protocol.
 *
 * usage: spawn_loop COUNT THREADS PROGRAM [DIRECTORY]
 *
 * Each thread clones with shared memory (CLONE_VM | CLONE_VFORK | CLONE_PIDFD) on a stack of its own,
 * executes PROGRAM and waits for it by pidfd. With DIRECTORY, each child creates two files there, which
 * must not exist, as its standard output and standard error. Exits 1 if anything fails.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
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
#define PATH_SIZE 4096

static atomic_long left;
static atomic_int failed;
static char *program;
static char **environment;
static char *directory;

/* The names of one child's files. */
struct files {
    char path[2][PATH_SIZE];
};

static int child(void *argument)
{
    struct files *files = argument;
    char *argv[] = {program, NULL};
    for (int i = 0; directory && i < 2; i++) {
        int fd = open(files->path[i], O_WRONLY | O_CREAT | O_EXCL | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 || dup2(fd, i + 1) < 0)
            _exit(126);
    }
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
    struct files files;
    long number;
    while ((number = atomic_fetch_sub(&left, 1)) > 0) {
        int pidfd = -1;
        if (directory) {
            snprintf(files.path[0], PATH_SIZE, "%s/%ld.stdout", directory, number);
            snprintf(files.path[1], PATH_SIZE, "%s/%ld.stderr", directory, number);
        }
        int pid = clone(child, stack + STACK_SIZE,
                        CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &files, &pidfd);
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
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: spawn_loop COUNT THREADS PROGRAM [DIRECTORY]\n");
        return 2;
    }
    left = atol(argv[1]);
    int threads = atoi(argv[2]);
    program = argv[3];
    directory = argv[4];
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
