// Where things lie in any frame.
#pragma once
#include "helpers.h"
#include "layout.h"

#define ETHERNET_BYTES 14
#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_ARP 0x0806
#define ETHERTYPE_IPV6 0x86dd
#define ETHERTYPE_VLAN 0x8100
#define IPV6_BYTES 40
