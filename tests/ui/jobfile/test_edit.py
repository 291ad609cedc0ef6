"""Keys of a job file changed in its text, and nothing else."""

from __future__ import annotations

import tomllib

import pytest

from wiiiiided.ui.jobfile.edit import NotEditable, changed

FILE = """\
# how we train
name = "digits"

[run]
command = ["python", "train.py"]  # no shell

[resources]
nodes = "2-4"   # as many as there are
use = ["a", "b"]

[network]  # slow
every = 4
"""


def test_a_value_is_replaced_where_it_stands() -> None:
    edited = changed(FILE, {("network", "every"): 16, ("resources", "nodes"): 3})
    expected = FILE.replace("every = 4", "every = 16").replace('nodes = "2-4"', "nodes = 3")
    assert edited == expected


def test_a_list_is_replaced_whole() -> None:
    edited = changed(FILE, {("resources", "use"): ["c"]})
    assert edited == FILE.replace('use = ["a", "b"]', 'use = ["c"]')


def test_a_new_key_goes_below_the_header_of_its_table() -> None:
    edited = changed(FILE, {("network", "gradients"): "int8"})
    assert edited == FILE.replace("[network]  # slow\n", '[network]  # slow\ngradients = "int8"\n')


def test_a_new_table_goes_to_the_end() -> None:
    text = 'name = "x"\n[run]\ncommand = ["a"]'  # without a last newline
    edited = changed(text, {("network", "gradients"): "int8", ("network", "every"): 8})
    assert edited == f'{text}\n\n[network]\nevery = 8\ngradients = "int8"\n'


def test_dotted_keys_and_other_line_ends_stay_as_they_are() -> None:
    text = 'name = "x"\r\nnetwork.codec = "none"\r\n[run]\r\ncommand = ["a"]\r\n'
    edited = changed(text, {("network", "every"): 8})
    assert tomllib.loads(edited)["network"] == {"codec": "none", "every": 8}
    assert edited.replace("network.every = 8\r\n", "") == text


def test_what_no_small_change_can_write_is_left_to_a_person() -> None:
    with pytest.raises(NotEditable, match=r"network\.every = 8 cannot be written there"):
        changed('network = { codec = "none" }\n', {("network", "every"): 8})


def test_a_key_in_a_comment_or_a_text_is_not_taken_for_one() -> None:
    text = 'name = """\n[network]\nevery = 4\n"""\n# [network]\n[network]\nevery = 4\n'
    edited = changed(text, {("network", "every"): 8})
    assert edited == text.removesuffix("every = 4\n") + "every = 8\n"
