// The programs of one sandbox's interface on its host: `fluxvm_egress` decides what the guest sends, `fluxvm_ingress`
// learns from what it gets. `README.md` has the order of decisions.
#define WITH_TRAFFIC_MAPS
#include "connections.h"
#include "names.h"

// Deny, and let whatever is attached behind us decide. Both attachments, old and new, know these two.
#define DENY 2
#define NEXT (-1)

// A denial that audit does not lift.
#define HARD 0x100u

struct question {
	struct interface_config config; // a copy: one packet is decided by one policy
	struct packet packet;
	__u64 now;
	__u32 known; // of its connection
	__u32 greeted; // CONNECTION_GREETED when this packet settled it
};

inlined int is_zero4(const __u8 *address)
{
	return word4(address) == 0;
}

inlined int is_zero_mac(const __u8 *mac)
{
	return word4(mac) == 0 && big_endian16(mac + 4) == 0;
}

inlined int same_mac(const __u8 *a, const __u8 *b)
{
	return word4(a) == word4(b) && big_endian16(a + 4) == big_endian16(b + 4);
}

inlined int same16(const __u8 *a, const __u8 *b)
{
	return word8(a) == word8(b) && word8(a + 8) == word8(b + 8);
}

// Copies how the interface is to be treated; false when there is no answer. An element that is replaced while it is read
// may come to hold another's words; then the new one is there.
inlined int read_config(struct interface_config *config, __u32 ifindex)
{
	for (int i = 0; i < 4; i++) {
		const struct interface_config *found = bpf_map_lookup_elem(&fluxvm_iface, &ifindex);

		if (!found)
			return 0;
		__builtin_memcpy(config, found, sizeof(*config));
		if (config->ifindex == ifindex && config->seal == config->policy_id)
			return config->slot < SLOTS;
	}
	return 0;
}

inlined int is_dhcp_discovery(const struct packet *packet)
{
	return packet->tuple.protocol == PROTOCOL_UDP && packet->tuple.source_port == 68 &&
	       packet->tuple.destination_port == 67;
}

inlined int is_own_source(const struct interface_config *config, const struct packet *packet)
{
	const __u8 *source = packet->tuple.source;

	if (packet->tuple.family == 6) {
		if (is_link_local6(source) || (word8(source) == 0 && word8(source + 8) == 0))
			return 1;
		return same16(source, config->source6);
	}
	if (is_zero4(source))
		return is_dhcp_discovery(packet);
	if (word4(source) == word4(config->source4))
		return 1;
	return config->flags & INTERFACE_ROUTED && word4(source) == word4(config->router4);
}

// The frame's own address, and what an ARP packet says about its sender.
apart judge_source(struct __sk_buff *skb, const struct question *question, int found)
{
	const struct interface_config *config = &question->config;
	const struct packet *packet = &question->packet;
	// Ethernet and IPv4, then hardware and protocol address of the sender.
	__u8 arp[24] __attribute__((aligned(8)));

	if (!question)
		return REASON_SPOOF_MAC;
	if (!(config->flags & INTERFACE_ROUTED)) {
		int checked = !is_zero_mac(config->source_mac);

		if (checked && !same_mac(packet->source_mac, config->source_mac))
			return REASON_SPOOF_MAC;
		if (found == PACKET_ARP) {
			if (packet->bytes < ETHERNET_BYTES + 28 || bpf_skb_load_bytes(skb, ETHERNET_BYTES, arp, 14) < 0 ||
			    bpf_skb_load_bytes(skb, ETHERNET_BYTES + 14, arp + 16, 4) < 0 || word4(arp) != 0x00080100 ||
			    big_endian16(arp + 4) != 0x0604)
				return REASON_SPOOF_MAC;
			if (checked && !same_mac(arp + 8, config->source_mac))
				return REASON_SPOOF_MAC;
			if (!is_zero4(arp + 16) && word4(arp + 16) != word4(config->source4))
				return REASON_SPOOF_IP;
		}
	}
	return found == PACKET_IP && !is_own_source(config, packet) ? REASON_SPOOF_IP : 0;
}

