CREATE TABLE api_answers (
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    status INTEGER,
    body TEXT,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (key)
);
CREATE INDEX api_answers_created ON api_answers (created_at);

CREATE TABLE api_keys (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    prefix TEXT NOT NULL,
    hash TEXT NOT NULL,
    role TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    last_used_at BIGINT,
    created_by TEXT NOT NULL,
    PRIMARY KEY (id)
);
CREATE UNIQUE INDEX api_keys_hash ON api_keys (hash);

CREATE TABLE audit (
    id TEXT NOT NULL,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    tenant TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    "old" TEXT,
    "new" TEXT,
    PRIMARY KEY (id)
);
CREATE INDEX audit_tenant ON audit (tenant, id);

CREATE TABLE chat_sessions (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    ordering_key TEXT NOT NULL,
    last_turn INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX chat_sessions_last ON chat_sessions (last_at);
CREATE INDEX chat_sessions_tenant ON chat_sessions (tenant, id);

CREATE TABLE chat_turns (
    session_id TEXT NOT NULL,
    turn INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    message TEXT NOT NULL,
    at BIGINT NOT NULL,
    status TEXT,
    answer TEXT,
    error TEXT,
    ended_at BIGINT,
    PRIMARY KEY (session_id, turn)
);
CREATE UNIQUE INDEX chat_turns_run ON chat_turns (run_id);

CREATE TABLE dead_letters (
    run_id TEXT NOT NULL,
    target TEXT NOT NULL,
    lane TEXT NOT NULL,
    input TEXT NOT NULL,
    error TEXT NOT NULL,
    attempts TEXT NOT NULL,
    died_at BIGINT NOT NULL,
    PRIMARY KEY (run_id)
);
CREATE INDEX dead_letters_died ON dead_letters (died_at);

CREATE TABLE definition_versions (
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    version TEXT NOT NULL,
    body TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, kind, id, version)
);

CREATE TABLE definitions (
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    version TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    origin TEXT NOT NULL,
    pins TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    removed_at BIGINT,
    source TEXT,
    PRIMARY KEY (tenant, kind, id)
);

CREATE TABLE idempotency_keys (
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    run_id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (key)
);
CREATE INDEX idempotency_keys_run ON idempotency_keys (run_id);

CREATE TABLE lane_kinds (
    kind TEXT NOT NULL,
    lane TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (kind)
);

CREATE TABLE lanes (
    name TEXT NOT NULL,
    enabled BOOLEAN DEFAULT true NOT NULL,
    max_slots INTEGER,
    poll_interval_ms INTEGER DEFAULT '250' NOT NULL,
    updated_at BIGINT NOT NULL,
    tenant TEXT,
    PRIMARY KEY (name)
);
CREATE INDEX lanes_poll_interval ON lanes (poll_interval_ms);
CREATE INDEX lanes_tenant ON lanes (tenant) WHERE tenant is not null;

