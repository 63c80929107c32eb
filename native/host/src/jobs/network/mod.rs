//! Jobs that make, raise and remove the links by which sandboxes are connected. Everything that is made carries a label
//! and a group from the first moment at which it could be left behind, and nothing without them is ever removed.

mod message;
mod netlink;
mod place;
#[cfg(test)]
mod tests;

use fluxvm_sys::namespaces;
use fluxvm_sys::tap::Tap;
use netlink::{Link, Netlink, NewLink};
use rustix::io::{Errno, Result};
use std::ffi::{CStr, CString};
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};

/// A tap device is for everybody who may open it, unless it is for one user.
const NO_OWNER: u32 = u32::MAX;
/// As the kernel calls it.
const MACVTAP: &str = "macvtap";
/// A bridge inside a namespace is the same for every guest, so that one that was restored elsewhere finds it.
const BRIDGE_MAC: [u8; 6] = [0x02, 0xfc, 0x00, 0x00, 0x00, 0x01];
/// What the first interfaces of the host may not be told, and what they do not tell. `{}` is the interface.
const HOST_SETTINGS: [(&str, &str); 9] = [
    ("ipv6/conf/{}/disable_ipv6", "1"),
    ("ipv4/conf/{}/rp_filter", "1"),
    ("ipv4/conf/{}/arp_ignore", "1"),
    ("ipv4/conf/{}/arp_announce", "2"),
    ("ipv4/conf/{}/accept_redirects", "0"),
    ("ipv4/conf/{}/secure_redirects", "0"),
    ("ipv4/conf/{}/send_redirects", "0"),
    ("ipv4/conf/{}/accept_source_route", "0"),
    ("ipv4/conf/{}/forwarding", "1"),
];
/// Of a fresh namespace, before there is a link.
const NAMESPACE_SETTINGS: [(&str, &str); 7] = [
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/default/accept_redirects", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/conf/default/accept_source_route", "0"),
];

/// The way of one sandbox: a pair of links between the host and a namespace, and for a machine a bridge there with a tap
/// device. Names of links are 15 bytes at most.
#[derive(Debug)]
pub struct Way {
    /// Where the namespace is pinned.
    pub namespace: CString,
    /// The host's end.
    pub link: CString,
    /// The other end.
    pub inner: CString,
    /// Empty: the sandbox is in the namespace itself.
    pub bridge: CString,
    /// Of the bridge.
    pub tap: CString,
    /// Says whose all of it is.
    pub label: CString,
    /// Of the host's end.
    pub group: u32,
    /// Of the host's end.
    pub host_address: u32,
    /// Of the namespace; 0: it has that of the sandbox.
    pub inner_address: u32,
    /// By which the sandbox is known outside.
    pub guest_address: u32,
    /// Of the bridge.
    pub bridge_address: u32,
    /// Of all of these.
    pub prefix_length: u32,
    /// Who may open the tap device.
    pub owner: u32,
    /// Pairs of queues of the tap device.
    pub queues: u32,
}

/// Makes a way, with the host's end down, and gives its number. What is left of an earlier one of the same label is
/// removed first. On failure nothing is left. `EXIST`: somebody else has one of the names.
pub fn make(way: Way) -> Result<u32> {
    remove(&way.namespace, &way.link, &way.label, way.group)?;
    place::on_own_thread(move || {
        let mut host = Netlink::open()?;
        let home = place::current()?;
        if fs::read("/proc/sys/net/ipv4/ip_forward").is_ok_and(|value| value.first() != Some(&b'1')) {
            place::set("ipv4/ip_forward", "1")?;
        }
        namespaces::own_network()?;
        furnish(&way)?;
        let namespace = place::current()?;
        send_out(&way, &home)?;
        namespaces::enter_network(&home)?;
        let index = index_of(&mut host, &text(&way.link)?)?;
        receive(&mut host, &way, index).and_then(|()| place::pin(&namespace, &way.namespace)).inspect_err(|_| {
            let _ = host.remove(index);
        })?;
        Ok(index)
    })
}

