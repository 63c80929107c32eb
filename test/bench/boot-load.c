// What a guest does while its devices are measured. Prints how long it took, in microseconds.
//   read|write PATH BYTES BLOCK DEPTH   past the page cache, from the beginning, so many at once; a write ends with a sync
//   send|receive ADDRESS PORT BYTES     over TCP, with `serve PORT` at the other end
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_BYTES (256 * 1024)

static char chunk[CHUNK_BYTES];

static void check(int holds, const char *what) {
  if (holds) return;
  perror(what);
  exit(1);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/** Keeps `depth` blocks in flight until all are done. */
static void disk(int writes, const char *path, long bytes, long block, int depth) {
  int fd = open(path, (writes ? O_RDWR | O_CREAT : O_RDONLY) | O_DIRECT, 0600);
  check(fd >= 0, path);
  aio_context_t context = 0;
  check(syscall(SYS_io_setup, depth, &context) == 0, "io_setup");
  struct iocb *blocks = calloc(depth, sizeof *blocks);
  struct io_event *events = calloc(depth, sizeof *events);
  char *buffers;
  check(posix_memalign((void **)&buffers, 4096, block * depth) == 0, "memory");
  memset(buffers, 0x5a, block * depth);
  long next = 0, done = 0;
  for (int slot = 0; slot < depth; slot++) blocks[slot].aio_data = slot;
  int free_slots[depth], free_count = depth;
  for (int slot = 0; slot < depth; slot++) free_slots[slot] = slot;
  struct iocb *batch[depth];
  while (done < bytes) {
    int count = 0;
    while (free_count > 0 && next < bytes) {
      struct iocb *one = &blocks[free_slots[--free_count]];
      one->aio_fildes = fd;
      one->aio_lio_opcode = writes ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
      one->aio_buf = (uintptr_t)(buffers + one->aio_data * block);
      one->aio_nbytes = block;
      one->aio_offset = next;
      next += block;
      batch[count++] = one;
    }
    for (int told = 0; told < count;) {
      long taken = syscall(SYS_io_submit, context, count - told, batch + told);
      check(taken > 0, "io_submit");
      told += taken;
    }
    long ended = syscall(SYS_io_getevents, context, 1, depth, events, NULL);
    check(ended > 0, "io_getevents");
    for (long index = 0; index < ended; index++) {
      check(events[index].res == block, "a block");
      free_slots[free_count++] = events[index].data;
      done += block;
    }
  }
  if (writes) check(fdatasync(fd) == 0, "fdatasync");
}

static struct sockaddr_in address_of(const char *host, const char *port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
  check(inet_pton(AF_INET, host, &address.sin_addr) == 1, host);
  return address;
}

static void send_all(int fd, long bytes) {
  while (bytes > 0) {
    ssize_t sent = send(fd, chunk, bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES, MSG_NOSIGNAL);
    check(sent > 0, "send");
    bytes -= sent;
  }
}

static void receive_all(int fd, long bytes) {
  while (bytes > 0) {
    ssize_t got = recv(fd, chunk, bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES, 0);
    check(got > 0, "recv");
    bytes -= got;
  }
}

/** The client says how much it wants, below zero: how much it sends. Each side knows the end from the other. */
static void serve(const char *port) {
  int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  struct sockaddr_in address = address_of("0.0.0.0", port);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 8) == 0, "listen");
  puts("listening");
  fflush(stdout);
  for (;;) {
    int fd = accept(listener, NULL, NULL);
    check(fd >= 0, "accept");
    int64_t wanted;
    check(recv(fd, &wanted, sizeof wanted, MSG_WAITALL) == sizeof wanted, "a wish");
    if (wanted >= 0) send_all(fd, wanted);
    else receive_all(fd, -wanted), send_all(fd, 1);
    close(fd);
  }
}

static void net(int sends, const char *host, const char *port, long bytes) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = address_of(host, port);
  check(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
  int64_t wanted = sends ? -bytes : bytes;
  check(send(fd, &wanted, sizeof wanted, 0) == sizeof wanted, "a wish");
  if (sends) send_all(fd, bytes), receive_all(fd, 1);
  else receive_all(fd, bytes);
}

int main(int argc, char **argv) {
  const char *task = argc > 1 ? argv[1] : "";
  if (argc == 3 && !strcmp(task, "serve")) serve(argv[2]);
  double began = now_us();
  if (argc == 6 && (!strcmp(task, "read") || !strcmp(task, "write")))
    disk(!strcmp(task, "write"), argv[2], atol(argv[3]), atol(argv[4]), atoi(argv[5]));
  else if (argc == 5 && (!strcmp(task, "send") || !strcmp(task, "receive")))
    net(!strcmp(task, "send"), argv[2], argv[3], atol(argv[4]));
  else return 2;
  printf("%.0f\n", now_us() - began);
  return 0;
}
