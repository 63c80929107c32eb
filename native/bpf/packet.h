// What a frame is: its addresses and ports, and where its payload is. Lengths are those of the IP header, checked
// against the frame's; whatever does not fit is malformed.
#pragma once
#include "frame.h"

#define EXTENSIONS_MAX 6
#define EXTENSION_BYTES_MAX 512

#define PROTOCOL_HOP_BY_HOP 0
#define PROTOCOL_ICMP 1
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define PROTOCOL_ROUTING 43
#define PROTOCOL_FRAGMENT 44
#define PROTOCOL_AH 51
#define PROTOCOL_ICMP6 58
#define PROTOCOL_DESTINATION 60
#define PROTOCOL_SCTP 132

// One direction of a connection, as `struct connection` begins: compared and hashed by words.
union tuple {
	__u64 words[5];
	struct {
		__u8 source[16];
		__u8 destination[16];
		__u16 source_port;
		__u16 destination_port;
		__u8 protocol;
		__u8 family;
		__u16 reserved;
	};
};
_Static_assert(sizeof(union tuple) == __builtin_offsetof(struct connection, last_seen_ns), "tuple");

struct packet {
	union tuple tuple;
	__u32 bytes; // of the frame
	__u32 segments; // packets that it stands for
	__u32 payload_at; // of TCP, UDP and DNS in them, from the frame's start
	__u32 payload_bytes;
	__u8 malformed;
	__u8 fragment;
	__u8 fresh; // begins a connection
	__u8 hop_limit;
	__u8 icmp_type;
	__u8 icmp_code;
	__u8 reserved[2];
	__u8 source_mac[6] __attribute__((aligned(8)));
	__u8 reserved2[2];
};

// What `read_packet` found.
enum { NOT_A_PACKET, PACKET_ARP, PACKET_OTHER, PACKET_IP };

// The first bytes of a frame but for its destination, so that most frames are read at once; what lies further is read when
// it is needed. Each header begins where a word may.
struct head {
	__u64 before;
	__u8 source_mac[6];
	__u8 type[2];
	__u8 ip[64];
};
#define HEAD_FROM 6
#define HEAD_SHORT_BYTES (ETHERNET_BYTES + 40)
#define HEAD_BYTES (ETHERNET_BYTES + 60)
#define PACKED_WORD(at) (*(const __u64 *)(at))

inlined void read_transport(struct __sk_buff *skb, struct packet *packet, const __u8 *head, __u32 at, __u32 length)
{
	__u8 protocol = packet->tuple.protocol;
	__u32 needed = protocol == PROTOCOL_TCP ? 20 : protocol == PROTOCOL_UDP ? 8 : protocol == PROTOCOL_SCTP ? 12 : 0;
	__u8 far[24] __attribute__((aligned(8)));

	if (packet->fragment)
		return;
	if (needed == 0) {
		__u8 icmp = packet->tuple.family == 4 ? PROTOCOL_ICMP : PROTOCOL_ICMP6;

		if (protocol != icmp || length < 8)
			return;
		if (!head && bpf_skb_load_bytes(skb, at, far, 8) < 0)
			return;
		head = head ? head : far;
		packet->icmp_type = head[0];
		packet->icmp_code = head[1];
		return;
	}
	packet->malformed = 1;
	if (length < needed)
		return;
	if (!head) {
		// Each length by itself: the verifier wants to know it.
		long failed = needed == 20 ? bpf_skb_load_bytes(skb, at, far, 20)
			      : needed == 8 ? bpf_skb_load_bytes(skb, at, far, 8)
					    : bpf_skb_load_bytes(skb, at, far, 12);

		if (failed < 0)
			return;
		head = far;
	}
	if (protocol == PROTOCOL_TCP) {
		needed = (head[12] >> 4) * 4;
		if (needed < 20 || needed > length)
			return;
		packet->fresh = (head[13] & 0x12) == 0x02;
	} else if (protocol == PROTOCOL_SCTP) {
		packet->fresh = word4(head + 4) == 0;
	}
	packet->malformed = 0;
	packet->tuple.source_port = big_endian16(head);
	packet->tuple.destination_port = big_endian16(head + 2);
	packet->payload_at = at + needed;
	packet->payload_bytes = length - needed;
}

