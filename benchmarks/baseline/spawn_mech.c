/* Spawns and reaps processes in the ways that C offers, with burdens on the parent. A contestant of spawn-suite.
 *
 * usage: spawn_mech MECHANISM [key=value]...
 *
 * MECHANISM  fork | vfork | clone | posix_spawn | zygote | helper | wait-pid | wait-pidfd | wait-any | wait-none |
 *            one-fork | one-fork-any | one-posix_spawn | reverse | reverse-kill
 * keys       program count limit (ms) parallel interval (ns between requests, 0: at once)
 *            rss (MiB) huge (1: in huge pages) threads children
 *            env (number of variables set for each process) envlen (bytes of each)
 *            arg (the argument of each process) dir (directory: the argument is DIR/INDEX instead)
 *            after (1: create all processes first, then wait for them)
 *
 * Prints "PROCESSES SECONDS SPAWNING USER SYSTEM" to standard error. SECONDS ends when the last process was waited for,
 * SPAWNING when the last one was created. USER and SYSTEM are the CPU seconds of this process and its children.
 * The other mechanisms print figures of their own instead:
 * wait-*     the nanoseconds of one wait among CHILDREN live ones
 * one-*      the nanoseconds of CPU time of this process to create one child and wait for it, among CHILDREN live ones
 * reverse*   nanoseconds of one wait when CHILDREN children are waited for in reverse order of creation: the means of
 *            every hundred waits, first the last ones. The children have ended before; reverse-kill kills each before
 *            its wait.
 *
 * With an interval each process gets the time at which it was due as its argument. Processes inherit standard output.
 *
 * zygote: a copy of this process, made before the burdens, that forks on request. helper: the same program anew,
 * that calls posix_spawn on request. Both have one process and one socket per thread of the parent.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif
enum { STACK = 64 * 1024, THREADS_MAX = 512, ARGUMENT = 256, WAITS = 401, STEP = 100, MESSAGE_MAX = 1 << 20 };

extern char **environ;
static char *program, *mechanism, *fixed, *dir;
static long count = 1000, limit_ms = 60000, parallel = 2, interval, rss, huge, threads, children, env_count, env_len, after;
static char **environment;
/* The processes to wait for at the end, and the burden. */
static pid_t *created, *alive;
static int64_t begin_ns, deadline_ns;
static atomic_long next_index, done;
static int sockets[THREADS_MAX];

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "spawn_mech: %s: %s\n", what, strerror(errno));
    _exit(1);
}

/* The environment of the processes: ours and the variables that each of them is to get. */
static void make_environment(void)
{
    long have = 0, i;
    while (environ[have])
        have++;
    environment = calloc((size_t)(have + env_count + 1), sizeof *environment);
    if (!environment)
        fail("calloc");
    memcpy(environment, environ, (size_t)have * sizeof *environment);
    for (i = 0; i < env_count; i++) {
        char *value = malloc((size_t)env_len + 1);
        if (!value || (memset(value, 'x', (size_t)env_len), value[env_len] = 0,
                       asprintf(&environment[have + i], "HQ_BENCH_%03ld=%s", i, value) < 0))
            fail("malloc");
        free(value);
    }
}

static void *sleep_forever(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static void make_burdens(void)
{
    long i;
    pthread_attr_t small;
    pthread_t id;
    pid_t self = getpid();
    if (rss > 0) {
        size_t bytes = (size_t)rss << 20;
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            fail("mmap");
        if (huge && madvise(memory, bytes, MADV_HUGEPAGE) != 0)
            fail("madvise");
        memset(memory, 1, bytes);
    }
    alive = calloc((size_t)children + 1, sizeof *alive);
    if (!alive)
        fail("calloc");
    for (i = 0; i < children; i++) {
        pid_t pid = fork();
        if (pid < 0)
            fail("fork");
        if (pid == 0) {
            if (strcmp(mechanism, "reverse") == 0)
                _exit(0);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            /* The parent may have ended already. */
            if (getppid() != self)
                _exit(0);
            sleep_forever(NULL);
        }
        alive[i] = pid;
    }
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK);
    for (i = 1; i < threads; i++)
        if ((errno = pthread_create(&id, &small, sleep_forever, NULL)))
            fail("pthread_create");
}

