// One end of a wire in the packet laboratory: sends the frames that it reads, reports or counts those that arrive. Lines on
// standard input: "s HEX" sends, "q HEX" sends past every hook of the interface, "g SIZE HEX" sends one frame that stands
// for segments of SIZE bytes, "f PER_SECOND COUNT VARY HEX..." sends frames in turn in the background, "c" counts arrivals
// instead of reporting them, "C" says the counts. Lines on standard output: "r HEX" arrived, "a" sent, "e ERRNO" not sent,
// "f SENT FAILED" ended, "C OVERFLOWS KEY=FRAMES...".
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FRAME_MAX = 70 * 1024, LINE_MAX_BYTES = 512 * 1024, FLOOD_FRAMES_MAX = 16, KEYS_MAX = 256, BURST_MAX = 64 };
enum { VLAN_TAG_BYTES = 4, ADDRESSES_BYTES = 12 };

struct frame { size_t length; unsigned char bytes[FRAME_MAX]; };
struct key { char name[24]; unsigned long frames; };

static struct {
  struct frame frames[FLOOD_FRAMES_MAX];
  int kinds;
  bool running, vary;
  unsigned long per_second, count, sent, failed, turn;
  struct timespec since;
} flood;

static struct key keys[KEYS_MAX];
static int key_count;
static bool counting;
static int plain, bypass, segmenting, arrivals;

static void die(const char *what) {
  perror(what);
  exit(1);
}

static int open_socket(int index, int protocol) {
  int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(protocol));
  if (fd < 0) die("socket");
  struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = index };
  if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0) die("bind");
  return fd;
}

static void set(int fd, int level, int name, int value) {
  if (setsockopt(fd, level, name, &value, sizeof value) != 0) die("setsockopt");
}

static int nibble(char digit) {
  return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static size_t unhex(const char **text, unsigned char *to) {
  size_t length = 0;
  while (**text == ' ') (*text)++;
  for (; length < FRAME_MAX && nibble((*text)[0]) >= 0 && nibble((*text)[1]) >= 0; *text += 2) {
    to[length++] = nibble((*text)[0]) << 4 | nibble((*text)[1]);
  }
  return length;
}

// Where the header above IPv4 or IPv6 begins and which it is; 0 where there is none to look at.
static size_t transport_of(const unsigned char *frame, size_t length, int *protocol) {
  if (length < 34) return 0;
  unsigned type = frame[12] << 8 | frame[13];
  size_t at = type == ETH_P_IP ? 14 + (frame[14] & 15) * 4u : type == ETH_P_IPV6 ? 54 : 0;
  *protocol = type == ETH_P_IP ? frame[23] : frame[20];
  return at + 4 <= length ? at : 0;
}

static void count_frame(const unsigned char *frame, size_t length) {
  int protocol = 0;
  char name[24] = "other";
  size_t at = transport_of(frame, length, &protocol);
  if (at != 0) snprintf(name, sizeof name, "%d/%d/%d", frame[12] == 8 ? 4 : 6, protocol, frame[at + 2] << 8 | frame[at + 3]);
  for (int i = 0; i < key_count; i++) {
    if (strcmp(keys[i].name, name) != 0) continue;
    keys[i].frames++;
    return;
  }
  if (key_count == KEYS_MAX) return;
  strcpy(keys[key_count].name, name);
  keys[key_count++].frames = 1;
}

static void report_counts(void) {
  struct tpacket_stats stats = { 0 };
  socklen_t size = sizeof stats;
  if (getsockopt(arrivals, SOL_PACKET, PACKET_STATISTICS, &stats, &size) != 0) die("statistics");
  printf("C %u", stats.tp_drops);
  for (int i = 0; i < key_count; i++) printf(" %s=%lu", keys[i].name, keys[i].frames);
  putchar('\n');
  key_count = 0;
  counting = false;
}

static void arrived(void) {
  static unsigned char frame[FRAME_MAX + VLAN_TAG_BYTES];
  for (;;) {
    struct sockaddr_ll from;
    char control[256];
    struct iovec part = { frame, FRAME_MAX };
    struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1,
                              .msg_control = control, .msg_controllen = sizeof control };
    ssize_t got = recvmsg(arrivals, &message, MSG_DONTWAIT);
    if (got < 0) return;
    if (from.sll_pkttype == PACKET_OUTGOING) continue;
    size_t length = got;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c != NULL; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA) continue;
      struct tpacket_auxdata aux;
      memcpy(&aux, CMSG_DATA(c), sizeof aux);
      if (!(aux.tp_status & TP_STATUS_VLAN_VALID)) continue;
      // The kernel takes a tag out of the frame: it is put back, so that a frame is reported as it was sent.
      memmove(frame + ADDRESSES_BYTES + VLAN_TAG_BYTES, frame + ADDRESSES_BYTES, length - ADDRESSES_BYTES);
      uint16_t tag[2] = { htons(aux.tp_vlan_tpid), htons(aux.tp_vlan_tci) };
      memcpy(frame + ADDRESSES_BYTES, tag, sizeof tag);
      length += VLAN_TAG_BYTES;
    }
    if (counting) {
      count_frame(frame, length);
      continue;
    }
    fputs("r ", stdout);
    for (size_t i = 0; i < length; i++) printf("%02x", frame[i]);
    putchar('\n');
  }
}

static void answer(ssize_t sent) {
  if (sent < 0) printf("e %d\n", errno);
  else puts("a");
}