// Walks what lies between the header and what it carries. Returns how far, or 0: malformed.
inlined __u32 skip_extensions(struct __sk_buff *skb, struct packet *packet, __u32 end)
{
	__u32 at = ETHERNET_BYTES + IPV6_BYTES;
	__u8 next = packet->tuple.protocol;

	for (int i = 0; i <= EXTENSIONS_MAX; i++) {
		__u8 head[8];
		__u32 length;

		if (next != PROTOCOL_HOP_BY_HOP && next != PROTOCOL_ROUTING && next != PROTOCOL_DESTINATION &&
		    next != PROTOCOL_FRAGMENT && next != PROTOCOL_AH)
			return at;
		// What follows the header of a fragment must be what the fragments carry.
		if (packet->fragment || i == EXTENSIONS_MAX || at + 8 > end || bpf_skb_load_bytes(skb, at, head, 8) < 0)
			return 0;
		if (next == PROTOCOL_FRAGMENT) {
			packet->fragment = (big_endian16(head + 2) & 0xfff9) != 0;
			length = 8;
		} else {
			// A stop on the way that is still ahead: the destination is not where it goes.
			if (next == PROTOCOL_ROUTING && head[3] != 0)
				return 0;
			length = next == PROTOCOL_AH ? (head[1] + 2) * 4 : (head[1] + 1) * 8;
		}
		at += length;
		next = head[0];
		packet->tuple.protocol = next;
		if (at > end || at > ETHERNET_BYTES + IPV6_BYTES + EXTENSION_BYTES_MAX)
			return 0;
	}
	return 0;
}

// Copies 1 to `most` bytes of the packet; fails for any other number. Checked as the last byte's place, and in a number of
// its own: from no other form does Linux 6.1 learn that it is not nothing.
inlined long load_some(struct __sk_buff *skb, __u32 at, void *to, __u32 length, __u32 most)
{
	__u32 last = length - 1;

	reconsider(last);
	return last < most ? bpf_skb_load_bytes(skb, at, to, last + 1) : -1;
}

#define OPTIONS_MAX 10
#define OPTION_BYTES_MAX 40
#define OPTION_END 0
#define OPTION_NOTHING 1
#define OPTION_LOOSE_ROUTE 131
#define OPTION_STRICT_ROUTE 137

// Whether the options of an IPv4 header, in 4 to 40 bytes, are whole, and such that the destination is where the packet goes.
apart options_are_right(struct __sk_buff *skb, __u32 length)
{
	// With zeros behind the last.
	__u8 options[OPTION_BYTES_MAX + 8] = {};
	__u32 at = 0;

	if (load_some(skb, ETHERNET_BYTES + 20, options, length, OPTION_BYTES_MAX) < 0)
		return 0;
	for (int i = 0; i <= OPTIONS_MAX; i++) {
		__u8 type, bytes = 1;

		if (at >= length)
			return at == length;
		reconsider(at);
		if (at >= OPTION_BYTES_MAX)
			return 0;
		type = options[at];
		if (type == OPTION_END)
			return 1;
		if (type != OPTION_NOTHING)
			bytes = options[at + 1];
		if (type != OPTION_NOTHING && (bytes < 2 || type == OPTION_LOOSE_ROUTE || type == OPTION_STRICT_ROUTE))
			return 0;
		at += bytes;
	}
	return 0;
}

inlined int read_ipv4(struct __sk_buff *skb, struct packet *packet, const struct head *frame)
{
	const __u8 *head = frame->ip;
	__u32 header_bytes = (head[0] & 15) * 4, length = big_endian16(head + 2), room = packet->bytes - ETHERNET_BYTES;

	if (packet->bytes < ETHERNET_BYTES + 20 || head[0] >> 4 != 4 || header_bytes < 20 || header_bytes > room ||
	    length < header_bytes)
		return NOT_A_PACKET;
	packet->tuple.family = 4;
	packet->tuple.protocol = head[9];
	packet->hop_limit = head[8];
	copy4(packet->tuple.source, head + 12);
	copy4(packet->tuple.destination, head + 16);
	packet->fragment = (big_endian16(head + 6) & 0x3fff) != 0;
	if (length > room || (header_bytes > 20 && !options_are_right(skb, header_bytes - 20)))
		packet->malformed = 1;
	else if (header_bytes == 20)
		read_transport(skb, packet, head + 20, ETHERNET_BYTES + 20, length - 20);
	else
		read_transport(skb, packet, 0, ETHERNET_BYTES + header_bytes, length - header_bytes);
	return PACKET_IP;
}

