"""Example records for tests of database access, record store and controller.

The module also has a database that stores these records.
"""

from __future__ import annotations

import contextlib
import functools
import json
import uuid
from pathlib import Path

from slurm_energy.accounting import engine
from slurm_energy.accounting.records import job_facts, record_queries, record_store
from slurm_energy.accounting.records.record_selection import RecordSelection
from slurm_energy.accounting.schema import migrations
from slurm_energy.records import ComponentEnergy, EnergyRecord
from slurm_energy.slurm.job_accounting import JobFacts

NOW = 1_800_000_000.0


def record(job_id=1, start=1000.0, end=1100.0, node="n1", uid=1000, **more):
    """Return a record as JSON data; `job_id`, times and node make it unique."""
    components = (ComponentEnergy("cpu", 50.0, "powercap:intel-rapl"), ComponentEnergy("gpu[0]", None, None))
    made = EnergyRecord(
        cluster=more.pop("cluster", "c1"),
        node=node,
        job_id=job_id,
        uid=uid,
        policy=more.pop("policy", "edp"),
        start=start,
        end=end,
        components=components,
        record_id=more.pop("record_id", uuid.uuid4().hex),
        **more,
    )
    return made.to_json()


def item(data=None, trace=None, **more):
    return {"record": record(**more) if data is None else data, "trace": trace}


def job(job_id, display_id=None, submit=900.0, start=1000.0, end=1100.0, **more):
    values = {
        "cluster": "c1",
        "name": f"job{job_id}",
        "account": "physics",
        "partition": "cpu",
        "user": "alice",
        "state": "COMPLETED",
        "elapsed_s": 100.0,
        "nodes": 1,
    } | more
    return JobFacts(
        job_id=job_id, display_id=display_id or str(job_id), submit=submit, start=start, end=end, **values
    )


@functools.cache
def _pool(location, read_only):
    return engine.Database(location, read_only=read_only)


class Accounting:
    """A database for tests, with functions that store and read data as senergyctld does.

    Args:
        location: directory in which a new SQLite file is made, or URL of an empty database on a server.
    """

    def __init__(self, location: Path | str) -> None:
        self.path = location
        if isinstance(location, Path):
            self.path = location / "senergy.db"
            migrations.prepare(self.path)

    @contextlib.contextmanager
    def connect(self, *, read_only=False):
        """Open a connection to the database.

        A SQLite file is opened anew. For a server, the connection comes from a pool.
        """
        if "://" not in str(self.path):
            with engine.connect(self.path, read_only=read_only) as connection:
                yield connection
        else:
            with _pool(self.path, read_only).connect() as connection:
                yield connection

    def deliver(self, *entries, now=NOW):
        items, refusals = record_store.read_items(list(entries))
        assert not refusals, refusals
        with self.connect() as connection:
            accepted, refusals = record_store.store(connection, items, now)
        assert not refusals, refusals
        return accepted

    def learn(self, *known, now=NOW):
        answer = {}
        for one in known:
            answer.setdefault(one.job_id, []).append(one)
        with self.connect() as connection:
            return job_facts.store(connection, answer, job_facts.pending_lookups(connection, 0.0), now)

    def find(self, selection=None, *, with_traces=False, **query):
        selection = selection or RecordSelection.from_query(query)
        with self.connect(read_only=True) as connection:
            record_queries.refuse_jobs_of_others(connection, selection)
            ids = record_queries.find_records(connection, selection)
            return [
                json.loads(text)
                for text in record_queries.records_json(connection, ids, with_traces=with_traces)
            ]

    def ids(self, selection=None, **query):
        return [found["job_id"] for found in self.find(selection, **query)]

    def rows(self, sql, *values):
        with self.connect() as connection:
            return connection.exec_driver_sql(sql, values).fetchall()
