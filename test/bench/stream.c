// The ends of a stream of bytes: what produces it, and a reader of TCP that looks at nothing.
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BLOCK_BYTES (64 << 10)
#define DRAIN_BYTES (256 << 10)

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static void write_all(int descriptor, const uint8_t *bytes, size_t count) {
  while (count > 0) {
    ssize_t written = write(descriptor, bytes, count);
    if (written < 0) fail("write");
    bytes += written;
    count -= (size_t)written;
  }
}

// Blocks of noise, each with its number, so that none is like another.
static void produce(uint64_t bytes) {
  static uint8_t block[BLOCK_BYTES];
  uint64_t state = 0x9e3779b97f4a7c15;
  for (size_t at = 0; at < sizeof block; at++) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    block[at] = (uint8_t)(state >> 56);
  }
  for (uint64_t number = 0; bytes > 0; number++) {
    size_t count = bytes < sizeof block ? (size_t)bytes : sizeof block;
    memcpy(block, &number, sizeof number);
    write_all(STDOUT_FILENO, block, count);
    bytes -= count;
  }
}

// Sends standard input to a port, and prints how many bytes came back and the microseconds until the last of them.
static void drain(int port) {
  static uint8_t buffer[DRAIN_BYTES];
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  size_t request = 0;
  for (ssize_t count; (count = read(STDIN_FILENO, buffer + request, sizeof buffer - request)) > 0;)
    request += (size_t)count;
  struct timespec from, to;
  clock_gettime(CLOCK_MONOTONIC, &from);
  int connection = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(connection, (struct sockaddr *)&address, sizeof address) < 0) fail("connect");
  write_all(connection, buffer, request);
  uint64_t bytes = 0;
  ssize_t count;
  while ((count = read(connection, buffer, sizeof buffer)) > 0) bytes += (uint64_t)count;
  if (count < 0) fail("read");
  clock_gettime(CLOCK_MONOTONIC, &to);
  int64_t elapsed_us = (to.tv_sec - from.tv_sec) * 1000000LL + (to.tv_nsec - from.tv_nsec) / 1000;
  printf("%llu %lld\n", (unsigned long long)bytes, (long long)elapsed_us);
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "produce") == 0) produce(strtoull(argv[2], NULL, 10));
  else if (argc == 3 && strcmp(argv[1], "drain") == 0) drain(atoi(argv[2]));
  else return 2;
  return 0;
}
