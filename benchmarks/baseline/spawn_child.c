/* What the contestants of spawn-suite run. Linked statically, so that little is left but the process itself.
 *
 * spawn_child             does nothing
 * spawn_child NANOSECONDS writes how long ago that time was (CLOCK_MONOTONIC, 8 bytes) to standard output
 * spawn_child pause       sleeps until its parent thread ends
 */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct timespec now;
    int64_t late;
    if (argc < 2)
        return 0;
    if (argv[1][0] == 'p') {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    late = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - atoll(argv[1]);
    return write(STDOUT_FILENO, &late, sizeof late) == sizeof late ? 0 : 1;
}
