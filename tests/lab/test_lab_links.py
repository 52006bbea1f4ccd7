"""Tests of the emulated network between the nodes of a lab (a Slurm cluster with emulated nodes).

A packet must arrive at the right time. No packet may be lost, and their order must not change.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import UsageError
from slurm_energy_lab.interconnect.links import LinkSpec, Switch, parse_bandwidth, parse_latency

PACKETS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(20, 9000), st.floats(0, 0.01)), max_size=40
)


def test_a_packet_arrives_after_its_transfer_and_the_latency():
    switch = Switch(LinkSpec(0.005, 1e9))
    arrivals = [switch.send(0, 1, bytes(1250), 2.0), switch.send(0, 1, bytes(1250), 2.0)]
    assert arrivals == pytest.approx([2.005010, 2.005020])
    assert not list(switch.due(2.005))
    assert len(list(switch.due(2.0051))) == 2
    assert switch.next_s is None


def test_two_senders_share_the_link_of_the_receiver():
    switch = Switch(LinkSpec(0.0, 8e6))  # 1 ms per 1000 bytes
    assert switch.send(0, 2, bytes(1000), 0.0) == pytest.approx(0.001)
    assert switch.send(1, 2, bytes(1000), 0.0) == pytest.approx(0.002)
    assert switch.send(1, 0, bytes(1000), 0.0) == pytest.approx(0.002)


@examples(60)
@given(PACKETS, st.floats(0, 0.1), st.none() | st.floats(1e6, 1e10))
def test_packets_are_conserved_ordered_and_never_faster_than_the_link(packets, latency_s, bits_per_s):
    switch, now_s, sent = Switch(LinkSpec(latency_s, bits_per_s)), 0.0, []
    for number, (source, target, size, gap_s) in enumerate(packets):
        now_s += gap_s
        packet = number.to_bytes(4) + bytes(size - 4)
        minimum_s = now_s + latency_s + (size * 8 / bits_per_s if bits_per_s else 0)
        assert switch.send(source, target, packet, now_s) >= minimum_s * (1 - 1e-12)
        sent.append((source, target, packet))
    received = list(switch.due(float("inf")))
    assert sorted(received) == sorted((target, packet) for _, target, packet in sent)
    for pair in {(source, target) for source, target, _ in sent}:
        own = [packet for source, target, packet in sent if (source, target) == pair]
        assert [packet for target, packet in received if packet in own and target == pair[1]] == own


def test_durations_and_rates():
    assert parse_latency("200us") == pytest.approx(2e-4)
    assert parse_latency("5ms") == pytest.approx(5e-3)
    assert parse_latency("0ms") == 0
    assert parse_bandwidth("1gbit") == 1e9
    assert parse_bandwidth("100mbit") == 1e8
    for text in ("5", "-5ms", "11s", "ms"):
        with pytest.raises(UsageError):
            parse_latency(text)
    for text in ("5", "1kbit", "fast"):
        with pytest.raises(UsageError):
            parse_bandwidth(text)
