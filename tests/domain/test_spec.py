"""Specs that were stored by an earlier version."""

from __future__ import annotations

import msgspec
import pytest

from wiiiiided.domain.spec import JobSpec, Network


def test_a_job_that_was_queued_with_a_key_of_another_release_can_be_read() -> None:
    stored = b'{"name":"a","run":{"command":["x"]},"network":{"colour":"red","encrypt":true}}'
    assert msgspec.json.decode(stored, type=JobSpec).network == Network(encrypt=True)


def test_elsewhere_what_is_unknown_is_no_spec() -> None:
    stored = b'{"name":"a","run":{"command":["x"],"colour":"red"}}'
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(stored, type=JobSpec)
