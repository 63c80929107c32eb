// What crosses a pair of interfaces, and how fast. `serve PORT` echoes datagrams and swallows streams until it is killed;
// `round-trips ADDRESS PORT COUNT` prints the median of datagrams there and back, in microseconds; `stream ADDRESS PORT MIB`
// prints how long that many took until the other side had read them all, in milliseconds.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { COUNT_MAX = 100000, CHUNK_BYTES = 1 << 20, WAIT_SECONDS = 5 };

static char chunk[CHUNK_BYTES];

static void die(const char *what) {
  perror(what);
  exit(1);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int open_socket(int type, const char *address, int port, int server) {
  int fd = socket(AF_INET, type, 0), one = 1;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
  struct timeval wait = {.tv_sec = WAIT_SECONDS};
  if (fd < 0) die("socket");
  if (inet_pton(AF_INET, address, &at.sin_addr) != 1) die("address");
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (!server) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  int status = server ? bind(fd, (struct sockaddr *)&at, sizeof at) : connect(fd, (struct sockaddr *)&at, sizeof at);
  if (status != 0) die(server ? "bind" : "connect");
  return fd;
}

static void echo(int fd) {
  for (;;) {
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    ssize_t got = recvfrom(fd, chunk, sizeof chunk, 0, (struct sockaddr *)&from, &length);
    if (got >= 0) sendto(fd, chunk, got, 0, (struct sockaddr *)&from, length);
  }
}

static void swallow(int listener) {
  for (;;) {
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) continue;
    while (read(fd, chunk, sizeof chunk) > 0) {
    }
    close(fd);
  }
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static void round_trips(int fd, int count) {
  static double took[COUNT_MAX];
  for (int i = 0; i < count; i++) {
    double started = now_us();
    if (send(fd, chunk, 64, 0) != 64 || recv(fd, chunk, sizeof chunk, 0) != 64) die("round trip");
    took[i] = now_us() - started;
  }
  qsort(took, count, sizeof *took, ascending);
  printf("%.3f\n", took[count / 2]);
}

static void stream(int fd, int mib) {
  double started = now_us();
  for (int left = mib; left > 0; left--)
    for (ssize_t sent = 0, n; sent < CHUNK_BYTES; sent += n)
      if ((n = write(fd, chunk + sent, CHUNK_BYTES - sent)) <= 0) die("write");
  shutdown(fd, SHUT_WR);
  while (read(fd, chunk, sizeof chunk) > 0) {
  }
  printf("%.3f\n", (now_us() - started) / 1e3);
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "serve") == 0) {
    int datagrams = open_socket(SOCK_DGRAM, "0.0.0.0", atoi(argv[2]), 1);
    int streams = open_socket(SOCK_STREAM, "0.0.0.0", atoi(argv[2]), 1);
    if (listen(streams, 8) != 0) die("listen");
    puts("ready");
    fflush(stdout);
    if (fork() == 0) swallow(streams);
    echo(datagrams);
  }
  if (argc != 5) return 2;
  int port = atoi(argv[3]), amount = atoi(argv[4]);
  if (strcmp(argv[1], "round-trips") == 0 && amount > 0 && amount <= COUNT_MAX)
    round_trips(open_socket(SOCK_DGRAM, argv[2], port, 0), amount);
  else if (strcmp(argv[1], "stream") == 0)
    stream(open_socket(SOCK_STREAM, argv[2], port, 0), amount);
  else
    return 2;
  return 0;
}
