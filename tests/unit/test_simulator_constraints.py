"""Constraints of the simulated cluster: memory, licenses, partitions, QOS, reservations, time limits."""

from __future__ import annotations

import numpy as np

from slurm_energy.simulator.workload import workload


def test_requests_of_jobs_keep_their_rows_when_jobs_are_sorted_by_submission():
    jobs = workload(
        np.arange(4),
        {
            "submit_s": [20.0, 0.0, 10.0],
            "partition": [0, 1, -1],
            "unit_memory_gib": [1.0, np.nan, 3.0],
            "licenses": [[1, 0], [0, 2], [0, 0]],
        },
        {"units": [1, 2, 3], "time_s": [5.0, 5.0, 5.0]},
        partitions=("a", "b"),
        license_names=("x", "y"),
    )
    assert jobs.partition.tolist() == [1, -1, 0]
    assert jobs.licenses.tolist() == [[0, 2], [0, 0], [1, 0]]
    np.testing.assert_array_equal(jobs.unit_memory_gib, [np.nan, 3.0, 1.0])
    assert jobs.qos.tolist() == jobs.reservation.tolist() == [-1, -1, -1]
