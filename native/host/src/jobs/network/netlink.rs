//! Route netlink, one request and its answer at a time: links, their addresses and routes in the network namespace where
//! the socket was opened, wherever its thread is now. What goes over it is in `message`.

use super::message::{Attributes, Message, Request, find};
use libc::{
    AF_INET, IFA_ADDRESS, IFA_LOCAL, IFF_UP, IFLA_ADDRESS, IFLA_GROUP, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_DATA,
    IFLA_INFO_KIND, IFLA_LINK, IFLA_LINKINFO, IFLA_MASTER, IFLA_NET_NS_FD, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP,
    NLM_F_EXCL, NLMSG_DONE, NLMSG_ERROR, RT_SCOPE_LINK, RT_SCOPE_UNIVERSE, RT_TABLE_MAIN, RTA_DST, RTA_GATEWAY,
    RTA_OIF, RTM_DELLINK, RTM_GETADDR, RTM_GETLINK, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE, RTM_SETLINK, RTN_UNICAST,
    RTPROT_STATIC,
};
use rustix::io::{Errno, Result};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// The kernel's answers to one request fit in this, piece by piece.
const RECEIVE_BYTES: usize = 64 << 10;
// From linux/if_link.h and linux/veth.h.
const VETH_INFO_PEER: u16 = 1;
const IFLA_BR_FORWARD_DELAY: u16 = 1;
const IFLA_BR_MCAST_SNOOPING: u16 = 23;
const IFLA_MACVLAN_MODE: u16 = 1;
const MACVLAN_MODE_BRIDGE: u32 = 4;

/// What is known of a link.
pub struct Link {
    /// Its number in its namespace.
    pub index: u32,
    /// Free text of whoever made it.
    pub label: Option<String>,
    /// 0 where nobody set one.
    pub group: u32,
    /// Set up by whoever manages it.
    pub is_up: bool,
    /// As the kernel calls it; none: the driver of a device.
    pub kind: Option<String>,
}

/// How a link is first: with its name and group from the first moment on.
pub struct NewLink<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its group.
    pub group: u32,
    /// Its hardware address; none: the kernel chooses one.
    pub mac: Option<[u8; 6]>,
}

