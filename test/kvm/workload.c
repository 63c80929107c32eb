// Runs in guests of the engine's tests and checks itself. A file of the guest says how far it is and, in one line that
// begins with "bad", what was wrong.
//
//   memory NOTE MIB            fills memory and checks it again, over and over
//   disk NOTE FILE MIB         the same with a file, past the guest's cache; what it wrote is remembered in memory
//   journal FOLDER PORT        makes files, each synced before its number is told to the host over vsock
//   files FOLDER COUNT         checks the first COUNT files of a journal
//   listen PORT                answers every connection over vsock with an exchange
//   vsock PORT BYTES           an exchange with a program of the host
//   tcp ADDRESS PORT BYTES     the same over the network
//   udp ADDRESS PORT           datagrams of many lengths, which have to come back
//
// An exchange over a stream: its length as 8 bytes, so many bytes that the other one checks, and as many back.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 4, PIECE = 64 << 10, FILE_WORDS = 3000, SEED_OUT = 1, SEED_BACK = 2 };

static void fail(const char *what, ...) {
  int error = errno;
  va_list rest;
  va_start(rest, what);
  vfprintf(stderr, what, rest);
  fprintf(stderr, ": %s\n", strerror(error));
  exit(1);
}

static uint32_t next(uint32_t x) {
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  return x;
}

// Never zero, which would stay zero.
static uint32_t seed_of(uint32_t round, uint32_t index) { return (round * 2654435761u ^ index * 40503u) | 1; }

static void fill(uint32_t *words, int count, uint32_t seed) {
  for (int i = 0; i < count; i++) words[i] = seed = next(seed);
}

// The first word that is not as it was written, or -1.
static int wrong(const uint32_t *words, int count, uint32_t seed) {
  for (int i = 0; i < count; i++)
    if (words[i] != (seed = next(seed))) return i;
  return -1;
}

// Whole or not at all for whoever reads it.
static void note(const char *path, const char *format, ...) {
  char temporary[256];
  snprintf(temporary, sizeof temporary, "%s.new", path);
  FILE *file = fopen(temporary, "w");
  if (file == NULL) fail("%s", temporary);
  va_list rest;
  va_start(rest, format);
  vfprintf(file, format, rest);
  if (fclose(file) != 0 || rename(temporary, path) != 0) fail("%s", path);
}

static void check_memory(const char *path, uint32_t mib) {
  uint32_t pages = (mib << 20) / PAGE;
  uint32_t *memory = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  for (uint32_t round = 0;; round++) {
    for (uint32_t page = 0; page < pages; page++) {
      uint32_t *words = memory + (size_t)page * WORDS;
      int at = round == 0 ? -1 : wrong(words, WORDS, seed_of(round - 1, page));
      if (at >= 0) {
        note(path, "bad memory: word %d of page %u is %08x in round %u\n", at, page, words[at], round);
        exit(1);
      }
      fill(words, WORDS, seed_of(round, page));
    }
    note(path, "%u\n", round + 1);
  }
}

static void check_disk(const char *path, const char *name, uint32_t mib) {
  uint32_t pieces = (mib << 20) / PIECE;
  int file = open(name, O_RDWR | O_CREAT | O_DIRECT, 0600);
  if (file < 0) fail("%s", name);
  uint32_t *words = aligned_alloc(PAGE, PIECE);
  for (uint32_t round = 0;; round++) {
    for (uint32_t piece = 0; piece < pieces; piece++) {
      off_t at = (off_t)piece * PIECE;
      if (round > 0) {
        if (pread(file, words, PIECE, at) != PIECE) fail("reading %s", name);
        int word = wrong(words, PIECE / 4, seed_of(round - 1, piece));
        if (word >= 0) {
          note(path, "bad disk: word %d of piece %u is %08x in round %u\n", word, piece, words[word], round);
          exit(1);
        }
      }
      fill(words, PIECE / 4, seed_of(round, piece));
      if (pwrite(file, words, PIECE, at) != PIECE) fail("writing %s", name);
    }
    if (fsync(file) != 0) fail("syncing %s", name);
    note(path, "%u\n", round + 1);
  }
}

static void send_all(int to, const void *bytes, size_t count) {
  while (count > 0) {
    ssize_t sent = write(to, bytes, count);
    if (sent <= 0) fail("sending");
    bytes = (const char *)bytes + sent;
    count -= sent;
  }
}

static void receive_all(int from, void *bytes, size_t count) {
  while (count > 0) {
    ssize_t received = read(from, bytes, count);
    if (received == 0) errno = ECONNRESET;
    if (received <= 0) fail("receiving");
    bytes = (char *)bytes + received;
    count -= received;
  }
}

static void send_words(int to, uint64_t bytes, uint32_t seed) {
  uint32_t words[WORDS];
  for (uint64_t at = 0; at < bytes; at += PAGE) {
    for (int i = 0; i < WORDS; i++) words[i] = seed = next(seed);
    send_all(to, words, bytes - at < PAGE ? bytes - at : PAGE);
  }
}