/* Returns the number of the next process, or -1; sleeps until it is due. Writes its argument, if it has one. */
static long take(char argument[ARGUMENT])
{
    long index = atomic_fetch_add(&next_index, 1);
    argument[0] = 0;
    if (index >= count || now_ns() >= deadline_ns)
        return -1;
    if (fixed)
        snprintf(argument, ARGUMENT, "%s", fixed);
    if (dir)
        snprintf(argument, ARGUMENT, "%s/%ld", dir, index);
    if (interval > 0) {
        int64_t due = begin_ns + index * interval;
        struct timespec until = {due / 1000000000, due % 1000000000};
        if (due >= deadline_ns)
            return -1;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        snprintf(argument, ARGUMENT, "%lld", (long long)due);
    }
    return index;
}

struct start {
    char **argv, **env;
};

static int execute(void *start_of_child)
{
    struct start *start = start_of_child;
    execvpe(start->argv[0], start->argv, start->env);
    _exit(127);
}

static void reap(idtype_t type, int id)
{
    siginfo_t info = {0};
    if (waitid(type, (id_t)id, &info, WEXITED) != 0)
        fail("waitid");
    if (info.si_code != CLD_EXITED || info.si_status != 0) {
        errno = 0;
        fail("a process failed");
    }
}

/* What to wait for. */
struct child {
    idtype_t type;
    int id;
};

static struct child by_fork(struct start *start)
{
    pid_t pid = fork();
    if (pid < 0)
        fail("fork");
    if (pid == 0)
        execute(start);
    return (struct child){P_PID, pid};
}

static struct child by_vfork(struct start *start)
{
    pid_t pid = vfork();
    if (pid < 0)
        fail("vfork");
    if (pid == 0)
        execute(start);
    return (struct child){P_PID, pid};
}

static struct child by_posix_spawn(struct start *start)
{
    pid_t pid;
    if ((errno = posix_spawnp(&pid, start->argv[0], NULL, NULL, start->argv, start->env)))
        fail("posix_spawn");
    return (struct child){P_PID, pid};
}

/* Without a pidfd if the process is waited for at the end, because there are fewer descriptors than processes. */
static struct child by_clone(struct start *start, char *stack)
{
    int pidfd = -1, pid;
    int flags = CLONE_VM | CLONE_VFORK | (after ? 0 : CLONE_PIDFD) | SIGCHLD;
    if ((pid = clone(execute, stack + STACK, flags, start, &pidfd)) < 0)
        fail("clone");
    return after ? (struct child){P_PID, pid} : (struct child){(idtype_t)P_PIDFD, pidfd};
}

/* A request is the arguments and the environment, each string with its zero, each list ended by an empty string. */
static size_t pack(char *message, struct start *start)
{
    char *at = message;
    char **lists[2] = {start->argv, start->env}, **item;
    int i;
    for (i = 0; i < 2; i++) {
        for (item = lists[i]; *item; item++) {
            at = stpcpy(at, *item) + 1;
            if (at - message > MESSAGE_MAX / 2)
                fail("an environment this large");
        }
        *at++ = 0;
    }
    return (size_t)(at - message);
}

static char **unpack(char **at, char **into)
{
    char **list = into;
    for (; **at; *at += strlen(*at) + 1)
        *into++ = *at;
    *into = NULL;
    (*at)++;
    return list;
}

static void serve(int socket, struct child (*create)(struct start *))
{
    char *message = malloc(MESSAGE_MAX);
    char **argv = calloc(16, sizeof *argv), **env = calloc(65536, sizeof *env), ok = 1;
    while (message && argv && env && recv(socket, message, MESSAGE_MAX, 0) > 0) {
        char *at = message;
        struct child child;
        struct start start;
        start.argv = unpack(&at, argv);
        start.env = unpack(&at, env);
        child = create(&start);
        reap(child.type, child.id);
        if (send(socket, &ok, 1, 0) != 1)
            break;
    }
    _exit(0);
}

static void start_servers(int anew)
{
    int i;
    for (i = 0; i < parallel; i++) {
        int pair[2];
        int room = MESSAGE_MAX;
        pid_t pid;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
            fail("socketpair");
        setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        if ((pid = fork()) < 0)
            fail("fork");
        if (pid == 0) {
            close(pair[0]);
            if (anew) {
                char number[ARGUMENT];
                snprintf(number, sizeof number, "%d", dup(pair[1]));
                execl("/proc/self/exe", "spawn_mech", "serve", number, (char *)NULL);
                fail("execl");
            }
            serve(pair[1], by_fork);
        }
        close(pair[1]);
        sockets[i] = pair[0];
    }
}

