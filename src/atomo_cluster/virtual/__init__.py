"""Hosts on one Linux machine: own addresses, names, sshds and links with limited rates.

A cluster is a tree of processes and a folder. The root is the *switch*: the first process of a PID
namespace whose network namespace has a bridge. Below it is one *host* process each, the first
process of its own namespaces (network, host name, mounts, PIDs), with an sshd. Nothing has a name
outside of these namespaces: no interface, no `ip netns` entry, no mount. When the switch is killed,
the kernel removes all the rest, whatever happened before.

`up` holds a pipe to the switch: the switch ends if `up` ends before the cluster is complete. The
processes of a cluster are found by their command lines, which contain the folder, and never by
stored process ids.

errors < spec < links, namespaces, check, files < network, switch, host < lifecycle, status < cli
"""