static void send_segments(const char *text) {
  static unsigned char buffer[sizeof(struct virtio_net_hdr) + FRAME_MAX];
  struct virtio_net_hdr head = { .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM };
  char *rest;
  head.gso_size = strtoul(text, &rest, 10);
  const char *hex = rest;
  unsigned char *frame = buffer + sizeof head;
  size_t length = unhex(&hex, frame);
  int protocol = 0;
  size_t at = transport_of(frame, length, &protocol);
  head.gso_type = frame[12] == 8 ? VIRTIO_NET_HDR_GSO_TCPV4 : VIRTIO_NET_HDR_GSO_TCPV6;
  head.hdr_len = at + 20;
  head.csum_start = at;
  head.csum_offset = 16;
  memcpy(buffer, &head, sizeof head);
  answer(write(segmenting, buffer, sizeof head + length));
}

static void begin_flood(const char *text) {
  char *rest;
  flood.sent = flood.failed = flood.turn = 0;
  flood.per_second = strtoul(text, &rest, 10);
  flood.count = strtoul(rest, &rest, 10);
  flood.vary = strtoul(rest, &rest, 10) != 0;
  const char *hex = rest;
  for (flood.kinds = 0; flood.kinds < FLOOD_FRAMES_MAX; flood.kinds++) {
    flood.frames[flood.kinds].length = unhex(&hex, flood.frames[flood.kinds].bytes);
    if (flood.frames[flood.kinds].length == 0) break;
  }
  flood.running = flood.kinds > 0;
  clock_gettime(CLOCK_MONOTONIC, &flood.since);
}

static uint16_t load16(const unsigned char *at) { return at[0] << 8 | at[1]; }
static void store16(unsigned char *at, uint16_t value) {
  at[0] = value >> 8;
  at[1] = value;
}

// Another source port, and the checksum that goes with it, where there is one.
static void next_source_port(struct frame *frame) {
  int protocol = 0;
  size_t at = transport_of(frame->bytes, frame->length, &protocol);
  if (at == 0) return;
  uint16_t old = load16(frame->bytes + at), fresh = old == 65535 ? 1024 : old + 1;
  store16(frame->bytes + at, fresh);
  unsigned char *sum = frame->bytes + at + (protocol == IPPROTO_TCP ? 16 : 6);
  if (load16(sum) == 0) return;
  uint32_t total = (uint16_t)~load16(sum) + (uint16_t)~old + fresh;
  while (total >> 16) total = (total & 0xffff) + (total >> 16);
  store16(sum, ~total);
}

static void continue_flood(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  double elapsed = now.tv_sec - flood.since.tv_sec + (now.tv_nsec - flood.since.tv_nsec) / 1e9;
  unsigned long due = elapsed * flood.per_second;
  if (due > flood.count) due = flood.count;
  for (int burst = 0; burst < BURST_MAX && flood.sent + flood.failed < due; burst++) {
    struct frame *frame = &flood.frames[flood.turn++ % flood.kinds];
    if (flood.vary) next_source_port(frame);
    if (send(plain, frame->bytes, frame->length, 0) < 0) flood.failed++;
    else flood.sent++;
  }
  if (flood.sent + flood.failed < flood.count) return;
  flood.running = false;
  printf("f %lu %lu\n", flood.sent, flood.failed);
}

static void obey(const char *line) {
  static unsigned char frame[FRAME_MAX];
  const char *rest = line + 1;
  switch (line[0]) {
    case 's':
    case 'q': {
      size_t length = unhex(&rest, frame);
      answer(send(line[0] == 's' ? plain : bypass, frame, length, 0));
      return;
    }
    case 'g': send_segments(rest); return;
    case 'f': begin_flood(rest); return;
    case 'c':
      key_count = 0;
      counting = true;
      puts("a");
      return;
    case 'C':
      arrived();
      report_counts();
      return;
    default: die(line);
  }
}

// False at the end of standard input.
static bool read_lines(void) {
  static char buffer[LINE_MAX_BYTES];
  static size_t held;
  ssize_t got = read(STDIN_FILENO, buffer + held, sizeof buffer - 1 - held);
  if (got <= 0) return false;
  held += got;
  buffer[held] = 0;
  char *start = buffer;
  for (char *end; (end = strchr(start, '\n')) != NULL; start = end + 1) {
    *end = 0;
    obey(start);
  }
  held -= start - buffer;
  memmove(buffer, start, held);
  return true;
}

int main(int argc, char **argv) {
  int index = argc == 2 ? if_nametoindex(argv[1]) : 0;
  if (index == 0) die("usage: wire INTERFACE");
  plain = open_socket(index, 0);
  bypass = open_socket(index, 0);
  segmenting = open_socket(index, 0);
  arrivals = open_socket(index, ETH_P_ALL);
  set(bypass, SOL_PACKET, PACKET_QDISC_BYPASS, 1);
  set(segmenting, SOL_PACKET, PACKET_VNET_HDR, 1);
  set(arrivals, SOL_PACKET, PACKET_AUXDATA, 1);
  set(arrivals, SOL_SOCKET, SO_RCVBUFFORCE, 128 << 20);
  puts("a");
  for (;;) {
    fflush(stdout);
    struct pollfd ready[] = { { STDIN_FILENO, POLLIN, 0 }, { arrivals, POLLIN, 0 } };
    if (poll(ready, 2, flood.running ? 1 : -1) < 0 && errno != EINTR) die("poll");
    if (ready[1].revents) arrived();
    if (ready[0].revents && !read_lines()) return 0;
    if (flood.running) continue_flood();
  }
}
