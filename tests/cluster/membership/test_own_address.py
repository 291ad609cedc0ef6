"""Which address a machine takes by itself, and which it accepts when it is told one."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from wiiiiided.cluster.membership import own_address
from wiiiiided.errors import HostError, UsageError

CARD = "ip link add c{0} type veth peer name p{0} && ip link set c{0} up && ip link set p{0} up && "
DEFAULT = "ip route add default via 10.9.0.1 && "


def on_a_machine(setup: str, call: str) -> str:
    """What a call says on a machine with these cards and routes."""
    script = (
        "from wiiiiided.cluster.membership import own_address\n"
        "from wiiiiided.errors import WiiiiideError\n"
        f"try:\n    print(own_address.{call})\nexcept WiiiiideError as problem:\n    print(problem)"
    )
    command = f'ip link set lo up && {setup} exec "$0" -c "$1"'
    arguments = ["unshare", "--net", "sh", "-c", command, sys.executable, script]
    return subprocess.run(
        arguments, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


needs_namespaces = pytest.mark.needs("root", "ip", "unshare")


def card(number: int, *addresses: str) -> str:
    added = (f"ip addr add {address} dev c{number} nodad && " for address in addresses)
    return CARD.format(number) + "".join(added)


@needs_namespaces
def test_by_itself_it_is_the_address_of_the_default_route() -> None:
    cards = card(1, "10.9.0.5/24") + card(2, "10.8.0.5/24")
    assert on_a_machine(cards + DEFAULT, "by_default_route()") == "10.9.0.5"


@needs_namespaces
def test_where_there_is_ipv6_alone_it_is_that_one() -> None:
    cards = card(1, "fd09::5/64") + card(2, "fd08::5/64")
    default = "ip -6 route add default via fd09::1 && "
    assert on_a_machine(cards + default, "by_default_route()") == "fd09::5"


@needs_namespaces
def test_without_a_default_route_it_is_the_only_address() -> None:
    assert on_a_machine(card(1, "10.9.0.5/24"), "by_default_route()") == "10.9.0.5"


@needs_namespaces
def test_of_several_without_a_default_route_the_person_chooses() -> None:
    cards = card(1, "10.9.0.5/24") + card(2, "10.8.0.5/24", "fd08::5/64")
    said = on_a_machine(cards, "by_default_route()")
    assert "several addresses: 10.9.0.5, 10.8.0.5, fd08::5" in said
    assert "--address 10.9.0.5" in said


@needs_namespaces
def test_loopback_is_never_chosen() -> None:
    said = on_a_machine("", "by_default_route()")
    assert "no address that another one could reach" in said
    assert "--address 127.0.0.1" in said
    said = on_a_machine("ip route add default dev lo && ", "by_default_route()")
    assert "no address that another one could reach" in said


@needs_namespaces
def test_a_joiner_takes_the_address_that_leads_to_the_coordinator() -> None:
    cards = card(1, "10.9.0.5/24") + card(2, "10.8.0.5/24", "fd08::5/64") + DEFAULT
    assert on_a_machine(cards, "towards('10.8.0.1')") == "10.8.0.5"
    assert on_a_machine(cards, "towards('fd08::1')") == "fd08::5"


def test_a_way_that_stays_inside_the_machine_is_not_taken_by_itself() -> None:
    with pytest.raises(UsageError, match=r"begins at 127\.0\.0\.1.*--address"):
        own_address.towards("127.0.0.1")


@needs_namespaces
def test_an_address_of_this_machine_is_accepted_in_any_spelling() -> None:
    cards = card(1, "10.9.0.5/24", "fd09::5/64")
    assert on_a_machine(cards, "told('10.9.0.5')") == "10.9.0.5"
    assert on_a_machine(cards, "told('[FD09:0::5]')") == "fd09::5"
    assert on_a_machine(cards, "told('::ffff:10.9.0.5')") == "10.9.0.5"


@needs_namespaces
def test_an_address_of_another_machine_is_refused_with_those_there_are() -> None:
    said = on_a_machine(card(1, "10.9.0.5/24", "fd09::5/64"), "told('10.9.0.6')")
    assert said == "--address 10.9.0.6 is not of this machine; this machine has 10.9.0.5, fd09::5"


@pytest.mark.parametrize("text", ["127.0.0.1", "::1", "127.0.0.2"])
def test_loopback_is_accepted_when_it_is_told(text: str) -> None:
    assert own_address.told(text) == text


@pytest.mark.parametrize("text", ["0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "ff02::1"])
def test_what_is_not_one_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not one address"):
        own_address.told(text)


@pytest.mark.parametrize("text", ["here", "10.0.0", "10.0.0.1:9461", "x" * 10_000])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no IP address") as caught:
        own_address.told(text)
    assert len(str(caught.value)) < 200


def test_an_address_that_means_another_machine_on_every_link_is_refused() -> None:
    with pytest.raises(UsageError, match="on every link"):
        own_address.told("fe80::1")


def test_a_port_that_is_taken_is_said_before_anything_is_changed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HostError, match=f"port {port}: another program listens.*--port"):
            own_address.check_port("127.0.0.1", port)
    own_address.check_port("127.0.0.1", port)


@needs_namespaces
def test_the_interface_of_an_address_is_known_by_its_name() -> None:
    cards = card(1, "10.9.0.5/24", "fd09::5/64") + card(2, "10.8.0.5/24")
    call = "interface_of('10.8.0.5'), own_address.interface_of('fd09::5')"
    assert on_a_machine(cards, call) == "c2 c1"


def test_an_address_that_no_interface_has_gives_no_name() -> None:
    assert own_address.interface_of("127.0.0.1") == "lo"
    assert own_address.interface_of("192.0.2.77") == ""