static void by_server(struct start *start, int socket, char *message)
{
    char ok;
    size_t length = pack(message, start);
    if (send(socket, message, length, 0) < 0 || recv(socket, &ok, 1, 0) != 1)
        fail("talk to the server");
}

static struct child create(struct start *start, char *stack)
{
    switch (mechanism[0]) {
    case 'f':
        return by_fork(start);
    case 'v':
        return by_vfork(start);
    case 'c':
        return by_clone(start, stack);
    default:
        return by_posix_spawn(start);
    }
}

static void *work(void *number)
{
    char argument[ARGUMENT], *argv[] = {program, argument, NULL};
    int served = strcmp(mechanism, "zygote") == 0 || strcmp(mechanism, "helper") == 0;
    char *message = served ? malloc(MESSAGE_MAX) : NULL;
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    struct start start = {argv, environment};
    long index;
    if (stack == MAP_FAILED || (served && !message))
        fail("mmap");
    while ((index = take(argument)) >= 0) {
        argv[1] = argument[0] ? argument : NULL;
        if (served) {
            by_server(&start, sockets[(intptr_t)number], message);
        } else {
            struct child child = create(&start, stack);
            if (after)
                created[index] = child.id;
            else
                reap(child.type, child.id);
            if (child.type == (idtype_t)P_PIDFD)
                close(child.id);
        }
        atomic_fetch_add(&done, 1);
    }
    return NULL;
}

static int ascending(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* The time of one wait for a process that has ended, among the live ones. */
static void measure_waits(void)
{
    static int64_t took[WAITS];
    char *argv[] = {program, NULL};
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    struct start start = {argv, environment};
    int i;
    if (stack == MAP_FAILED)
        fail("mmap");
    for (i = 0; i < WAITS; i++) {
        int pidfd = -1, status;
        int64_t before;
        siginfo_t info = {0};
        pid_t pid = clone(execute, stack + STACK, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &start, &pidfd);
        struct pollfd ended = {pidfd, POLLIN, 0};
        if (pid < 0 || poll(&ended, 1, -1) != 1)
            fail("clone");
        before = now_ns();
        if (strcmp(mechanism, "wait-pid") == 0)
            waitpid(pid, &status, 0);
        else if (strcmp(mechanism, "wait-pidfd") == 0)
            waitid((idtype_t)P_PIDFD, (id_t)pidfd, &info, WEXITED);
        else
            waitid(P_ALL, 0, &info, WEXITED);
        took[i] = now_ns() - before;
        close(pidfd);
    }
    qsort(took, WAITS, sizeof took[0], ascending);
    fprintf(stderr, "%lld\n", (long long)took[WAITS / 2]);
}

/* The time of one wait for any process when none has ended. The engine waits like this where it has no pidfds, except
 * that it then sleeps. Needs nothing that old kernels lack. */
static void measure_fruitless_waits(void)
{
    static int64_t took[WAITS];
    int i;
    for (i = 0; i < WAITS; i++) {
        siginfo_t info = {0};
        int64_t before = now_ns();
        if (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT | WNOHANG | __WALL) != 0)
            fail("waitid");
        took[i] = now_ns() - before;
    }
    qsort(took, WAITS, sizeof took[0], ascending);
    fprintf(stderr, "%lld\n", (long long)took[WAITS / 2]);
}

static int64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The CPU time to create a child that ends at once and to wait for it, among the live ones. */
static void measure_one(void)
{
    char *argv[] = {program, NULL};
    struct start start = {argv, environment};
    int64_t before = cpu_ns();
    long i;
    for (i = 0; i < count; i++) {
        int status;
        pid_t pid = strcmp(mechanism, "one-posix_spawn") == 0 ? by_posix_spawn(&start).id : fork();
        if (pid == 0)
            _exit(0);
        if (pid < 0 || waitpid(strcmp(mechanism, "one-fork-any") == 0 ? -1 : pid, &status, 0) != pid)
            fail("create and wait");
    }
    fprintf(stderr, "%lld\n", (long long)((cpu_ns() - before) / count));
}