/// Everything in the new namespace, where the calling thread is.
fn furnish(way: &Way) -> Result<()> {
    for (name, value) in NAMESPACE_SETTINGS {
        place::set(name, value)?;
    }
    let is_router = !way.bridge.is_empty();
    place::set("ipv4/ip_forward", if is_router { "1" } else { "0" })?;
    for of in ["all", "default"] {
        // Addresses are translated on their way in, so that a router finds none where it looks for the way back.
        place::set(&format!("ipv4/conf/{of}/rp_filter"), if is_router { "0" } else { "1" })?;
    }
    let mut inside = Netlink::open()?;
    let (label, prefix) = (text(&way.label)?, prefix_of(way)?);
    let loopback = index_of(&mut inside, "lo")?;
    // Whoever removes the namespace knows it by this.
    inside.label(loopback, &label)?;
    inside.raise(loopback)?;
    let (outer, inner) = (text(&way.link)?, text(&way.inner)?);
    let new = |name| NewLink { name, group: way.group, mac: None };
    inside.make_pair(&NewLink { group: 0, ..new(&inner) }, &new(&outer))?;
    let outer = index_of(&mut inside, &outer)?;
    inside.label(outer, &label)?;
    let inner = index_of(&mut inside, &inner)?;
    let own = if is_router { way.inner_address } else { way.guest_address };
    inside.add_address(inner, Ipv4Addr::from_bits(own), prefix)?;
    inside.raise(inner)?;
    if is_router {
        make_bridge(&mut inside, way, prefix)?;
    }
    inside.add_default_route(inner, Ipv4Addr::from_bits(way.host_address))
}

/// The guest has another address inside than the one that it is known by, and its own way leads to it by both.
fn make_bridge(inside: &mut Netlink, way: &Way, prefix: u8) -> Result<()> {
    let (bridge, tap, inner) = (text(&way.bridge)?, text(&way.tap)?, text(&way.inner)?);
    inside.make_bridge(&NewLink { name: &bridge, group: 0, mac: Some(BRIDGE_MAC) })?;
    let bridge = index_of(inside, &bridge)?;
    inside.add_address(bridge, Ipv4Addr::from_bits(way.bridge_address), prefix)?;
    inside.raise(bridge)?;
    inside.add_link_route(bridge, Ipv4Addr::from_bits(way.guest_address))?;
    // The namespace answers for the guest when the host asks who has that address, and at once.
    place::set(&format!("ipv4/neigh/{inner}/proxy_delay"), "0")?;
    place::set(&format!("ipv4/conf/{inner}/proxy_arp"), "1")?;
    Tap::attach(&tap, way.queues > 1)?.keep(owner(way.owner))?;
    let tap = index_of(inside, &tap)?;
    inside.join(tap, bridge)?;
    inside.raise(tap)
}

/// Hands the host's end over to the host; it keeps its label and its group.
fn send_out(way: &Way, home: &OwnedFd) -> Result<()> {
    let mut inside = Netlink::open()?;
    let outer = index_of(&mut inside, &text(&way.link)?)?;
    inside.send_to(outer, home.as_fd())
}

/// What the host does with its end; the calling thread is in the host's namespace.
fn receive(host: &mut Netlink, way: &Way, index: u32) -> Result<()> {
    let name = text(&way.link)?;
    for (setting, value) in HOST_SETTINGS {
        place::set(&setting.replace("{}", &name), value)?;
    }
    host.set_group(index, way.group)?;
    host.add_address(index, Ipv4Addr::from_bits(way.host_address), prefix_of(way)?)
}

/// Removes a link and lets a namespace go, as far as they are there and are what the label says; either name may be
/// empty. `EXIST`: one of them is somebody else's. 1: something was there.
pub fn remove(namespace: &CStr, link: &CStr, label: &CStr, group: u32) -> Result<u64> {
    let (name, label) = (text(link)?, text(label)?);
    let mut found = 0;
    if !name.is_empty() {
        let mut here = Netlink::open()?;
        if let Some(link) = here.link(&name)? {
            if !is_of(&link, &label, group) {
                return Err(Errno::EXIST);
            }
            here.remove(link.index)?;
            found = 1;
        }
    }
    if namespace.is_empty() {
        return Ok(found);
    }
    if place::is_pinned(namespace)? {
        let named = place::inside(namespace, || Netlink::open()?.link("lo"))?;
        if named.and_then(|link| link.label) != Some(label) {
            return Err(Errno::EXIST);
        }
        found = 1;
    }
    place::unpin(namespace)?;
    Ok(found)
}

/// A link that was cut short before it had its label has its group.
fn is_of(link: &Link, label: &str, group: u32) -> bool {
    match &link.label {
        Some(found) => found == label,
        None => group != 0 && link.group == group,
    }
}

/// Sets a link of this namespace up. `NODEV`: there is none; `EXIST`: its label says that it is another.
pub fn raise(link: &CStr, label: &CStr) -> Result<()> {
    let mut here = Netlink::open()?;
    let (link, label) = (here.link(&text(link)?)?.ok_or(Errno::NODEV)?, text(label)?);
    if !label.is_empty() && link.label != Some(label) {
        return Err(Errno::EXIST);
    }
    here.raise(link.index)
}

