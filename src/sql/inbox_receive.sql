-- One message. One row: it is new, and this transaction has it. No row: it is known.
--
-- $1 subscriber  $2 message id  $3 receipt  $4 retention
--
-- While another transaction has it and is open, this waits; if that one is rolled back, this has it.
insert into idempotency.inbox (subscriber, message_id, receipt, expires_at)
values ($1, $2, $3, pg_catalog.clock_timestamp() + $4::interval)
on conflict (subscriber, message_id) do nothing
returning receipt