inlined int read_ipv6(struct __sk_buff *skb, struct packet *packet, const struct head *frame)
{
	const __u8 *head = frame->ip;
	__u32 end, at;

	if (packet->bytes < ETHERNET_BYTES + IPV6_BYTES || head[0] >> 4 != 6)
		return NOT_A_PACKET;
	packet->tuple.family = 6;
	packet->tuple.protocol = head[6];
	packet->hop_limit = head[7];
	copy16(packet->tuple.source, head + 8);
	copy16(packet->tuple.destination, head + 24);
	end = ETHERNET_BYTES + IPV6_BYTES + big_endian16(head + 4);
	at = end > packet->bytes ? 0 : skip_extensions(skb, packet, end);
	if (at == 0)
		packet->malformed = 1;
	else if (at == ETHERNET_BYTES + IPV6_BYTES)
		read_transport(skb, packet, head + IPV6_BYTES, ETHERNET_BYTES + IPV6_BYTES, end - at);
	else
		read_transport(skb, packet, 0, at, end - at);
	return PACKET_IP;
}

// How many packets leave the host for this one: large ones are cut later.
inlined __u32 segments_of(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 segments = skb->gso_segs;
	__u32 size = skb->gso_size;

	// A guest's own large packets come with their size and without a count.
	if (segments == 0 && size != 0 && packet->payload_at != 0)
		segments = (packet->bytes - packet->payload_at + size - 1) / size;
	return segments == 0 ? 1 : segments;
}

inlined int read_head(struct __sk_buff *skb, struct head *head)
{
	const __u8 *data = (const __u8 *)(long)skb->data, *end = (const __u8 *)(long)skb->data_end;
	__u64 *to = (__u64 *)head->source_mac;
	__u32 length = skb->len;

	// Of IPv4 the shorter part is enough.
	if (data + HEAD_SHORT_BYTES <= end && (data + HEAD_BYTES <= end || big_endian16(data + 12) == ETHERTYPE_IPV4)) {
		to[0] = PACKED_WORD(data + 6);
		to[1] = PACKED_WORD(data + 14);
		to[2] = PACKED_WORD(data + 22);
		to[3] = PACKED_WORD(data + 30);
		to[4] = PACKED_WORD(data + 38);
		to[5] = PACKED_WORD(data + 46);
		if (data + HEAD_BYTES <= end) {
			to[6] = PACKED_WORD(data + 54);
			to[7] = PACKED_WORD(data + 62);
			*(__u32 *)&to[8] = *(const __u32 *)(data + 70);
		}
		return 1;
	}
	// Short, or not in one piece.
	length = length < HEAD_BYTES ? length : HEAD_BYTES;
	return length >= ETHERNET_BYTES &&
	       bpf_skb_load_bytes(skb, HEAD_FROM, head->source_mac, length - HEAD_FROM) == 0;
}

// Fills `packet`, which is zero. Of what is not IP the tuple stays zero but for the type, in `destination_port`.
apart read_packet(struct __sk_buff *skb, struct packet *packet)
{
	struct head head = {};
	int found = PACKET_OTHER;
	__u16 type;

	if (!packet || !read_head(skb, &head))
		return NOT_A_PACKET;
	packet->bytes = skb->len;
	packet->segments = 1;
	__builtin_memcpy(packet->source_mac, head.source_mac, 6);
	type = skb->vlan_present ? ETHERTYPE_VLAN : big_endian16(head.type);
	if (type == ETHERTYPE_IPV4)
		found = read_ipv4(skb, packet, &head);
	else if (type == ETHERTYPE_IPV6)
		found = read_ipv6(skb, packet, &head);
	else
		packet->tuple.destination_port = type;
	if (found == PACKET_IP)
		packet->segments = segments_of(skb, packet);
	return type == ETHERTYPE_ARP ? PACKET_ARP : found;
}

inlined int is_link_local6(const __u8 *address)
{
	return address[0] == 0xfe && (address[1] & 0xc0) == 0x80;
}
