/* What a profiler injects by LD_PRELOAD: a timer that interrupts the process 200 times per second of its CPU time. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t interrupts;

static void interrupted(int number) { (void)number; interrupts++; }

static void report(void)
{
    const char *folder = getenv("INJECTED");
    char path[4096];
    if (folder && snprintf(path, sizeof path, "%s/%d", folder, (int)getpid()) < (int)sizeof path) {
        FILE *file = fopen(path, "w");
        if (file) { fprintf(file, "%d\n", (int)interrupts); fclose(file); }
    }
}

__attribute__((constructor)) static void begin(void)
{
    struct sigaction action = { .sa_handler = interrupted, .sa_flags = SA_RESTART };
    struct itimerval every = { { 0, 5000 }, { 0, 5000 } };
    sigaction(SIGPROF, &action, NULL);
    setitimer(ITIMER_PROF, &every, NULL);
    atexit(report);
}