/// A socket to the kernel.
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// A socket in the calling thread's network namespace.
    pub fn open() -> Result<Self> {
        // No protocol is the one of routes.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The link of that name, if there is one.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>> {
        let mut request = Request::of_link(RTM_GETLINK, 0, 0, 0);
        request.attributes.text(IFLA_IFNAME, name);
        match self.ask(request, 0) {
            Err(Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
            Ok(answers) => answers.first().map(link_of).transpose(),
        }
    }

    /// Makes a pair of Ethernet links; both are down.
    pub fn make_pair(&mut self, one: &NewLink<'_>, other: &NewLink<'_>) -> Result<()> {
        self.make(one, "veth", None, |data| {
            data.nest(VETH_INFO_PEER, |peer| {
                peer.link_header(0, 0, 0);
                other.describe(peer);
            });
        })
    }

    /// Makes a bridge that forwards at once and takes part in no protocol.
    pub fn make_bridge(&mut self, new: &NewLink<'_>) -> Result<()> {
        self.make(new, "bridge", None, |data| {
            data.u32(IFLA_BR_FORWARD_DELAY, 0);
            data.bytes(IFLA_BR_MCAST_SNOOPING, &[0]);
        })
    }

    /// Makes a macvtap on the link `lower`; its neighbours there see it, and it them.
    pub fn make_macvtap(&mut self, new: &NewLink<'_>, lower: u32) -> Result<()> {
        self.make(new, "macvtap", Some(lower), |data| data.u32(IFLA_MACVLAN_MODE, MACVLAN_MODE_BRIDGE))
    }

    fn make(
        &mut self,
        new: &NewLink<'_>,
        kind: &str,
        lower: Option<u32>,
        data: impl FnOnce(&mut Attributes),
    ) -> Result<()> {
        let mut request = Request::of_link(RTM_NEWLINK, 0, 0, 0);
        new.describe(&mut request.attributes);
        if let Some(lower) = lower {
            request.attributes.u32(IFLA_LINK, lower);
        }
        request.attributes.nest(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, kind);
            info.nest(IFLA_INFO_DATA, data);
        });
        self.ask(request, NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// Says whose a link is.
    pub fn label(&mut self, index: u32, label: &str) -> Result<()> {
        self.change(index, |attributes| attributes.text(IFLA_IFALIAS, label))
    }

    /// Puts a link into a group.
    pub fn set_group(&mut self, index: u32, group: u32) -> Result<()> {
        self.change(index, |attributes| attributes.u32(IFLA_GROUP, group))
    }

    /// Makes a link a port of a bridge.
    pub fn join(&mut self, index: u32, bridge: u32) -> Result<()> {
        self.change(index, |attributes| attributes.u32(IFLA_MASTER, bridge))
    }

    /// Moves a link to another namespace, where it is down; it keeps its name, or the move fails.
    pub fn send_to(&mut self, index: u32, namespace: BorrowedFd<'_>) -> Result<()> {
        let namespace = namespace.as_raw_fd().cast_unsigned();
        self.change(index, |attributes| attributes.u32(IFLA_NET_NS_FD, namespace))
    }

    fn change(&mut self, index: u32, describe: impl FnOnce(&mut Attributes)) -> Result<()> {
        let mut request = Request::of_link(RTM_SETLINK, index, 0, 0);
        describe(&mut request.attributes);
        self.ask(request, 0).map(drop)
    }

    /// Sets a link up.
    pub fn raise(&mut self, index: u32) -> Result<()> {
        let up = IFF_UP.cast_unsigned();
        self.ask(Request::of_link(RTM_SETLINK, index, up, up), 0).map(drop)
    }

    /// Removes a link; one that is gone already is removed.
    pub fn remove(&mut self, index: u32) -> Result<()> {
        match self.ask(Request::of_link(RTM_DELLINK, index, 0, 0), 0) {
            Err(Errno::NODEV) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Gives a link an address of the network that has the `prefix` first bits of it.
    pub fn add_address(&mut self, index: u32, address: Ipv4Addr, prefix: u8) -> Result<()> {
        let mut request = Request::of_address(RTM_NEWADDR, index, prefix);
        request.attributes.bytes(IFA_LOCAL, &address.octets());
        request.attributes.bytes(IFA_ADDRESS, &address.octets());
        self.ask(request, NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// Whether a link here has this address.
    pub fn has_address(&mut self, wanted: Ipv4Addr) -> Result<bool> {
        let answers = self.ask(Request::of_address(RTM_GETADDR, 0, 0), NLM_F_DUMP)?;
        Ok(answers.iter().filter_map(|answer| answer.attribute(IFA_LOCAL)).any(|found| found == wanted.octets()))
    }

    /// Sends everything without another way to `gateway` on the link.
    pub fn add_default_route(&mut self, index: u32, gateway: Ipv4Addr) -> Result<()> {
        let mut request = new_route(RT_SCOPE_UNIVERSE, 0);
        request.attributes.bytes(RTA_GATEWAY, &gateway.octets());
        request.attributes.u32(RTA_OIF, index);
        self.ask(request, NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// Sends what is for `address` out of the link.
    pub fn add_link_route(&mut self, index: u32, address: Ipv4Addr) -> Result<()> {
        let mut request = new_route(RT_SCOPE_LINK, 32);
        request.attributes.bytes(RTA_DST, &address.octets());
        request.attributes.u32(RTA_OIF, index);
        self.ask(request, NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// Sends a request and receives all that the kernel says to it.
    fn ask(&mut self, request: Request, flags: i32) -> Result<Vec<Message>> {
        self.sequence += 1;
        let wants_end = if flags & NLM_F_DUMP == NLM_F_DUMP { 0 } else { NLM_F_ACK };
        send(&self.socket, &request.encode(flags | wants_end, self.sequence), SendFlags::empty())?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; RECEIVE_BYTES];
        loop {
            let (count, _) = recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty())?;
            for message in Message::all_in(buffer.get(..count).ok_or(Errno::IO)?)? {
                match i32::from(message.kind) {
                    _ if message.sequence != self.sequence => {}
                    NLMSG_DONE => return Ok(answers),
                    NLMSG_ERROR => return message.error().map(|()| answers),
                    _ => answers.push(message),
                }
            }
        }
    }
}

impl NewLink<'_> {
    fn describe(&self, attributes: &mut Attributes) {
        attributes.text(IFLA_IFNAME, self.name);
        attributes.u32(IFLA_GROUP, self.group);
        if let Some(mac) = self.mac {
            attributes.bytes(IFLA_ADDRESS, &mac);
        }
    }
}

fn new_route(scope: u8, prefix: u8) -> Request {
    let family = AF_INET as u8;
    let [zero, table] = [0, RT_TABLE_MAIN];
    let header = [family, prefix, zero, zero, table, RTPROT_STATIC, scope, RTN_UNICAST, zero, zero, zero, zero];
    Request::new(RTM_NEWROUTE, &header)
}

fn link_of(message: &Message) -> Result<Link> {
    let (index, flags) = message.link_header()?;
    let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes.strip_suffix(&[0]).unwrap_or(bytes)).into_owned();
    let kind = message.attribute(IFLA_LINKINFO).and_then(|info| find(info, IFLA_INFO_KIND));
    let group = message.attribute(IFLA_GROUP).and_then(|bytes| bytes.try_into().ok());
    Ok(Link {
        index,
        label: message.attribute(IFLA_IFALIAS).map(text_of),
        group: group.map_or(0, u32::from_ne_bytes),
        is_up: flags & IFF_UP.cast_unsigned() != 0,
        kind: kind.map(text_of),
    })
}
