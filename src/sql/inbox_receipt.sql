-- Who has had a message: after a COMMIT that went unanswered.
--
-- $1 subscriber  $2 message id
select receipt from idempotency.inbox where subscriber = $1 and message_id = $2