static void receive_words(int from, uint64_t bytes, uint32_t seed) {
  uint32_t got[WORDS], words[WORDS];
  for (uint64_t at = 0; at < bytes; at += PAGE) {
    size_t count = bytes - at < PAGE ? bytes - at : PAGE;
    for (int i = 0; i < WORDS; i++) words[i] = seed = next(seed);
    receive_all(from, got, count);
    errno = EBADMSG;
    if (memcmp(got, words, count) != 0) fail("bad bytes after %llu", (unsigned long long)at);
  }
}

static void exchange(int peer, uint64_t bytes) {
  send_all(peer, &bytes, sizeof bytes);
  send_words(peer, bytes, SEED_OUT);
  receive_words(peer, bytes, SEED_BACK);
}

static void answer(int peer) {
  uint64_t bytes;
  receive_all(peer, &bytes, sizeof bytes);
  receive_words(peer, bytes, SEED_OUT);
  send_words(peer, bytes, SEED_BACK);
}

static void listen_vsock(uint32_t port) {
  struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_port = port, .svm_cid = VMADDR_CID_ANY};
  int listener = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 16) != 0) fail("listening");
  for (;;) {
    int peer = accept(listener, NULL, NULL);
    if (peer < 0) fail("accepting");
    if (fork() == 0) {
      answer(peer);
      exit(0);
    }
    close(peer);
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
  }
}

static int connect_vsock(uint32_t port) {
  struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_port = port, .svm_cid = VMADDR_CID_HOST};
  int peer = socket(AF_VSOCK, SOCK_STREAM, 0);
  if (connect(peer, (struct sockaddr *)&address, sizeof address) != 0) fail("connecting to port %u", port);
  return peer;
}

static struct sockaddr_in internet(const char *host, const char *port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
  inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

static int connect_tcp(const char *host, const char *port) {
  struct sockaddr_in address = internet(host, port);
  int peer = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(peer, (struct sockaddr *)&address, sizeof address) != 0) fail("connecting to %s", host);
  return peer;
}

static void exchange_datagrams(const char *host, const char *port) {
  static const int lengths[] = {1, 2, 3, 59, 60, 61, 512, 1471, 1472, 1473, 4000, 9000, 40000};
  static unsigned char sent[65536], got[65536];
  struct sockaddr_in address = internet(host, port);
  struct timeval patience = {.tv_sec = 30};
  int peer = socket(AF_INET, SOCK_DGRAM, 0);
  if (connect(peer, (struct sockaddr *)&address, sizeof address) != 0) fail("connecting to %s", host);
  setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    int length = lengths[i];
    fill((uint32_t *)sent, sizeof sent / 4, seed_of(length, 7));
    if (send(peer, sent, length, 0) != length) fail("sending %d bytes", length);
    ssize_t count = recv(peer, got, sizeof got, 0);
    if (count < 0) fail("waiting for %d bytes", length);
    if (count != length || memcmp(sent, got, length) != 0) fail("%d bytes came back as %zd others", length, count);
  }
}

static void make_journal(const char *folder, uint32_t port) {
  int host = connect_vsock(port);
  static uint32_t words[FILE_WORDS];
  mkdir(folder, 0700);
  int directory = open(folder, O_RDONLY | O_DIRECTORY);
  for (uint32_t number = 0;; number++) {
    char name[32];
    snprintf(name, sizeof name, "%u", number);
    int file = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
    fill(words, FILE_WORDS, seed_of(number, 3));
    if (file < 0 || write(file, words, sizeof words) != sizeof words) fail("writing %s", name);
    if (fsync(file) != 0 || fsync(directory) != 0) fail("syncing %s", name);
    close(file);
    uint32_t count = number + 1;
    send_all(host, &count, sizeof count);
  }
}

static void check_files(const char *folder, uint32_t count) {
  static uint32_t words[FILE_WORDS];
  for (uint32_t number = 0; number < count; number++) {
    char name[256];
    snprintf(name, sizeof name, "%s/%u", folder, number);
    int file = open(name, O_RDONLY);
    if (file < 0 || read(file, words, sizeof words) != sizeof words) fail("reading %s", name);
    errno = EBADMSG;
    if (wrong(words, FILE_WORDS, seed_of(number, 3)) >= 0) fail("bad file %s", name);
    close(file);
  }
}

int main(int argc, char **argv) {
  const char *verb = argc > 2 ? argv[1] : "";
  if (strcmp(verb, "listen") == 0 && argc == 3) listen_vsock(atoi(argv[2]));
  else if (strcmp(verb, "memory") == 0 && argc == 4) check_memory(argv[2], atoi(argv[3]));
  else if (strcmp(verb, "disk") == 0 && argc == 5) check_disk(argv[2], argv[3], atoi(argv[4]));
  else if (strcmp(verb, "journal") == 0 && argc == 4) make_journal(argv[2], atoi(argv[3]));
  else if (strcmp(verb, "files") == 0 && argc == 4) check_files(argv[2], atoi(argv[3]));
  else if (strcmp(verb, "vsock") == 0 && argc == 4) exchange(connect_vsock(atoi(argv[2])), atoll(argv[3]));
  else if (strcmp(verb, "tcp") == 0 && argc == 5) exchange(connect_tcp(argv[2], argv[3]), atoll(argv[4]));
  else if (strcmp(verb, "udp") == 0 && argc == 4) exchange_datagrams(argv[2], argv[3]);
  else return 2;
  return 0;
}
