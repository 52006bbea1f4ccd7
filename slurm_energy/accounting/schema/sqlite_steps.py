"""Migrations of the database between schema versions 1 and 6.

Only SQLite databases have had these versions. Step i converts schema version i to i + 1. The steps have been
released and are never edited. Later steps are in `migrations.py`.
"""

from __future__ import annotations

from typing import Final

SQLITE_STEPS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY,
        cluster TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        submit REAL NOT NULL,
        display_id TEXT NOT NULL,
        name TEXT NOT NULL,
        account TEXT,
        partition TEXT,
        user TEXT,
        state TEXT NOT NULL,
        start REAL,
        "end" REAL,
        elapsed_s REAL,
        nodes INTEGER,
        array_job_id INTEGER,
        array_task_id INTEGER,
        het_job_id INTEGER,
        het_offset INTEGER,
        finished INTEGER NOT NULL,
        updated REAL NOT NULL,
        UNIQUE (cluster, job_id, submit)
    );
    CREATE INDEX jobs_array ON jobs (array_job_id) WHERE array_job_id IS NOT NULL;
    CREATE INDEX jobs_het ON jobs (het_job_id) WHERE het_job_id IS NOT NULL;
    CREATE INDEX jobs_unfinished ON jobs (updated) WHERE NOT finished;

    CREATE TABLE records (
        id INTEGER PRIMARY KEY,
        record_id TEXT NOT NULL UNIQUE,
        cluster TEXT NOT NULL,
        node TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        restart_count INTEGER NOT NULL,
        step TEXT NOT NULL,
        start REAL NOT NULL,
        "end" REAL NOT NULL,
        uid INTEGER NOT NULL,
        user TEXT,
        account TEXT,
        partition TEXT,
        policy TEXT NOT NULL,
        energy_joules REAL,
        received REAL NOT NULL,
        job INTEGER REFERENCES jobs (id),
        body TEXT NOT NULL,
        UNIQUE (node, job_id, start, step, restart_count, cluster)
    );
    CREATE INDEX records_job_id ON records (job_id, start);
    CREATE INDEX records_end ON records ("end");
    CREATE INDEX records_uid ON records (uid, "end");
    CREATE INDEX records_account ON records (account, "end") WHERE account IS NOT NULL;
    CREATE INDEX records_job ON records (job) WHERE job IS NOT NULL;
    CREATE INDEX records_without_job ON records (received, cluster, job_id) WHERE job IS NULL;

    CREATE TABLE traces (
        record INTEGER PRIMARY KEY REFERENCES records (id) ON DELETE CASCADE,
        "end" REAL NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX traces_end ON traces ("end");

    CREATE TABLE nodes (
        cluster TEXT NOT NULL,
        node TEXT NOT NULL,
        last_end REAL NOT NULL,
        last_received REAL NOT NULL,
        PRIMARY KEY (cluster, node)
    ) WITHOUT ROWID;
    """,
    """
    ALTER TABLE jobs ADD COLUMN time_limit_s REAL;
    ALTER TABLE jobs ADD COLUMN requested TEXT;
    ALTER TABLE jobs ADD COLUMN learned INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX jobs_unlearned ON jobs (updated) WHERE finished AND NOT learned;

    CREATE TABLE history (
        id INTEGER PRIMARY KEY,
        kind BLOB NOT NULL,
        "end" REAL NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX history_kind ON history (kind, "end");
    CREATE INDEX history_end ON history ("end");
    """,
    """
    CREATE TABLE decisions (
        id INTEGER PRIMARY KEY,
        cluster TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        submit REAL NOT NULL,
        time REAL NOT NULL,
        kind TEXT NOT NULL,
        why TEXT NOT NULL,
        details TEXT NOT NULL
    );
    CREATE INDEX decisions_job ON decisions (job_id, submit);
    CREATE INDEX decisions_time ON decisions (time);
    """,
    """
    CREATE TABLE predictions (
        cluster TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        start REAL NOT NULL,
        predicted_s REAL NOT NULL,
        PRIMARY KEY (cluster, job_id, start)
    ) WITHOUT ROWID;
    CREATE INDEX predictions_start ON predictions (start);
    ALTER TABLE history ADD COLUMN user TEXT;
    UPDATE history SET user = json_extract(body, '$.user');
    CREATE INDEX history_user ON history (user, "end");
    """,
    """
    ALTER TABLE jobs ADD COLUMN tuning_learned INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX jobs_tuning_unlearned ON jobs (updated) WHERE learned AND NOT tuning_learned;

    CREATE TABLE tuning_runs (
        id INTEGER PRIMARY KEY,
        job INTEGER NOT NULL UNIQUE REFERENCES jobs (id),
        owner TEXT NOT NULL,
        hardware TEXT NOT NULL,
        fingerprint TEXT,
        model TEXT,
        workload TEXT NOT NULL,
        "end" REAL NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX tuning_runs_workload ON tuning_runs (owner, workload, hardware, "end");
    CREATE INDEX tuning_runs_model ON tuning_runs (owner, model, hardware, "end") WHERE model IS NOT NULL;
    CREATE INDEX tuning_runs_end ON tuning_runs ("end");

    CREATE TABLE tuning_pins (
        owner TEXT NOT NULL,
        workload TEXT NOT NULL,
        hardware TEXT NOT NULL,
        point TEXT NOT NULL,
        pinned_by TEXT NOT NULL,
        time REAL NOT NULL,
        PRIMARY KEY (owner, workload, hardware)
    ) WITHOUT ROWID;

    CREATE TABLE tuning_starts (
        cluster TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        restart_count INTEGER NOT NULL,
        hardware TEXT NOT NULL,
        owner TEXT NOT NULL,
        workload TEXT NOT NULL,
        exploration INTEGER NOT NULL,
        time REAL NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (cluster, job_id, restart_count, hardware)
    ) WITHOUT ROWID;
    CREATE INDEX tuning_starts_workload ON tuning_starts (owner, workload, hardware) WHERE exploration;
    CREATE INDEX tuning_starts_time ON tuning_starts (time);
    """,
    """
    CREATE TABLE budget_samples (
        cluster TEXT NOT NULL,
        budget TEXT NOT NULL,
        time REAL NOT NULL,
        span_s REAL NOT NULL,
        limit_watts REAL,
        measured_watts REAL,
        max_measured_watts REAL,
        committed_watts REAL NOT NULL,
        capped_watts REAL NOT NULL,
        headroom_watts REAL,
        over_s REAL NOT NULL,
        PRIMARY KEY (cluster, budget, time)
    ) WITHOUT ROWID;
    CREATE INDEX budget_samples_time ON budget_samples (time);

    CREATE TABLE budget_changes (
        id INTEGER PRIMARY KEY,
        cluster TEXT NOT NULL,
        time REAL NOT NULL,
        budget TEXT,
        actor TEXT,
        kind TEXT NOT NULL,
        why TEXT NOT NULL,
        details TEXT NOT NULL
    );
    CREATE INDEX budget_changes_time ON budget_changes (cluster, time);

    CREATE TABLE budget_overrides (
        cluster TEXT NOT NULL,
        budget TEXT NOT NULL,
        watts REAL NOT NULL,
        "end" REAL,
        actor TEXT NOT NULL,
        time REAL NOT NULL,
        reason TEXT NOT NULL,
        PRIMARY KEY (cluster, budget)
    ) WITHOUT ROWID;

    CREATE TABLE budget_nodes (
        cluster TEXT NOT NULL,
        node TEXT NOT NULL,
        time REAL NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (cluster, node)
    ) WITHOUT ROWID;
    """,
)