// Remembers which address the guest has, once a second.
apart learn_address(struct __sk_buff *skb, const struct question *question, int found)
{
	const struct interface_config *config = &question->config;
	struct learned_address *learned;
	__u32 origin = LEARNED_IP;
	__u8 address[4] __attribute__((aligned(4)));
	__u32 slot;

	if (!question)
		return 0;
	// Linux 6.1 takes no key out of what a function was given.
	slot = config->slot;
	learned = bpf_map_lookup_elem(&fluxvm_learned, &slot);
	if (!learned)
		return 0;
	if (found == PACKET_ARP) {
		if (config->flags & INTERFACE_ROUTED || question->packet.bytes < ETHERNET_BYTES + 28 ||
		    bpf_skb_load_bytes(skb, ETHERNET_BYTES + 14, address, 4) < 0)
			return 0;
		origin = LEARNED_ARP;
	} else if (found == PACKET_IP && question->packet.tuple.family == 4) {
		copy4(address, question->packet.tuple.source);
		if (config->flags & INTERFACE_ROUTED && word4(address) == word4(config->router4))
			return 0;
	} else {
		return 0;
	}
	if (address[0] == 0 || address[0] == 127 || address[0] >= 224)
		return 0;
	if (word4(learned->address) == word4(address) && learned->origin == origin &&
	    question->now - learned->last_seen_ns < 1000000000ull)
		return 0;
	copy4(learned->address, address);
	learned->origin = origin;
	learned->last_seen_ns = question->now;
	return 1;
}

// How a guest gets its addresses and finds its neighbours: no policy decides that, and it goes no further than the link.
inlined int is_control(const struct question *question)
{
	const struct packet *packet = &question->packet;
	const __u8 *to = packet->tuple.destination;

	if (packet->fragment)
		return 0;
	if (packet->tuple.family == 4)
		return is_dhcp_discovery(packet) &&
		       (word4(to) == 0xffffffff ||
			(!is_zero4(question->config.gateway4) && word4(to) == word4(question->config.gateway4)));
	if (packet->tuple.protocol == PROTOCOL_UDP)
		return packet->tuple.source_port == 546 && packet->tuple.destination_port == 547 &&
		       is_link_local6(packet->tuple.source) && word8(to) == 0x2ffull && word8(to + 8) == 0x0200010000000000ull;
	// Solicitations and advertisements, but no router's.
	return packet->tuple.protocol == PROTOCOL_ICMP6 && packet->hop_limit == 255 && packet->icmp_code == 0 &&
	       (packet->icmp_type == 133 || packet->icmp_type == 135 || packet->icmp_type == 136) &&
	       (is_link_local6(to) || (to[0] == 0xff && to[1] == 2));
}

inlined __u32 rule_of4(void *map, __u32 policy_id, const __u8 *address)
{
	struct lpm4_key key = { .prefix_bits = 64, .policy_id = policy_id };
	__u32 *flags;

	copy4(key.address, address);
	flags = bpf_map_lookup_elem(map, &key);
	return flags ? *flags : 0;
}

inlined __u32 rule_of6(void *map, __u32 policy_id, const __u8 *address)
{
	struct lpm6_key key = { .prefix_bits = 160, .policy_id = policy_id };
	__u32 *flags;

	copy16(key.address, address);
	flags = bpf_map_lookup_elem(map, &key);
	return flags ? *flags : 0;
}

inlined __u32 deny_rule(__u32 policy_id, const union tuple *tuple)
{
	return tuple->family == 4 ? rule_of4(&fluxvm_deny4, policy_id, tuple->destination)
				  : rule_of6(&fluxvm_deny6, policy_id, tuple->destination);
}

inlined __u32 allow_rule(__u32 policy_id, const union tuple *tuple)
{
	return tuple->family == 4 ? rule_of4(&fluxvm_allow4, policy_id, tuple->destination)
				  : rule_of6(&fluxvm_allow6, policy_id, tuple->destination);
}

// Where clouds tell a machine its secrets: 169.254.169.254 and fd00:ec2::254.
inlined int is_metadata(const union tuple *tuple)
{
	if (tuple->family == 4)
		return word4(tuple->destination) == 0xfea9fea9;
	return word8(tuple->destination) == 0xc20e00fdull && word8(tuple->destination + 8) == 0x5402000000000000ull;
}

inlined int port_is_allowed(__u32 policy_id, const union tuple *tuple)
{
	struct port_key key = { .policy_id = policy_id, .port = tuple->destination_port, .protocol = tuple->protocol };

	if (bpf_map_lookup_elem(&fluxvm_ports, &key))
		return 1;
	key.port = 0;
	return bpf_map_lookup_elem(&fluxvm_ports, &key) != 0;
}

