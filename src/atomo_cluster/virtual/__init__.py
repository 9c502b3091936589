"""Hosts on one Linux machine: own addresses, names, sshds and links with a limit.

A cluster is a tree of processes and a folder. At its root is the *switch*: the first process of a
PID namespace whose network namespace holds a bridge. Below it is one *host* each, the first
process of namespaces of its own (network, host name, mounts, PIDs), with an sshd. Nothing has a
name outside of these namespaces: no interface, no `ip netns` entry, no mount. So once the switch is
killed, the kernel removes the rest, all of it, whatever had happened before.

`up` keeps the switch on a line: it ends when `up` goes away before the cluster is complete. The
processes of a cluster are found by their command line, in which its folder stands, and never by
numbers that somebody noted.

errors < spec < links, namespaces, check, files < network, switch, host < lifecycle, status < cli
"""