/// Number and group of a link of this namespace, its state and its kind, as the schema has them. `NODEV`: there is none.
pub fn facts(link: &CStr, label: &CStr) -> Result<[u64; 4]> {
    let link = Netlink::open()?.link(&text(link)?)?.ok_or(Errno::NODEV)?;
    let is_labelled = link.label == Some(text(label)?);
    let state = u64::from(is_labelled) | u64::from(link.is_up) << 1;
    let kind = match link.kind.as_deref() {
        Some("bridge") => 1,
        Some("tun") => 2,
        Some(MACVTAP) => 3,
        _ => 0,
    };
    Ok([u64::from(link.index), u64::from(link.group), state, kind])
}

/// Puts a link of this namespace into a group.
pub fn set_group(link: &CStr, group: u32) -> Result<()> {
    let mut here = Netlink::open()?;
    let link = here.link(&text(link)?)?.ok_or(Errno::NODEV)?;
    here.set_group(link.index, group)
}

/// A link of this namespace that is to be made beside those of an operator.
#[derive(Debug)]
pub struct Beside {
    /// Its name.
    pub link: CString,
    /// Says whose it is.
    pub label: CString,
    /// Its group.
    pub group: u32,
    /// The bridge that it joins, or the link that it lies on.
    pub lower: CString,
}

/// Makes a tap device that is down and part of a bridge; gives its number. It is kept only once it is labelled.
pub fn make_tap(new: &Beside, uid: u32, queues: u32) -> Result<u32> {
    remove(c"", &new.link, &new.label, new.group)?;
    let mut here = Netlink::open()?;
    let bridge = index_of(&mut here, &text(&new.lower)?)?;
    let name = text(&new.link)?;
    let tap = Tap::attach(&name, queues > 1)?;
    let index = index_of(&mut here, &name)?;
    here.label(index, &text(&new.label)?)?;
    here.set_group(index, new.group)?;
    here.join(index, bridge)?;
    place::set(&format!("ipv6/conf/{name}/disable_ipv6"), "1")?;
    tap.keep(owner(uid))?;
    Ok(index)
}

/// Makes a macvtap that is down, with the hardware address of its guest; gives its number.
pub fn make_macvtap(new: &Beside, mac: u64) -> Result<u32> {
    remove(c"", &new.link, &new.label, new.group)?;
    let mut here = Netlink::open()?;
    let lower = index_of(&mut here, &text(&new.lower)?)?;
    let name = text(&new.link)?;
    let [_, _, mac @ ..] = mac.to_be_bytes();
    here.make_macvtap(&NewLink { name: &name, group: new.group, mac: Some(mac) }, lower)?;
    let index = index_of(&mut here, &name)?;
    let named = here.label(index, &text(&new.label)?);
    named.and_then(|()| place::set(&format!("ipv6/conf/{name}/disable_ipv6"), "1")).inspect_err(|_| {
        let _ = here.remove(index);
    })?;
    Ok(index)
}

/// Attaches to a queue of a tap device in a pinned namespace, or here; gives the descriptor, which the caller then owns.
pub fn open_tap(namespace: &CStr, link: &CStr, is_multiqueue: bool) -> Result<i32> {
    let name = text(link)?;
    let attached = place::inside(namespace, move || {
        // Attaching alone would make one that leads nowhere.
        let link = Netlink::open()?.link(&name)?.ok_or(Errno::NODEV)?;
        match link.kind.as_deref() {
            Some(MACVTAP) => Tap::attach_macvtap(&format!("/dev/tap{}", link.index), &name, is_multiqueue),
            _ => Tap::attach(&name, is_multiqueue),
        }
    })?;
    Ok(OwnedFd::from(attached).into_raw_fd())
}

/// Whether a link of this namespace has the address.
pub fn has_address(address: u32) -> Result<bool> {
    Netlink::open()?.has_address(Ipv4Addr::from_bits(address))
}

/// `NODEV`: there is no such link.
fn index_of(netlink: &mut Netlink, name: &str) -> Result<u32> {
    netlink.link(name)?.map(|link| link.index).ok_or(Errno::NODEV)
}

fn prefix_of(way: &Way) -> Result<u8> {
    u8::try_from(way.prefix_length).map_err(|_| Errno::INVAL)
}

fn owner(uid: u32) -> Option<u32> {
    (uid != NO_OWNER).then_some(uid)
}

fn text(text: &CStr) -> Result<String> {
    text.to_str().map(str::to_owned).map_err(|_| Errno::INVAL)
}
