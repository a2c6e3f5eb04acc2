-- The last statement before COMMIT: is this still the transaction that has received the message?
--
-- $1 subscriber  $2 message id  $3 receipt
select receipt from idempotency.inbox
where subscriber = $1 and message_id = $2 and receipt = $3 and xmin = pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.xid
