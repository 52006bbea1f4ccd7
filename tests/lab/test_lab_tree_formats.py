"""Tests of writing and reading CPU sets and numbers in the formats of the kernel's files."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy_lab.tree import kernel_parsers
from slurm_energy_lab.tree.cpu_lists import format_list, format_mask, parse_list


@pytest.mark.parametrize(
    ("cpus", "count", "listing", "mask"),
    [
        ([0], 8, "0", "01"),
        ([0, 1, 2, 3, 8], 16, "0-3,8", "010f"),
        ([0, 64], 128, "0,64", "00000000,00000001,00000000,00000001"),
        ([32, 33], 40, "32-33", "03,00000000"),
        ([], 4, "", "0"),
    ],
)
def test_sets_look_as_the_kernel_prints_them(cpus, count, listing, mask):
    assert format_list(cpus) == listing
    assert format_mask(cpus, count) == mask


@given(st.sets(st.integers(0, 500), min_size=1))
def test_lists_read_back(cpus):
    assert parse_list(format_list(cpus)) == tuple(sorted(cpus))


@given(st.sets(st.integers(0, 300)))
def test_masks_hold_one_bit_per_cpu(cpus):
    value = int(format_mask(cpus, 301).replace(",", ""), 16)
    assert {bit for bit in range(301) if value >> bit & 1} == cpus


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "0-99999999", "1,,2", "-1"])
def test_bad_lists_are_refused(text):
    with pytest.raises(UsageError, match="CPU list"):
        parse_list(text)


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"0", 0), (b"150000000\n", 150000000), (b"+7", 7), (b"125\0", 125), (b"5\n\0junk", 5)],
)
def test_decimal_numbers(data, value):
    assert kernel_parsers.decimal_u64(data) == value


@pytest.mark.parametrize(
    "data", [b"", b"-5", b"0x10", b" 5", b"5 ", b"5\n\n", b"1e6", b"15W", b"1_000", b"\xd9\xa3"]
)
def test_decimal_refuses(data):
    with pytest.raises(OSError) as caught:
        kernel_parsers.decimal_u64(data)
    assert caught.value.errno == errno.EINVAL


def test_decimal_range():
    assert kernel_parsers.decimal_u64(b"18446744073709551615") == 2**64 - 1
    with pytest.raises(OSError) as caught:
        kernel_parsers.decimal_u64(b"18446744073709551616")
    assert caught.value.errno == errno.ERANGE


@pytest.mark.parametrize(("data", "value"), [(b"0x10", 16), (b"010\n", 8), (b"10", 10), (b"0", 0)])
def test_numbers_of_any_base(data, value):
    assert kernel_parsers.any_base_unsigned(data) == value


@pytest.mark.parametrize("data", [b"08", b"0xg", b"", b"-1", b"10 20"])
def test_any_base_refuses(data):
    with pytest.raises(OSError) as caught:
        kernel_parsers.any_base_unsigned(data)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"1", True), (b"Y\n", True), (b"on", True), (b"off", False), (b"0\n", False), (b"n", False)],
)
def test_booleans(data, value):
    assert kernel_parsers.boolean(data) is value


@pytest.mark.parametrize("data", [b"", b"2", b"o", b" 1"])
def test_booleans_refuse(data):
    with pytest.raises(OSError):
        kernel_parsers.boolean(data)


def test_words_are_cut_like_scanf():
    assert kernel_parsers.word(b"  powersave and more\n", 15) == "powersave"
    assert kernel_parsers.word(b"a" * 40, 15) == "a" * 15
    with pytest.raises(OSError):
        kernel_parsers.word(b" \n", 15)