inlined int is_question(const struct question *question)
{
	const struct packet *packet = &question->packet;

	if (packet->fragment || packet->tuple.destination_port != DNS_PORT)
		return 0;
	return packet->tuple.protocol == PROTOCOL_UDP || packet->tuple.protocol == PROTOCOL_TCP;
}

// What the policy says about names in this packet. Of a TLS connection the first payload decides.
inlined __u32 judge_names(struct __sk_buff *skb, struct question *question)
{
	const struct packet *packet = &question->packet;
	__u32 policy_id = question->config.policy_id;
	int said;

	if (question->config.flags & INTERFACE_DNS_NAMES && is_question(question)) {
		if (packet->tuple.protocol == PROTOCOL_TCP && packet->payload_bytes == 0)
			return 0;
		return question_is_allowed(skb, packet, policy_id) ? 0 : REASON_DNS_DENY;
	}
	if (!(question->config.flags & INTERFACE_SNI_NAMES) || packet->tuple.protocol != PROTOCOL_TCP ||
	    packet->tuple.destination_port != TLS_PORT || packet->fragment || packet->payload_bytes == 0 ||
	    question->known & CONNECTION_GREETED << KNOWN_FLAGS_SHIFT)
		return 0;
	said = greeting(skb, packet, policy_id);
	if (said == GREETING_DENIED)
		return REASON_SNI_DENY;
	question->greeted = CONNECTION_GREETED;
	return 0;
}

// Why not; 0 where there is no reason. Not for what is known by this very policy.
inlined __u32 judge(struct __sk_buff *skb, struct question *question)
{
	const struct interface_config *config = &question->config;
	const struct packet *packet = &question->packet;
	const union tuple *tuple = &packet->tuple;
	__u32 flags = config->flags;

	if (config->phase != PHASE_RUNNING && !question->known)
		return HARD | (config->phase == PHASE_QUIESCING ? REASON_MIGRATION_QUIESCE : REASON_MIGRATION_RESTORING);
	if (packet->fragment && flags & (INTERFACE_ENFORCE_PORTS | INTERFACE_DNS_NAMES | INTERFACE_SNI_NAMES))
		return REASON_FRAGMENTED_L4;
	if (tuple->family == 4 && is_question(question) && !is_zero4(config->gateway4) &&
	    word4(tuple->destination) == word4(config->gateway4))
		return judge_names(skb, question);
	if (is_metadata(tuple) && !(allow_rule(config->policy_id, tuple) & RULE_EXACT))
		return HARD | REASON_EXPLICIT_CIDR_DENY;
	if (deny_rule(config->policy_id, tuple))
		return REASON_EXPLICIT_CIDR_DENY;
	if (question->known & CONNECTION_REPLY << KNOWN_FLAGS_SHIFT)
		return 0;
	if (flags & INTERFACE_DENY_UDP && (tuple->protocol == PROTOCOL_UDP || tuple->protocol == PROTOCOL_SCTP))
		return REASON_UDP_DENY;
	if (flags & INTERFACE_ALLOW_ICMP && tuple->protocol == (tuple->family == 4 ? PROTOCOL_ICMP : PROTOCOL_ICMP6))
		return 0;
	if (!(flags & (INTERFACE_ENFORCE_CIDRS | INTERFACE_ENFORCE_PORTS | INTERFACE_DEFAULT_ALLOW)))
		return REASON_DEFAULT_DENY;
	if (flags & INTERFACE_ENFORCE_CIDRS && !allow_rule(config->policy_id, tuple))
		return REASON_CIDR_MISS;
	if (flags & INTERFACE_ENFORCE_PORTS && !port_is_allowed(config->policy_id, tuple))
		return REASON_L4_MISS;
	return judge_names(skb, question);
}

inlined int deny(const struct question *question, __u32 reason)
{
	record_denial(&question->config, &question->packet, question->now, reason, 0);
	count(&question->config, &question->packet, 0);
	return DENY;
}

inlined int pass(struct __sk_buff *skb, const struct question *question)
{
	count(&question->config, &question->packet, 1);
	skb->mark |= question->config.mark;
	return NEXT;
}

inlined int pass_sampled(struct __sk_buff *skb, const struct question *question)
{
	if (is_sampled(question->config.sample_rate))
		record_sample(&question->config, &question->packet, question->now);
	return pass(skb, question);
}

// A denial by policy: audit writes it down and lets the packet go, which then counts for nothing else.
inlined int deny_by_policy(struct __sk_buff *skb, const struct question *question, __u32 reason)
{
	if (reason & HARD || !(question->config.flags & INTERFACE_AUDIT))
		return deny(question, reason & 0xff);
	record_denial(&question->config, &question->packet, question->now, reason, 1);
	return pass(skb, question);
}

