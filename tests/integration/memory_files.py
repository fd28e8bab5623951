"""Memory files as earlier versions of Runlane wrote them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TABLES = """
create table memory_users (tenant text not null, id text not null, email text not null, display_name text not null,
    time_zone text not null, status text not null, created_at bigint not null, primary key (tenant, id));
create unique index memory_users_email on memory_users (tenant, email);
create table memory_vaults (id text not null, tenant text not null, user_id text not null, title text not null,
    description text not null, created_at bigint not null, primary key (id));
create index memory_vaults_id on memory_vaults (tenant, id);
create unique index memory_vaults_title on memory_vaults (tenant, user_id, title);
create table memories (id text not null, tenant text not null, vault_id text not null, memory_type text not null,
    title text not null, description text not null, created_at bigint not null, used_at bigint not null,
    last_seq bigint not null, applied_seq bigint not null, owner text, epoch bigint not null, parked boolean not null,
    stale boolean not null, primary key (id));
create index memories_owner on memories (owner) where owner is not null;
create index memories_tenant on memories (tenant, id);
create table memory_entries (id text not null, memory_id text not null, seq bigint not null,
    changed_seq bigint not null, text text not null, summary text not null, metadata text not null, tags text not null,
    created_at bigint not null,
    expires_at bigint, corrects text, corrected_by text, corrected_at bigint, correction_reason text, deleted_at bigint,
    primary key (id));
create index memory_entries_expiring on memory_entries (expires_at) where expires_at is not null;
create unique index memory_entries_order on memory_entries (memory_id, seq);
create table memory_fragments (memory_id text not null, name text not null, content text not null, sha256 text not null,
    size integer not null, updated_at bigint not null, seq bigint not null, primary key (memory_id, name));
create table memory_ops (memory_id text not null, seq bigint not null, op_id text not null, fingerprint text not null,
    kind text not null, subject text not null, payload text, state text not null, attempts integer not null, error text,
    created_at bigint not null, primary key (memory_id, seq));
create index memory_ops_created on memory_ops (created_at);
create index memory_ops_waiting on memory_ops (state) where state != 'applied';
create table memory_nodes (id text not null, url text not null, lease_until bigint not null, started_at bigint not null,
    primary key (id));
create virtual table memory_words using fts5(entry, summary, memory, content='',
    tokenize='unicode61 remove_diacritics 2');
create trigger memory_words_added after insert on memory_entries when new.deleted_at is null begin
    insert into memory_words (rowid, entry, summary, memory) values (new.rowid, new.text, new.summary,
    substr(new.memory_id, instr(new.memory_id, '_') + 1)); end;
create trigger memory_words_deleted after update of text on memory_entries
    when old.deleted_at is null and new.deleted_at is not null begin
    insert into memory_words (memory_words, rowid, entry, summary, memory) values ('delete', old.rowid, old.text,
    old.summary, substr(old.memory_id, instr(old.memory_id, '_') + 1)); end;
create trigger memory_words_removed after delete on memory_entries when old.deleted_at is null begin
    insert into memory_words (memory_words, rowid, entry, summary, memory) values ('delete', old.rowid, old.text,
    old.summary, substr(old.memory_id, instr(old.memory_id, '_') + 1)); end;
create table memory_identity (id text not null);
insert into memory_identity values ('node_of_an_earlier_version');
"""
_OF_VERSION = {
    1: "create unique index memory_ops_id on memory_ops (memory_id, op_id);",
    2: """
create unique index memory_ops_id on memory_ops (memory_id, op_id) where fingerprint <> '';
create table memory_vectors (entry_id text not null, memory_id text not null, seq bigint not null, vector blob not null,
    primary key (entry_id));
create index memory_vectors_order on memory_vectors (memory_id, seq);
create table memory_indexes (memory_id text not null, model text not null, indexed_seq bigint not null,
    primary key (memory_id));
""",
}
_OF_VERSION[3] = (
    _OF_VERSION[2]
    + """
drop table memory_ops;
create table memory_ops (memory_id text not null, seq bigint not null, op_id text not null, fingerprint text not null,
    kind text not null, subject text not null, payload text, state text not null, attempts integer not null, error text,
    created_at bigint not null, primary key (memory_id, seq)) without rowid;
create unique index memory_ops_id on memory_ops (memory_id, op_id) where fingerprint <> '';
create index memory_ops_created on memory_ops (created_at) where fingerprint <> '';
create index memories_unreplicated on memories (id) where last_seq > applied_seq;
"""
)
_OF_VERSION[4] = _OF_VERSION[3] + "drop trigger memory_words_added;"


def write_memory_file(
    path: Path,
    version: int,
    memory: dict[str, Any],
    texts: Sequence[str],
    applied: int,
    keys: Sequence[str] = (),
    *,
    copies: bool = True,
) -> None:
    """Write a file with one memory. Entry N has the number N + 2; those after `applied` wait for replication.

    The first entries were added with the idempotency keys `keys`.
    """
    connection = sqlite3.connect(path)
    connection.executescript("pragma journal_mode=wal;" + _TABLES + _OF_VERSION[version])
    if not copies:
        connection.execute("create unique index memories_title on memories (vault_id, title)")
    last = 1 + len(texts)
    row = {**memory, "used_at": 1, "last_seq": last, "applied_seq": applied, "epoch": 1, "parked": 0, "stale": 0}
    names = ", ".join(row)
    connection.execute(f"insert into memories ({names}) values ({', '.join('?' * len(row))})", list(row.values()))
    connection.execute("insert into memory_fragments values (?, 'context', 'old', 'hash', 3, 1, 1)", [memory["id"]])
    for index, text in enumerate(texts):
        seq, entry = index + 2, f"entry_of_{index}"
        values = {"id": entry, "text": text, "summary": "", "metadata": "{}", "tags": "{}", "created_at": seq}
        added = (entry, memory["id"], seq, seq, text, "", "{}", "{}", seq)
        connection.execute(
            "insert into memory_entries (id, memory_id, seq, changed_seq, text, summary, metadata, tags, created_at) "
            "values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            added,
        )
        payload = (
            None if seq <= applied or version >= 3 else json.dumps({**values, "expires_at": None, "corrects": None})
        )
        key = f"key:{keys[index]}" if index < len(keys) else f"op_{index}"
        logged = (memory["id"], seq, key, "a hash" if index < len(keys) else "", "add_entry", entry, payload)
        state = "applied" if seq <= applied else "pending"
        if version == 1 or state == "pending" or index < len(keys):
            connection.execute(
                "insert into memory_ops values (?, ?, ?, ?, ?, ?, ?, ?, 0, null, ?)", (*logged, state, seq)
            )
    connection.execute(f"pragma user_version={version}")
    connection.commit()
    connection.close()
