// The guard of the host's own interface: nothing from a blocked source gets in.
#define WITH_GUARD_MAPS
#include "frame.h"

#define DROPPED 0
#define PASSED 1

inlined int counted(__u32 passed)
{
	__u64 *packets = bpf_map_lookup_elem(&fvm_xdp_stats, &passed);

	if (packets)
		*packets += 1;
	return passed ? XDP_PASS : XDP_DROP;
}

inlined int is_blocked4(const __u8 *address)
{
	struct block4_key key = { .prefix_bits = 32 };

	__builtin_memcpy(key.address, address, 4);
	return bpf_map_lookup_elem(&fvm_xdp_block4, &key) != 0;
}

inlined int is_blocked6(const __u8 *address)
{
	struct block6_key key = { .prefix_bits = 128 };

	__builtin_memcpy(key.address, address, 16);
	return bpf_map_lookup_elem(&fvm_xdp_block6, &key) != 0;
}

SEC("xdp") int fluxvm_xdp_guard(struct xdp_md *context)
{
	const __u8 *frame = (const __u8 *)(long)context->data;
	const __u8 *end = (const __u8 *)(long)context->data_end;
	__u16 type;

	if (frame + ETHERNET_BYTES > end)
		return XDP_DROP;
	type = big_endian16(frame + 12);
	if (type == ETHERTYPE_IPV4) {
		if (frame + ETHERNET_BYTES + 20 > end)
			return counted(DROPPED);
		return counted(is_blocked4(frame + ETHERNET_BYTES + 12) ? DROPPED : PASSED);
	}
	if (type == ETHERTYPE_IPV6) {
		if (frame + ETHERNET_BYTES + IPV6_BYTES > end)
			return counted(DROPPED);
		return counted(is_blocked6(frame + ETHERNET_BYTES + 8) ? DROPPED : PASSED);
	}
	return counted(PASSED);
}

char _license[] SEC("license") = "Dual MIT/GPL";