inlined int decide(struct __sk_buff *skb, struct question *question)
{
	const struct interface_config *config = &question->config;
	const struct packet *packet = &question->packet;
	struct connection *connection = 0;
	__u32 reason;

	if (packet->malformed)
		return deny(question, REASON_MALFORMED_L4);
	if (is_control(question)) {
		if (!is_within_control_rate(config, question->now))
			return deny(question, REASON_RATE_LIMIT);
		record_flow(config, packet, question->now);
		return pass_sampled(skb, question);
	}
	if (!packet->fragment && !packet->fresh)
		connection = find_connection(config, packet, question->now, &question->known);
	if (!(question->known & KNOWN))
		reason = judge(skb, question);
	else if (config->flags & (INTERFACE_DNS_NAMES | INTERFACE_SNI_NAMES) &&
		 !(question->known & CONNECTION_REPLY << KNOWN_FLAGS_SHIFT))
		reason = judge_names(skb, question);
	else
		reason = 0;
	if (!reason && !is_within_rate(config, packet, question->now))
		reason = REASON_RATE_LIMIT;
	if (reason)
		return deny_by_policy(skb, question, reason);
	if (connection && question->known & KNOWN && !question->greeted)
		count_in(connection, packet);
	else if (packet->fragment || !remember_connection(config, packet, question->now, question->greeted))
		record_flow(config, packet, question->now);
	return pass_sampled(skb, question);
}

SEC("tc") int fluxvm_egress(struct __sk_buff *skb)
{
	struct question question = {};
	__u32 reason;
	int found;

	if (!read_config(&question.config, skb->ifindex))
		return DENY;
	found = read_packet(skb, &question.packet);
	if (found == NOT_A_PACKET)
		return DENY;
	question.now = clock_now();
	if (question.config.flags & INTERFACE_ANTI_SPOOF) {
		reason = judge_source(skb, &question, found);
		if (reason)
			return deny(&question, reason);
	}
	if (question.config.flags & INTERFACE_LEARN)
		learn_address(skb, &question, found);
	if (found == PACKET_IP)
		return decide(skb, &question);
	if (found == PACKET_ARP)
		return pass(skb, &question);
	// What no rule can describe passes only where there is none.
	if ((question.config.flags & (INTERFACE_DEFAULT_ALLOW | INTERFACE_ENFORCE_CIDRS | INTERFACE_ENFORCE_PORTS)) ==
	    INTERFACE_DEFAULT_ALLOW)
		return pass(skb, &question);
	return deny_by_policy(skb, &question, REASON_UNSUPPORTED_ETHERTYPE);
}

// Whether an answer is to be expected that no earlier packet of the guest asked for. Turns the tuple around, to the
// guest's own view.
inlined int turn_around(struct packet *packet)
{
	union tuple seen = packet->tuple;

	copy16(packet->tuple.source, seen.destination);
	copy16(packet->tuple.destination, seen.source);
	packet->tuple.source_port = seen.destination_port;
	packet->tuple.destination_port = seen.source_port;
	if (seen.protocol == PROTOCOL_TCP || seen.protocol == PROTOCOL_SCTP)
		return packet->fresh;
	if (seen.protocol == PROTOCOL_ICMP && seen.family == 4)
		return packet->icmp_type == 8;
	if (seen.protocol == PROTOCOL_ICMP6 && seen.family == 6)
		return packet->icmp_type == 128;
	return 1;
}

SEC("tc") int fluxvm_ingress(struct __sk_buff *skb)
{
	struct question question = {};
	struct packet *packet = &question.packet;
	int begins;

	if (!read_config(&question.config, skb->ifindex))
		return NEXT;
	if (read_packet(skb, packet) != PACKET_IP || packet->malformed || packet->fragment)
		return NEXT;
	question.now = clock_now();
	begins = turn_around(packet);
	if (!packet->fresh && find_connection(&question.config, packet, question.now, &question.known))
		return NEXT;
	// An explicit denial holds for answers too; and a migration takes nothing new with it.
	if (begins && question.config.phase == PHASE_RUNNING && !deny_rule(question.config.policy_id, &packet->tuple))
		remember_connection(&question.config, packet, question.now, CONNECTION_REPLY);
	return NEXT;
}

char _license[] SEC("license") = "Dual MIT/GPL";
