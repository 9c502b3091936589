"""The lines for `ip` and `tc` that make a link and its limits.

A link is a pair of interfaces: `eth0` in the host, and a port with the host's name in the switch.
Each end limits its own sends, so the limit holds for each direction separately.
"""

from atomo_cluster.virtual.spec import VirtualHost

__all__ = ["BRIDGE", "PORT", "host_ip", "host_tc", "limit", "port_ip", "port_tc", "switch_ip"]

BRIDGE = "switch"
PORT = "eth0"  # name of the interface inside a host
QUEUE_MS = 100  # longest wait for a link with a limit; later packets are dropped
BURST_S = 1e-3  # in which a link may go faster; TCP needs a few packets of it
SMALLEST_BURST_BYTES = 16_384
DELAYED = 100_000  # packets in flight, more than any of these links holds


def switch_ip() -> list[str]:
    """Makes the bridge: it forwards without delay and sends no packets of its own."""
    return [
        f"link add {BRIDGE} type bridge forward_delay 0 mcast_snooping 0",
        f"link set {BRIDGE} addrgenmode none up",
    ]


def port_ip(host: VirtualHost, pid: int, mtu: int) -> list[str]:
    """Makes the link of a host; `pid` is a process in the network namespace of the host."""
    return [
        f"link add {host.name} mtu {mtu} type veth peer name {PORT} mtu {mtu} netns {pid}",
        f"link set {host.name} master {BRIDGE} addrgenmode none up",
    ]


def port_tc(host: VirtualHost, rate_bits: int) -> list[str]:
    """Limits the rate at which a host receives."""
    return [limit(host.name, rate_bits, delayed=False)]


def host_ip(host: VirtualHost, prefix_length: int) -> list[str]:
    """Configures a host's end of its link."""
    return [
        "link set lo up",
        f"link set {PORT} addrgenmode none",
        f"address add {host.address}/{prefix_length} dev {PORT}",
        f"link set {PORT} up",
    ]


def host_tc(rate_bits: int, latency_ms: float | None) -> list[str]:
    """Limits the rate at which a host sends, and delays its packets."""
    shaped = limit(PORT, rate_bits, delayed=latency_ms is not None)
    if latency_ms is None:
        return [shaped]
    delay = f"netem delay {latency_ms:g}ms limit {DELAYED}"
    return [f"qdisc replace dev {PORT} root handle 1: {delay}", shaped]


def limit(device: str, rate_bits: int, *, delayed: bool) -> str:
    """Returns the token bucket of one end; with a delay, packets enter it after the delay."""
    burst = max(SMALLEST_BURST_BYTES, round(rate_bits / 8 * BURST_S))
    at = "parent 1:1" if delayed else "root"
    bucket = f"tbf rate {rate_bits}bit burst {burst} latency {QUEUE_MS}ms"
    return f"qdisc replace dev {device} {at} handle 10: {bucket}"
