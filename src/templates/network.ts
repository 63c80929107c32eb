// How a root that we make gets its addresses: each network card asks by DHCP while the machine boots, and the guest agent
// answers when there are some, or a few seconds later. Where there is no card nothing waits.
import { chmod, mkdir, symlink, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";

/** Run by the guest agent where it is init, and by a unit where systemd is. */
const START = "etc/fluxvm/network";
const ADDRESS = "etc/fluxvm/address";
const UNIT = "fluxvm-network.service";
const UNITS = "etc/systemd/system";

const START_SCRIPT = `#!/bin/sh
# Brings up each network card and asks for an address in the background, for as long as there is none. Ends when every
# card has one, or after five seconds.
waited=0
for device in /sys/class/net/*/device; do
  [ -e "$device" ] || continue
  card=\${device%/device}
  card=\${card##*/}
  ip link set "$card" up
  udhcpc -i "$card" -f -t 5 -T 1 -A 1 -s /${ADDRESS} >/dev/null 2>&1 </dev/null &
done
for device in /sys/class/net/*/device; do
  [ -e "$device" ] || continue
  card=\${device%/device}
  until [ -e "/run/fluxvm-address-\${card##*/}" ] || [ "$waited" -ge 100 ]; do
    waited=$((waited + 1))
    sleep 0.05
  done
done
`;

const ADDRESS_SCRIPT = `#!/bin/sh
# What the DHCP client calls when it has an address, and when it has none any more.
case $1 in
deconfig)
  rm -f "/run/fluxvm-address-$interface"
  ip addr flush dev "$interface"
  ;;
bound | renew)
  ip addr add "$ip/$mask" dev "$interface" 2>/dev/null
  [ -z "$router" ] || ip route replace default via "\${router%% *}" dev "$interface"
  [ -z "$dns" ] || {
    for server in $dns; do echo "nameserver $server"; done >/etc/resolv.conf.new
    mv /etc/resolv.conf.new /etc/resolv.conf
  }
  : >"/run/fluxvm-address-$interface"
  ;;
esac
exit 0
`;

const SERVICE = `[Unit]
Description=Addresses of network cards
DefaultDependencies=no
After=local-fs.target
Before=network.target multi-user.target fluxvm-guest-agent.service
ConditionPathExistsGlob=/sys/class/net/*/device
Conflicts=shutdown.target
Before=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/${START}

[Install]
WantedBy=multi-user.target
`;

/** The DHCP client of a distribution; where the tools are one program, it is among them. */
export const DHCP_PACKAGE = "udhcpc";

/** Puts it into a tree, with the unit where systemd starts it. */
export async function addNetworkStart(tree: string, starter: "agent" | "systemd"): Promise<void> {
  await put(tree, START, START_SCRIPT, 0o755);
  await put(tree, ADDRESS, ADDRESS_SCRIPT, 0o755);
  if (starter === "agent") return;
  await put(tree, `${UNITS}/${UNIT}`, SERVICE, 0o644);
  await link(tree, `${UNITS}/multi-user.target.wants/${UNIT}`, `/${UNITS}/${UNIT}`);
  // Cards keep the names that the kernel gives them, so that none changes its name while it is brought up.
  await link(tree, "etc/systemd/network/99-default.link", "/dev/null");
}

async function put(tree: string, path: string, content: string, mode: number): Promise<void> {
  await mkdir(join(tree, dirname(path)), { recursive: true });
  await writeFile(join(tree, path), content);
  await chmod(join(tree, path), mode);
}

async function link(tree: string, path: string, target: string): Promise<void> {
  await mkdir(join(tree, dirname(path)), { recursive: true });
  await symlink(target, join(tree, path));
}
