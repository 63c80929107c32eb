// The physical floor of running a command: posix_spawn and wait of /bin/true. Prints the time of each in microseconds.
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
  int count = argc > 1 ? atoi(argv[1]) : 50;
  char *args[] = {"true", NULL}, *env[] = {NULL};
  for (int i = 0; i < count; i++) {
    double started = now_us();
    pid_t pid;
    int status;
    if (posix_spawn(&pid, "/bin/true", NULL, NULL, args, env) != 0) return 1;
    waitpid(pid, &status, 0);
    printf("%.1f\n", now_us() - started);
  }
  return 0;
}
