"""Compiled sets of numbers, stored as bits.

Members are added, removed and found in order in a few nanoseconds. A set of n numbers has three arrays.
`words`, shape (n / 64,), has one bit per number. `sums`, shape (n / 4096,), has one bit per word, set if the
word is not 0. `counts`, shape (n / 4096,), is the number of members per word of `sums`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.scheduling.queue import Ints
from slurm_energy.simulator.kernels.compiled import compiled

Words = NDArray[np.uint64]

_ONE, _ALL, _ZERO = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0)
_PAIRS, _QUADS, _BYTES = (
    np.uint64(0x5555555555555555),
    np.uint64(0x3333333333333333),
    np.uint64(0x0F0F0F0F0F0F0F0F),
)
_EACH_BYTE = np.uint64(0x0101010101010101)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_TOP = np.uint64(58)


def _positions() -> Ints:
    """Return the table of bit positions for a word with one bit set.

    The index into the table is the top six bits of the product of the word and `_DE_BRUIJN`.
    """
    table = np.zeros(64, np.int64)
    for bit in range(64):
        product = (int(_DE_BRUIJN) << bit) & int(_ALL)
        table[product >> int(_TOP)] = bit
    return table


_POSITION = _positions()


class BitSet(NamedTuple):
    """Set of numbers from 0 to n - 1, stored as bits.

    The docstring of the module explains the arrays `words`, `sums` and `counts`.
    """

    words: Words
    sums: Words
    counts: Ints


def empty_set(size: int) -> BitSet:
    """Return an empty set of numbers, with room for the numbers from 0 to `size` - 1."""
    words = size // 64 + 1
    sums = words // 64 + 1
    return BitSet(np.zeros(sums * 64, np.uint64), np.zeros(sums, np.uint64), np.zeros(sums, np.int64))


@compiled
def add(bits: BitSet, number: int) -> None:
    """Add a number to a set that does not contain this number yet."""
    word = number >> 6
    bits.words[word] |= _ONE << np.uint64(number & 63)
    bits.sums[word >> 6] |= _ONE << np.uint64(word & 63)
    bits.counts[word >> 6] += 1


@compiled
def remove(bits: BitSet, number: int) -> None:
    """Remove a number that is in the set."""
    word = number >> 6
    bits.words[word] &= ~(_ONE << np.uint64(number & 63))
    if bits.words[word] == _ZERO:
        bits.sums[word >> 6] &= ~(_ONE << np.uint64(word & 63))
    bits.counts[word >> 6] -= 1


@compiled
def following(bits: BitSet, number: int) -> int:
    """Return the smallest member of a bit set that is at least `number`; -1 if there is none."""
    word = number >> 6
    if word >= len(bits.words):
        return -1
    left = bits.words[word] & (_ALL << np.uint64(number & 63))
    if left != _ZERO:
        return (word << 6) + _lowest(left)
    word += 1
    index = word >> 6
    if index >= len(bits.sums):
        return -1
    left = bits.sums[index] & (_ALL << np.uint64(word & 63))
    while left == _ZERO:
        index += 1
        if index >= len(bits.sums):
            return -1
        left = bits.sums[index]
    word = (index << 6) + _lowest(left)
    return (word << 6) + _lowest(bits.words[word])


@compiled
def member(bits: BitSet, place: int) -> int:
    """Return the member of a bit set at index `place`, in ascending order of the members.

    Index 0 is the smallest member. The set must have more than `place` members.
    """
    index = 0
    while place >= bits.counts[index]:
        place -= bits.counts[index]
        index += 1
    word = index << 6
    while True:
        count = _count(bits.words[word])
        if place < count:
            break
        place -= count
        word += 1
    left = bits.words[word]
    for _ in range(place):
        left &= left - _ONE
    return (word << 6) + _lowest(left)


@compiled
def _lowest(word: np.uint64) -> int:
    """Return the position of the lowest set bit of a word. The word must not be 0."""
    return int(_POSITION[((word & (~word + _ONE)) * _DE_BRUIJN) >> _TOP])


@compiled
def _count(word: np.uint64) -> int:
    """Return how many bits of a 64-bit word are set."""
    word -= (word >> _ONE) & _PAIRS
    word = (word & _QUADS) + ((word >> np.uint64(2)) & _QUADS)
    word = (word + (word >> np.uint64(4))) & _BYTES
    return int((word * _EACH_BYTE) >> np.uint64(56))
