-- The schema, before anything is in it. Twenty processes may do this at once.
do $$
begin
  if pg_catalog.to_regnamespace('idempotency') is null then
    create schema idempotency;
  end if;
exception
  when duplicate_schema or unique_violation then null;  -- another process was faster
end
$$
