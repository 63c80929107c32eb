// Names that guests say in the clear: the question of a DNS query, the server name of a TLS greeting. A name is found in
// the policy by its hash from the last letter to the first, so that every name above it is met on the way.
#pragma once
#include "packet.h"

#define DNS_PORT 53
#define TLS_PORT 443
#define DNS_HEADER_BYTES 12
#define LABEL_BYTES_MAX 63
#define LABELS_MAX 64
#define EXTENSIONS_OF_GREETING_MAX 64
// A name of the greatest length in its DNS form: a length before each label, and the empty label.
#define WIRE_NAME_BYTES_MAX (NAME_BYTES_MAX + 2)
#define NAME_BUFFER_BYTES 132

struct name {
	__u8 bytes[NAME_BUFFER_BYTES]; // the name begins at 1
	__u32 end;
	__u32 dots; // of a question: those that are between labels
	__u32 kind;
};

// Without a branch, of which the verifier would look at both sides at each letter.
inlined __u32 lower(__u32 letter)
{
	return letter + (~((letter - 'A') | ('Z' - letter)) >> 31 << 5);
}

// Whether the policy has this name.
apart name_is_allowed(const struct name *name, __u32 policy_id)
{
	struct name_key key = { .policy_id = policy_id, .hash = 0xcbf29ce484222325ull };
	__u32 end, dots;
	int allowed = 0;
	__u32 *flags;

	if (!name)
		return 0;
	end = name->end;
	dots = name->dots;
	key.kind = name->kind;
	if (end > WIRE_NAME_BYTES_MAX || end <= 1)
		return 0;
	for (__u32 i = 0; i < WIRE_NAME_BYTES_MAX; i++) {
		// Before the first letter it is a very large number: one check is all that Linux 6.1 learns from.
		__u32 at = end - 2 - i;
		__u8 letter;

		reconsider(at);
		if (at >= WIRE_NAME_BYTES_MAX)
			break;
		letter = name->bytes[1 + at];
		if (letter == '.') {
			dots--;
			if (i > 0 && at > 0) {
				flags = bpf_map_lookup_elem(&fluxvm_names, &key);
				if (flags && *flags & NAME_BELOW)
					allowed = 1;
			}
		}
		key.hash = (key.hash ^ lower(letter)) * 0x100000001b3ull;
	}
	flags = bpf_map_lookup_elem(&fluxvm_names, &key);
	if (flags && *flags & NAME_EXACT)
		allowed = 1;
	return allowed && (key.kind != NAME_KIND_DNS || dots == 0);
}

// Whether this is one query, whole, with one question for a name that is allowed.
apart question_is_allowed(struct __sk_buff *skb, const struct packet *packet, __u32 policy_id)
{
	__u32 at, length, loaded, labels = 0, wire = 0;
	// The buffer holds what is before the name first: room is scarce.
	struct name name = {};
	__u8 *head = name.bytes;

	if (!packet)
		return 0;
	at = packet->payload_at;
	length = packet->payload_bytes;
	if (packet->tuple.protocol == PROTOCOL_TCP) {
		if (length < 2 || bpf_skb_load_bytes(skb, at, head, 2) < 0 || big_endian16(head) != length - 2)
			return 0;
		at += 2;
		length -= 2;
	}
	if (length <= DNS_HEADER_BYTES || bpf_skb_load_bytes(skb, at, head, DNS_HEADER_BYTES) < 0)
		return 0;
	// A standard query, with one question.
	if ((head[2] & 0xf8) != 0 || big_endian16(head + 4) != 1)
		return 0;
	length -= DNS_HEADER_BYTES;
	loaded = length < WIRE_NAME_BYTES_MAX ? length : WIRE_NAME_BYTES_MAX;
	if (load_some(skb, at + DNS_HEADER_BYTES, name.bytes, loaded, WIRE_NAME_BYTES_MAX) < 0)
		return 0;
	for (int i = 0; i <= LABELS_MAX; i++) {
		__u8 label;

		if (wire >= loaded || wire >= WIRE_NAME_BYTES_MAX)
			return 0;
		label = name.bytes[wire];
		if (label == 0) {
			// Type and class follow.
			if (wire == 0 || wire + 1 + 4 > length)
				return 0;
			name.end = wire;
			name.dots = labels - 1;
			name.kind = NAME_KIND_DNS;
			return name_is_allowed(&name, policy_id);
		}
		if (label > LABEL_BYTES_MAX)
			return 0;
		name.bytes[wire] = '.';
		wire += label + 1;
		labels++;
	}
	return 0;
}

// What a TCP segment to the port of TLS is.
enum { GREETING_DENIED, GREETING_ALLOWED, GREETING_NONE };

// The first extension that names a server must lie in this segment, and in the record that it begins with.
apart greeting(struct __sk_buff *skb, const struct packet *packet, __u32 policy_id)
{
	__u32 start, length, end, at;
	struct name name = {};
	__u8 *head = name.bytes;

	if (!packet)
		return GREETING_DENIED;
	start = packet->payload_at;
	length = packet->payload_bytes;
	if (length == 0 || bpf_skb_load_bytes(skb, start, head, 1) < 0)
		return GREETING_NONE;
	if (length >= 9 && bpf_skb_load_bytes(skb, start, head, 9) < 0)
		return GREETING_DENIED;
	if (length < 9 && length >= 2 && bpf_skb_load_bytes(skb, start + 1, head + 1, 1) < 0)
		return GREETING_DENIED;
	if (length < 9 && length >= 3 && bpf_skb_load_bytes(skb, start + 2, head + 2, 1) < 0)
		return GREETING_DENIED;
	if (head[0] != 0x16 || (length >= 2 && head[1] != 3) || (length >= 3 && head[2] > 4))
		return GREETING_NONE;
	// A handshake record with a greeting of the client.
	if (length < 9 || head[5] != 1)
		return GREETING_DENIED;
	end = big_endian16(head + 3) + 5;
	end = start + (end < length ? end : length);
	at = start + 9 + 2 + 32;

	// Session, cipher suites, compression methods.
	if (at + 1 > end || bpf_skb_load_bytes(skb, at, head, 1) < 0)
		return GREETING_DENIED;
	at += 1 + head[0];
	if (at + 2 > end || bpf_skb_load_bytes(skb, at, head, 2) < 0)
		return GREETING_DENIED;
	at += 2 + big_endian16(head);
	if (at + 1 > end || bpf_skb_load_bytes(skb, at, head, 1) < 0)
		return GREETING_DENIED;
	at += 1 + head[0] + 2;

	for (int i = 0; i < EXTENSIONS_OF_GREETING_MAX; i++) {
		if (at + 4 > end || bpf_skb_load_bytes(skb, at, head, 4) < 0)
			return GREETING_DENIED;
		if (big_endian16(head) == 0)
			break;
		at += 4 + big_endian16(head + 2);
		if (i == EXTENSIONS_OF_GREETING_MAX - 1)
			return GREETING_DENIED;
	}
	// The list of names has one, of the only type that there is.
	length = big_endian16(head + 2);
	if (length < 5 || at + 9 > end || bpf_skb_load_bytes(skb, at + 4, head, 5) < 0 || head[2] != 0)
		return GREETING_DENIED;
	at += 9;
	length = big_endian16(head + 3);
	if (at + length > end || load_some(skb, at, name.bytes + 1, length, NAME_BYTES_MAX) < 0)
		return GREETING_DENIED;
	name.end = length + 1;
	name.kind = NAME_KIND_SNI;
	return name_is_allowed(&name, policy_id) ? GREETING_ALLOWED : GREETING_DENIED;
}
