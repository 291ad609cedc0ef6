"""Orders, claims and ends between daemons and shims of different versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.shims import Attempt
from wiiiiided.cluster.shim import protocol

OLD: dict[str, Any] = {  # as the version before endpoints wrote it
    "job": 7,
    "attempt": 1,
    "name": "x",
    "argv": ["true"],
    "work": "/w",
    "env": {},
    "world_size": 1,
    "first_rank": 0,
    "workers": 1,
    "node": "a",
    "format": 1,
}


def test_an_order_of_before_means_what_it_meant() -> None:
    order = protocol.from_bytes(protocol.LaunchOrder, json.dumps(OLD).encode())
    assert (order.door, order.head, order.interface, order.alone_s) == ("", "", "", 0.0)


def test_an_order_with_more_than_this_version_knows_is_obeyed() -> None:
    order = protocol.from_bytes(protocol.LaunchOrder, json.dumps({**OLD, "later": [1]}).encode())
    assert order.argv == ["true"]


def test_an_order_of_a_later_format_is_refused() -> None:
    with pytest.raises(protocol.UnreadableFile, match="format 3"):
        protocol.from_bytes(protocol.LaunchOrder, json.dumps({**OLD, "format": 3}).encode())


def test_an_order_with_an_endpoint_is_of_a_format_that_earlier_shims_refuse(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["true"], door="127.0.0.1:9", format=protocol.WITH_ENDPOINT) as attempt:
        assert attempt.run().code == 0
    assert protocol.WITH_ENDPOINT != 1


@pytest.mark.parametrize(
    ("endpoint", "parts"),
    [
        ("10.0.0.5:9461", ("10.0.0.5", 9461)),
        ("[fd00::5]:9461", ("fd00::5", 9461)),
    ],
)
def test_an_endpoint_has_two_parts(endpoint: str, parts: tuple[str, int]) -> None:
    assert protocol.host_and_port(endpoint) == parts


@pytest.mark.parametrize("endpoint", ["", "a", ":1", "a:", "a:b", "a:0", "a:65536", "a:-1"])
def test_what_is_no_endpoint_is_said_to_be_none(endpoint: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        protocol.host_and_port(endpoint)


@pytest.mark.parametrize(
    "fields", [{"door": "nowhere"}, {"door": "10.0.0.1:1", "head": "nowhere", "node_index": 1}]
)
def test_a_shim_says_what_is_wrong_with_its_endpoint(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    with Attempt(tmp_path, ["true"], **fields) as attempt:
        end = attempt.run()
        assert (end.code, end.codes) == (125, {})
        assert "'nowhere'" in end.reason