CREATE TABLE provider_leases (
    id TEXT NOT NULL,
    credential TEXT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX provider_leases_credential ON provider_leases (credential);

CREATE TABLE provider_limits (
    credential TEXT NOT NULL,
    in_flight INTEGER,
    requests_per_minute INTEGER,
    tokens_per_minute INTEGER,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL,
    PRIMARY KEY (credential)
);

CREATE TABLE provider_seconds (
    credential TEXT NOT NULL,
    second BIGINT NOT NULL,
    requests INTEGER NOT NULL,
    tokens BIGINT NOT NULL,
    PRIMARY KEY (credential, second)
);

CREATE TABLE provider_states (
    credential TEXT NOT NULL,
    slow_until BIGINT DEFAULT '0' NOT NULL,
    slowed_at BIGINT DEFAULT '0' NOT NULL,
    slow_reason TEXT,
    streak INTEGER DEFAULT '0' NOT NULL,
    PRIMARY KEY (credential)
);

CREATE TABLE provider_waiters (
    credential TEXT NOT NULL,
    holder TEXT NOT NULL,
    since BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (credential, holder)
);

CREATE TABLE roles (
    name TEXT NOT NULL,
    permissions TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE run_attempts (
    run_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    worker_id TEXT,
    started_at BIGINT NOT NULL,
    ended_at BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    error TEXT,
    PRIMARY KEY (run_id, attempt)
);

CREATE TABLE run_calls (
    run_id TEXT NOT NULL,
    path TEXT NOT NULL,
    key TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    model TEXT,
    agent TEXT,
    tokens_in INTEGER,
    tokens_out INTEGER,
    cost_usd FLOAT,
    at BIGINT NOT NULL,
    PRIMARY KEY (run_id, path, key)
);

CREATE TABLE run_children (
    key TEXT NOT NULL,
    run_id TEXT NOT NULL,
    path TEXT NOT NULL,
    begun_at BIGINT NOT NULL,
    seen_at BIGINT,
    cancel_at BIGINT,
    PRIMARY KEY (key)
);
CREATE INDEX run_children_marked ON run_children (cancel_at) WHERE cancel_at IS NOT NULL;
CREATE INDEX run_children_run ON run_children (run_id, begun_at);

CREATE TABLE run_events (
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    type TEXT NOT NULL,
    at BIGINT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (run_id, seq)
);

CREATE TABLE run_inputs (
    run_id TEXT NOT NULL,
    input TEXT NOT NULL,
    trace TEXT,
    plan TEXT,
    PRIMARY KEY (run_id)
);

CREATE TABLE run_results (
    run_id TEXT NOT NULL,
    result TEXT,
    error TEXT,
    state TEXT,
    PRIMARY KEY (run_id)
);

CREATE TABLE run_steps (
    run_id TEXT NOT NULL,
    path TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    kind TEXT NOT NULL,
    output TEXT,
    ended_at BIGINT NOT NULL,
    no INTEGER,
    step_id TEXT,
    outcome TEXT,
    route TEXT,
    error TEXT,
    tries INTEGER,
    input TEXT,
    duration_us BIGINT,
    cost_usd FLOAT,
    tokens INTEGER,
    PRIMARY KEY (run_id, path)
);

CREATE TABLE run_waits (
    run_id TEXT NOT NULL,
    path TEXT NOT NULL,
    tenant TEXT NOT NULL,
    target TEXT NOT NULL,
    kind TEXT NOT NULL,
    step_id TEXT NOT NULL,
    name TEXT NOT NULL,
    request TEXT NOT NULL,
    opened_at BIGINT NOT NULL,
    due_at BIGINT,
    answer TEXT,
    answered_at BIGINT,
    answered_by TEXT,
    settled_at BIGINT,
    PRIMARY KEY (run_id, path)
);
CREATE INDEX run_waits_open ON run_waits (tenant, opened_at, run_id) WHERE kind = 'human' and answered_at is null and settled_at is null;

CREATE TABLE runs (
    id TEXT NOT NULL,
    target TEXT NOT NULL,
    lane TEXT NOT NULL,
    status TEXT NOT NULL,
    rank BIGINT NOT NULL,
    priority SMALLINT NOT NULL,
    attempt INTEGER DEFAULT '0' NOT NULL,
    failures INTEGER DEFAULT '0' NOT NULL,
    losses INTEGER DEFAULT '0' NOT NULL,
    max_attempts INTEGER NOT NULL,
    max_losses INTEGER NOT NULL,
    last_seq INTEGER DEFAULT '0' NOT NULL,
    accepted_at BIGINT NOT NULL,
    due_at BIGINT,
    claimed_at BIGINT,
    ended_at BIGINT,
    cancel_requested_at BIGINT,
    worker_id TEXT,
    hold BOOLEAN DEFAULT false NOT NULL,
    ordering_key TEXT,
    key_no BIGINT,
    holds_key BOOLEAN DEFAULT false NOT NULL,
    on_dead TEXT DEFAULT 'skip' NOT NULL,
    progress FLOAT,
    progress_note TEXT,
    tenant TEXT DEFAULT 'default' NOT NULL,
    limited BOOLEAN DEFAULT false NOT NULL,
    first_seq INTEGER DEFAULT '1' NOT NULL,
    lone_losses INTEGER DEFAULT '0' NOT NULL,
    max_neighbors INTEGER,
    PRIMARY KEY (id)
);
CREATE INDEX runs_due ON runs (due_at) WHERE status = 'scheduled';
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX runs_key_holder ON runs (ordering_key) WHERE holds_key;
CREATE INDEX runs_key_waiting ON runs (ordering_key, key_no) WHERE status = 'blocked';
CREATE INDEX runs_limited ON runs (tenant) WHERE limited and ended_at is null;
CREATE INDEX runs_paused_due ON runs (due_at) WHERE status = 'paused' and due_at is not null;
CREATE INDEX runs_ready ON runs (lane, rank) WHERE status = 'queued' and not limited and max_neighbors is null;
CREATE INDEX runs_ready_limited ON runs (lane, tenant, rank) WHERE status = 'queued' and limited and max_neighbors is null;
CREATE INDEX runs_ready_quarantined ON runs (rank) WHERE status = 'queued' and max_neighbors is not null;
CREATE INDEX runs_running ON runs (worker_id) WHERE status = 'running';
CREATE INDEX runs_running_lane ON runs (lane) WHERE status = 'running';
CREATE INDEX runs_running_limited ON runs (tenant) WHERE status = 'running' and limited;
CREATE INDEX runs_tenant ON runs (tenant, id);

CREATE TABLE secrets (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    key_id TEXT NOT NULL,
    value TEXT NOT NULL,
    version INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL,
    PRIMARY KEY (tenant, name)
);

CREATE TABLE tenants (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    max_queued INTEGER,
    max_running INTEGER,
    rate_per_second FLOAT,
    enabled BOOLEAN DEFAULT true NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    rate_paid_until BIGINT DEFAULT '0' NOT NULL,
    max_cost_usd_per_day FLOAT,
    on_cap TEXT DEFAULT 'fail' NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE usage_daily (
    tenant TEXT NOT NULL,
    day INTEGER NOT NULL,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    shard INTEGER NOT NULL,
    calls BIGINT NOT NULL,
    unpriced_calls BIGINT NOT NULL,
    tokens_in BIGINT NOT NULL,
    tokens_out BIGINT NOT NULL,
    cost_usd FLOAT NOT NULL,
    PRIMARY KEY (tenant, day, agent, model, shard)
);

CREATE TABLE workers (
    id TEXT NOT NULL,
    status TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    lanes TEXT NOT NULL,
    capacity INTEGER NOT NULL,
    active INTEGER DEFAULT '0' NOT NULL,
    has_lock BOOLEAN NOT NULL,
    started_at BIGINT NOT NULL,
    heartbeat_at BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    ended_at BIGINT,
    targets TEXT,
    PRIMARY KEY (id)
);

-- Rows here live for seconds: dead ones must go long before a fifth of the table is dead.
ALTER TABLE runs SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, fillfactor = 80);
ALTER TABLE workers SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, fillfactor = 80);

-- The row of a tenant with a rate limit changes with every accept: free space on its page keeps those updates cheap.
ALTER TABLE tenants SET (fillfactor = 50, autovacuum_vacuum_cost_delay = 0);
