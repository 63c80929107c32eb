//! A sandbox in a network that was made for it: it has what is there and changes nothing of it.

use crate::Case;
use crate::fixture::{Place, Sandbox};
use serde_json::json;
use std::process::Command;

pub const CASES: &[Case] = &[
    ("networks: a sandbox is in the namespace that was made for it, and resolves names where it says", joined),
    ("networks: a namespace that is not there is no sandbox", missing),
];

/// A namespace with one interface, gone when it is dropped.
struct Namespace(String);

impl Namespace {
    fn new() -> Self {
        let name = format!("procbox-test-{}", std::process::id());
        ip(&["netns", "add", &name]);
        let namespace = Self(name);
        let inside = |arguments: &[&str]| ip(&[&["-n", namespace.0.as_str()], arguments].concat());
        inside(&["link", "add", "vnsandbox", "type", "veth", "peer", "name", "vhsandbox"]);
        inside(&["addr", "add", "169.254.9.3/28", "dev", "vnsandbox"]);
        inside(&["link", "set", "vnsandbox", "up"]);
        namespace
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
}

fn place_in(namespace: &str) -> Place {
    Place::new().with(|config| {
        config["net_ports"] = json!([443]);
        config["network"] = json!({"namespace": format!("/run/netns/{namespace}"), "resolver": "169.254.9.1"});
    })
}

fn joined() {
    let namespace = Namespace::new();
    let sandbox = Sandbox::of(place_in(&namespace.0));
    assert_eq!(sandbox.report["enforcement"]["network_isolated"], true);
    assert_eq!(sandbox.output("cat /etc/resolv.conf"), "nameserver 169.254.9.1");
    assert_eq!(sandbox.output("grep -c -e vnsandbox -e vhsandbox /proc/net/dev"), "2");
    let other = "ip netns add x; ip link set vnsandbox down; ip addr flush dev vnsandbox; nft flush ruleset";
    sandbox.run(&format!("({other}) 2>/dev/null; echo 0 > /proc/sys/net/ipv4/ip_forward"));
    assert_eq!(sandbox.output("grep -c 169.254.9.3 /proc/net/fib_trie"), "2");
    let refused = sandbox.run("bash -c 'exec 3<>/dev/tcp/127.0.0.1/9' 2>&1 | grep -q refused && echo refused");
    assert_eq!(refused.stdout, "refused\n", "its own loopback is up");
}

fn missing() {
    let failure = place_in("procbox-test-none").launch().err().expect("there is no such namespace");
    assert_eq!(failure.1["ok"], false);
    assert!(failure.1["message"].as_str().unwrap().contains("joining the network"), "{}", failure.1);
}
