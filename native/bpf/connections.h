// Connections that were judged, so that the next packet of one need not be. Each interface has its own buckets of
// eight: in a full one the oldest makes room, so what one guest opens never pushes out another's, and nobody has to
// count or clean while the agent is away. Packets of a connection are counted in it.
#pragma once
#include "record.h"

#define CONNECTIONS_IN_BUCKET 8

// What `find_connection` knows; `CONNECTION_*` flags of it lie above.
#define KNOWN 1u // by this policy
#define KNOWN_BEFORE 2u // by another
#define KNOWN_FLAGS_SHIFT 8

// An empty bucket, to make one of.
static const __u64 empty_bucket[sizeof(struct connection_bucket) / 8];

inlined __u64 idle_ns(__u8 protocol)
{
	if (protocol == PROTOCOL_TCP || protocol == PROTOCOL_SCTP)
		return TCP_IDLE_SECONDS * 1000000000ull;
	return (protocol == PROTOCOL_UDP ? UDP_IDLE_SECONDS : OTHER_IDLE_SECONDS) * 1000000000ull;
}

inlined int is_over(const struct connection *connection, __u64 now)
{
	return now > connection->last_seen_ns && now - connection->last_seen_ns > idle_ns(connection->protocol);
}

inlined int is_same(const struct connection *connection, const union tuple *tuple)
{
	const __u64 *words = (const __u64 *)connection;

	return words[4] == tuple->words[4] && words[2] == tuple->words[2] && words[0] == tuple->words[0] &&
	       words[1] == tuple->words[1] && words[3] == tuple->words[3];
}

inlined struct connection_bucket_key bucket_of(const struct interface_config *config, const union tuple *tuple)
{
	__u64 hash = config->ct_epoch;

	for (int i = 0; i < 5; i++) {
		hash = (hash ^ tuple->words[i]) * 0x9e3779b97f4a7c15ull;
		hash ^= hash >> 32;
	}
	return (struct connection_bucket_key){ .slot = config->slot, .bucket = hash & (config->ct_buckets - 1) };
}

inlined struct connection *same_in(struct connection_bucket *bucket, const struct interface_config *config,
				   const union tuple *tuple)
{
	__u32 index = CONNECTIONS_IN_BUCKET;

	for (int i = 0; i < CONNECTIONS_IN_BUCKET; i++) {
		if (is_same(&bucket->connections[i], tuple) && bucket->connections[i].epoch == config->ct_epoch) {
			index = i;
			break;
		}
	}
	return index < CONNECTIONS_IN_BUCKET ? &bucket->connections[index] : 0;
}

// The connection of the packet in this bucket, unless it is over, and what is known of it.
inlined struct connection *look_for(struct connection_bucket *bucket, const struct interface_config *config,
				    const struct packet *packet, __u64 now, __u32 *known)
{
	struct connection *connection = same_in(bucket, config, &packet->tuple);

	*known = 0;
	if (!connection || is_over(connection, now))
		return 0;
	*known = connection->flags << KNOWN_FLAGS_SHIFT;
	*known |= connection->policy_id == config->policy_id ? KNOWN : KNOWN_BEFORE;
	return connection;
}

// The connection of this packet, which keeps it alive, or null; `known` says what is known of it. Readers take no lock unless
// the bucket is written meanwhile. That is right on processors that make loads in order.
inlined struct connection *find_connection(const struct interface_config *config, const struct packet *packet, __u64 now,
					   __u32 *known)
{
	struct connection_bucket_key key;
	struct connection_bucket *bucket;
	struct connection *connection;
	__u32 sequence;

	if (config->ct_buckets == 0)
		return 0;
	key = bucket_of(config, &packet->tuple);
	bucket = bpf_map_lookup_elem(&fluxvm_ct, &key);
	if (!bucket)
		return 0;
	sequence = bucket->sequence;
	barrier();
	connection = look_for(bucket, config, packet, now, known);
	barrier();
	if (sequence & 1 || bucket->sequence != sequence) {
		bpf_spin_lock(&bucket->lock);
		connection = look_for(bucket, config, packet, now, known);
		bpf_spin_unlock(&bucket->lock);
	}
	if (connection)
		connection->last_seen_ns = now;
	return connection;
}

inlined void count_in(struct connection *connection, const struct packet *packet)
{
	__sync_fetch_and_add(&connection->packets, packet->segments);
	__sync_fetch_and_add(&connection->bytes, packet->bytes);
}

// Where this connection is, or is to be: its own place, else that of one that is over, else that of the oldest. `own` says
// which of these. Under the bucket's lock.
inlined struct connection *place_in(struct connection_bucket *bucket, const struct interface_config *config,
				    const union tuple *tuple, __u64 now, int *own)
{
	__u64 oldest = ~0ull;
	__u32 index = 0;

	for (int i = 0; i < CONNECTIONS_IN_BUCKET; i++) {
		struct connection *connection = &bucket->connections[i];
		__u64 stamp = 0;

		if (connection->epoch == config->ct_epoch) {
			if (is_same(connection, tuple)) {
				*own = 1;
				index = i;
				break;
			}
			if (!is_over(connection, now))
				stamp = connection->last_seen_ns;
		}
		if (stamp < oldest) {
			oldest = stamp;
			index = i;
		}
	}
	return &bucket->connections[index & (CONNECTIONS_IN_BUCKET - 1)];
}

// Remembers a connection with these flags, and counts the packet in it if the guest sent it. Those of the one that is
// already there stay, unless it is over or begins anew. Returns 0 when there is no room in memory.
apart remember_connection(const struct interface_config *config, const struct packet *packet, __u64 now, __u32 flags)
{
	struct connection_bucket_key key;
	struct flow_counters counters = {};
	struct connection_bucket *bucket;
	struct connection *place;
	struct flow_key flow = {};
	int sent = !(flags & CONNECTION_REPLY), own = 0;

	if (!config || !packet || config->ct_buckets == 0)
		return 0;
	key = bucket_of(config, &packet->tuple);
	bucket = bpf_map_lookup_elem(&fluxvm_ct, &key);
	if (!bucket) {
		// Another CPU may be first, or there may be no room: then it is not remembered, and judged again.
		bpf_map_update_elem(&fluxvm_ct, &key, empty_bucket, BPF_NOEXIST);
		bucket = bpf_map_lookup_elem(&fluxvm_ct, &key);
		if (!bucket)
			return 0;
	}
	bpf_spin_lock(&bucket->lock);
	place = place_in(bucket, config, &packet->tuple, now, &own);
	bucket->sequence++;
	barrier();
	if (own) {
		if (!packet->fresh && !is_over(place, now))
			flags |= place->flags;
	} else {
		fill_flow_key(&flow, config, (const union tuple *)place, 1);
		counters.packets = place->packets;
		counters.bytes = place->bytes;
		counters.last_seen_ns = place->last_seen_ns;
		__builtin_memcpy(place, packet->tuple.words, sizeof(union tuple));
		place->packets = 0;
		place->bytes = 0;
	}
	place->last_seen_ns = now;
	place->policy_id = config->policy_id;
	place->epoch = config->ct_epoch;
	place->flags = flags;
	if (sent)
		count_in(place, packet);
	barrier();
	bucket->sequence++;
	bpf_spin_unlock(&bucket->lock);
	// What the one that made room had counted.
	if (counters.packets != 0)
		add_counters(&fluxvm_flows, &flow, &counters);
	return 1;
}
