// What is kept of each packet: totals, flows, denials, events; and the budgets of an interface.
#pragma once
#include "packet.h"

inlined __u64 clock_now(void)
{
	__u32 first = 0;
	__u64 *set = bpf_map_lookup_elem(&fluxvm_clock, &first);

	return set && *set ? *set : bpf_ktime_get_coarse_ns();
}

// A budget is the instant until which it is used up. It may be drawn on a burst ahead, and any packet when it is full.
inlined int has_room(__u64 until, __u64 now, __u64 cost)
{
	return until <= now || until + cost - now <= BURST_NS;
}

inlined __u64 drawn(__u64 until, __u64 now, __u64 cost)
{
	return (until > now ? until : now) + cost;
}

// Draws on both budgets, or on neither.
inlined int is_within_rate(const struct interface_config *config, const struct packet *packet, __u64 now)
{
	__u64 bytes_cost = 0, packets_cost = 0;
	struct limiter *limiter;
	int within;

	if (config->bytes_per_second == 0 && config->packets_per_second == 0)
		return 1;
	limiter = bpf_map_lookup_elem(&fluxvm_rate, &config->slot);
	if (!limiter)
		return 0;
	if (config->bytes_per_second)
		bytes_cost = packet->bytes * 1000000000ull / config->bytes_per_second;
	if (config->packets_per_second)
		packets_cost = packet->segments * 1000000000ull / config->packets_per_second;
	bpf_spin_lock(&limiter->lock);
	within = (!bytes_cost || has_room(limiter->bytes_until_ns, now, bytes_cost)) &&
		 (!packets_cost || has_room(limiter->packets_until_ns, now, packets_cost));
	if (within) {
		if (bytes_cost)
			limiter->bytes_until_ns = drawn(limiter->bytes_until_ns, now, bytes_cost);
		if (packets_cost)
			limiter->packets_until_ns = drawn(limiter->packets_until_ns, now, packets_cost);
	}
	bpf_spin_unlock(&limiter->lock);
	return within;
}

// What no policy decides has a budget of its own, so that it is no way around one.
inlined int is_within_control_rate(const struct interface_config *config, __u64 now)
{
	struct limiter *limiter = bpf_map_lookup_elem(&fluxvm_rate, &config->slot);
	__u64 cost = 1000000000ull / CONTROL_PACKETS_PER_SECOND;
	int within;

	if (!limiter)
		return 0;
	bpf_spin_lock(&limiter->lock);
	within = has_room(limiter->control_until_ns, now, cost);
	if (within)
		limiter->control_until_ns = drawn(limiter->control_until_ns, now, cost);
	bpf_spin_unlock(&limiter->lock);
	return within;
}

inlined void add_counters(void *map, const void *key, const struct flow_counters *more)
{
	struct flow_counters *counters = bpf_map_lookup_elem(map, key);

	if (!counters) {
		if (bpf_map_update_elem(map, key, more, BPF_NOEXIST) == 0)
			return;
		counters = bpf_map_lookup_elem(map, key);
		if (!counters)
			return;
	}
	__sync_fetch_and_add(&counters->packets, more->packets);
	__sync_fetch_and_add(&counters->bytes, more->bytes);
	if (counters->last_seen_ns < more->last_seen_ns)
		counters->last_seen_ns = more->last_seen_ns;
}

inlined struct flow_counters counters_of(const struct packet *packet, __u64 now)
{
	return (struct flow_counters){ .packets = packet->segments, .bytes = packet->bytes, .last_seen_ns = now };
}

inlined void fill_flow_key(struct flow_key *key, const struct interface_config *config, const union tuple *tuple,
			   __u8 verdict)
{
	// Field by field in words of four: the key lies four bytes off the words of the tuple.
	const __u32 *from = (const __u32 *)tuple;
	__u32 *to = (__u32 *)key;

	to[0] = config->identity;
	for (int i = 0; i < 9; i++)
		to[1 + i] = from[i];
	key->protocol = tuple->protocol;
	key->family = tuple->family;
	key->verdict = verdict;
	key->reserved = 0;
}

inlined void emit(const struct interface_config *config, const struct packet *packet, __u64 now, __u32 reason, __u32 action)
{
	struct flow_event event = {
		.timestamp_ns = now,
		.identity = config->identity,
		.ifindex = config->ifindex,
		.bytes = packet->bytes,
		.source_port = packet->tuple.source_port,
		.destination_port = packet->tuple.destination_port,
		.protocol = packet->tuple.protocol,
		.verdict = reason == 0,
		.family = packet->tuple.family,
		.reason = reason,
		.action = action,
	};

	copy16(event.source, packet->tuple.source);
	copy16(event.destination, packet->tuple.destination);
	bpf_ringbuf_output(&fluxvm_events, &event, sizeof(event), 0);
}

inlined void count(const struct interface_config *config, const struct packet *packet, int passes)
{
	struct traffic *traffic = bpf_map_lookup_elem(&fluxvm_stats, &config->slot);

	if (!traffic)
		return;
	if (passes) {
		traffic->allowed_packets += packet->segments;
		traffic->allowed_bytes += packet->bytes;
	} else {
		traffic->dropped_packets += packet->segments;
		traffic->dropped_bytes += packet->bytes;
	}
}

inlined int is_sampled(__u32 rate)
{
	return rate == 1 || (rate > 1 && bpf_get_prandom_u32() % rate == 0);
}

apart record_denial(const struct interface_config *config, const struct packet *packet, __u64 now, __u32 reason, __u32 action)
{
	struct drop_key key = { .reason = reason, .action = action };
	struct flow_counters counters;

	if (!config || !packet)
		return 0;
	counters = counters_of(packet, now);
	fill_flow_key((struct flow_key *)&key, config, &packet->tuple, 0);
	if (packet->tuple.family != 0)
		add_counters(&fluxvm_flows, &key, &counters);
	add_counters(&fluxvm_drops, &key, &counters);
	emit(config, packet, now, reason, action);
	return 0;
}

// A packet that passes without being one of a connection.
apart record_flow(const struct interface_config *config, const struct packet *packet, __u64 now)
{
	struct flow_counters counters;
	struct flow_key key;

	if (!config || !packet)
		return 0;
	counters = counters_of(packet, now);
	fill_flow_key(&key, config, &packet->tuple, 1);
	add_counters(&fluxvm_flows, &key, &counters);
	return 0;
}

apart record_sample(const struct interface_config *config, const struct packet *packet, __u64 now)
{
	if (!config || !packet)
		return 0;
	emit(config, packet, now, 0, 0);
	return 0;
}
