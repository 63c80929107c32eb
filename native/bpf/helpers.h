// The few helpers of the kernel that these programs call, by their numbers, and how maps are described to the loader.
#pragma once
#include <linux/bpf.h>
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, type) type *name
#define inlined static inline __attribute__((always_inline))
// A function that the verifier looks at once, by itself: what its callers know is forgotten inside, and what it found is
// forgotten outside. So the work of verifying adds up instead of multiplying. It gets pointers that may be null.
#define apart __attribute__((noinline)) int

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static __u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static long (*const bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 length) = (void *)26;
static long (*const bpf_spin_lock)(struct bpf_spin_lock *lock) = (void *)93;
static long (*const bpf_spin_unlock)(struct bpf_spin_lock *lock) = (void *)94;
static long (*const bpf_ringbuf_output)(void *ring, const void *data, __u64 size, __u64 flags) = (void *)130;
static __u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160;

// Makes the compiler forget what it knows of a number, so that the check that follows stays where the verifier sees it.
#define reconsider(number) __asm__ volatile("" : "+r"(number))

// What is before it stays before it.
#define barrier() __asm__ volatile("" ::: "memory")

inlined __u16 big_endian16(const __u8 *at)
{
	return (__u16)at[0] << 8 | at[1];
}

// Addresses are bytes, but lie where words may: the compiler would else read them one by one.
inlined __u32 word4(const __u8 *at)
{
	return *(const __u32 *)at;
}

inlined __u64 word8(const __u8 *at)
{
	return *(const __u64 *)at;
}

inlined void copy4(__u8 *to, const __u8 *from)
{
	*(__u32 *)to = word4(from);
}

inlined void copy16(__u8 *to, const __u8 *from)
{
	*(__u64 *)to = word8(from);
	*(__u64 *)(to + 8) = word8(from + 8);
}