static void measure_reverse(void)
{
    int64_t took[THREADS_MAX] = {0};
    long i;
    if (children < 1 || children > (long)STEP * THREADS_MAX)
        fail("children");
    for (i = 0; strcmp(mechanism, "reverse") == 0 && i < children; i++) {
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)alive[i], &info, WEXITED | WNOWAIT) != 0)
            fail("waitid");
    }
    for (i = children - 1; i >= 0; i--) {
        int status;
        int64_t before = now_ns();
        if (strcmp(mechanism, "reverse-kill") == 0)
            kill(alive[i], SIGKILL);
        if (waitpid(alive[i], &status, 0) != alive[i])
            fail("waitpid");
        took[i / STEP] += now_ns() - before;
    }
    for (i = 0; i < children / STEP; i++)
        fprintf(stderr, "%lld\n", (long long)(took[i] / STEP));
}

static void parse(int argc, char **argv)
{
    struct { const char *name; long *value; } keys[] = {
        {"count", &count}, {"limit", &limit_ms}, {"parallel", &parallel}, {"interval", &interval}, {"rss", &rss},
        {"threads", &threads}, {"children", &children}, {"env", &env_count}, {"envlen", &env_len},
        {"huge", &huge}, {"after", &after},
    };
    size_t k;
    int i;
    mechanism = argv[1];
    for (i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value)
            fail(argv[i]);
        *value++ = 0;
        if (strcmp(argv[i], "program") == 0)
            program = value;
        if (strcmp(argv[i], "arg") == 0)
            fixed = value;
        if (strcmp(argv[i], "dir") == 0)
            dir = value;
        for (k = 0; k < sizeof keys / sizeof keys[0]; k++)
            if (strcmp(argv[i], keys[k].name) == 0)
                *keys[k].value = atol(value);
    }
    if (!program || parallel < 1 || parallel > THREADS_MAX)
        fail("usage");
}

/* The CPU seconds of this process and of the children that it waited for. */
static void add_usage(double sign, double *user, double *sys)
{
    int who[] = {RUSAGE_SELF, RUSAGE_CHILDREN}, i;
    for (i = 0; i < 2; i++) {
        struct rusage usage;
        getrusage(who[i], &usage);
        *user += sign * ((double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6);
        *sys += sign * ((double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6);
    }
}

int main(int argc, char **argv)
{
    pthread_t ids[THREADS_MAX];
    double user = 0, sys = 0;
    int64_t spawned_ns;
    intptr_t i;
    if (argc < 3)
        return 2;
    if (strcmp(argv[1], "serve") == 0)
        serve(atoi(argv[2]), by_posix_spawn);
    parse(argc, argv);
    if (strcmp(mechanism, "zygote") == 0 || strcmp(mechanism, "helper") == 0)
        start_servers(mechanism[0] == 'h');
    make_environment();
    make_burdens();
    if (strcmp(mechanism, "wait-none") == 0) {
        measure_fruitless_waits();
        return 0;
    }
    if (strncmp(mechanism, "wait", 4) == 0) {
        measure_waits();
        return 0;
    }
    if (strncmp(mechanism, "one", 3) == 0) {
        measure_one();
        return 0;
    }
    if (strncmp(mechanism, "reverse", 7) == 0) {
        measure_reverse();
        return 0;
    }
    created = calloc((size_t)count, sizeof *created);
    if (!created)
        fail("calloc");
    add_usage(-1, &user, &sys);
    begin_ns = now_ns();
    deadline_ns = begin_ns + limit_ms * 1000000;
    for (i = 0; i < parallel; i++)
        if ((errno = pthread_create(&ids[i], NULL, work, (void *)i)))
            fail("pthread_create");
    for (i = 0; i < parallel; i++)
        pthread_join(ids[i], NULL);
    spawned_ns = now_ns();
    for (i = 0; after && i < count; i++)
        if (created[i])
            reap(P_PID, created[i]);
    add_usage(1, &user, &sys);
    fprintf(stderr, "%ld %.6f %.6f %.6f %.6f\n", atomic_load(&done), (double)(now_ns() - begin_ns) / 1e9,
            (double)(spawned_ns - begin_ns) / 1e9, user, sys);
    return 0;
}
