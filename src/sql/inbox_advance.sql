-- One row: the version is newer than what was applied, and is applied by this transaction. Another
-- one for the same stream waits for it.
--
-- $1 subscriber  $2 stream  $3 version
insert into idempotency.inbox_stream as s (subscriber, stream, version)
values ($1, $2, $3)
on conflict (subscriber, stream) do update set version = excluded.version, updated_at = pg_catalog.clock_timestamp()
where s.version < excluded.version
returning version
