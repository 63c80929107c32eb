// The programs of the host, and two that make every run of a test a packet of another flow: they count up the source port,
// and hand on to the one that decides, or to one that decides nothing.
#include "../../native/bpf/tc.bpf.c"

#define SOURCE_PORT_AT 34

static long (*const store)(void *skb, __u32 at, const void *from, __u32 length, __u64 flags) = (void *)9;
static long (*const tail_call)(void *skb, void *programs, __u32 index) = (void *)12;

SEC("tc") int nothing(struct __sk_buff *skb __attribute__((unused))) {
  return -1;
}

struct {
  __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
  __uint(max_entries, 2);
  __uint(key_size, 4);
  int (*values[])(struct __sk_buff *);
} behind SEC(".maps") = {.values = {fluxvm_egress, nothing}};

inlined int on_another_flow(struct __sk_buff *skb, __u32 program) {
  __u16 port = 0;

  bpf_skb_load_bytes(skb, SOURCE_PORT_AT, &port, sizeof(port));
  port++;
  store(skb, SOURCE_PORT_AT, &port, sizeof(port), 0);
  tail_call(skb, &behind, program);
  return 0;
}

SEC("tc") int new_flow_decided(struct __sk_buff *skb) {
  return on_another_flow(skb, 0);
}

SEC("tc") int new_flow_passed(struct __sk_buff *skb) {
  return on_another_flow(skb, 1);
}
