// Programs and maps of the tests of this folder: one of each kind that is used, as small as they can be. Whoever compiles it
// with -DREFUSED gets a program that no verifier lets pass.
#define SECTION(name) __attribute__((section(name), used))
#define NUMBER(name, value) int (*name)[value]
#define TYPE(name, value) value *name

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

static void *(*find)(void *map, const void *key) = (void *)1;
static long (*store)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*leave)(void *ring, void *record, u64 bytes, u64 flags) = (void *)130;

// The beginning of struct __sk_buff.
struct packet {
  u32 length, type, mark, queue, protocol, vlan_present, vlan_tag, vlan_protocol, priority;
  u32 ingress_interface, interface, class, control[5], hash, class_id, data, data_end;
};

struct {
  NUMBER(type, 1);
  NUMBER(max_entries, 64);
  TYPE(key, u32);
  TYPE(value, u64);
} counts SECTION(".maps");

struct {
  NUMBER(type, 2);
  NUMBER(max_entries, 1);
  TYPE(key, u32);
  TYPE(value, u32);
} verdict SECTION(".maps");

struct {
  NUMBER(type, 5);
  NUMBER(max_entries, 8);
  TYPE(key, u32);
  TYPE(value, u32);
} apart SECTION(".maps");

struct range {
  u32 prefix;
  u8 address[4];
};

struct {
  NUMBER(type, 11);
  NUMBER(max_entries, 1024);
  NUMBER(map_flags, 1);
  TYPE(key, struct range);
  TYPE(value, u32);
} ranges SECTION(".maps");

struct {
  NUMBER(type, 27);
  NUMBER(max_entries, 4096);
} events SECTION(".maps");

struct event {
  u32 mark, interface;
};

// Counts by mark, tells of it, adds a bit to the mark, and returns what the map says.
SECTION("tc") int judge(struct packet *packet) {
  u32 mark = packet->mark, zero = 0;
  u64 one = 1, *count = find(&counts, &mark);
  if (count)
    __sync_fetch_and_add(count, 1);
  else
    store(&counts, &mark, &one, 0);
  struct event event = {mark, packet->interface};
  leave(&events, &event, sizeof(event), 0);
  packet->mark = mark | 0x10000000;
  u32 *answer = find(&verdict, &zero);
  return answer ? *answer : 2;
}

SECTION("tc") int drop(struct packet *packet) {
  return 2;
}

SECTION("xdp") int guard(void *frame) {
  return 2;
}

#ifdef REFUSED
SECTION("tc") int beyond(struct packet *packet) {
  return *(u8 *)(u64)packet->data;
}
#endif

char licence[] SECTION("license") = "GPL";
