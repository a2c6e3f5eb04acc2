-- What the layer needs to find at start.
--
-- By the catalogs, which everybody may read: to_regclass is an error for a role that may not use the
-- schema. One privilege at a time: a list of them asks for any one of the list.
select
  found.record is not null as present,
  coalesce(
    pg_catalog.has_schema_privilege(found.schema, 'usage')
    and pg_catalog.has_table_privilege(found.record, 'select')
    and pg_catalog.has_table_privilege(found.record, 'insert')
    and pg_catalog.has_table_privilege(found.record, 'update')
    and pg_catalog.has_table_privilege(found.record, 'delete'),
    false
  ) as allowed,
  -- A role that only serves need not use the tables of a relay. One that may use some of them needs all.
  coalesce(
    not pg_catalog.has_table_privilege(relay.lane, 'update')
    or (
      pg_catalog.has_table_privilege(relay.relay, 'select')
      and pg_catalog.has_table_privilege(relay.relay, 'insert')
      and pg_catalog.has_table_privilege(relay.relay, 'update')
      and pg_catalog.has_table_privilege(relay.relay, 'delete')
    ),
    true
  ) as may_register,
  pg_catalog.pg_is_in_recovery() as standby,
  pg_catalog.current_setting('server_version_num')::integer as version
from (values (1)) always
left join (
  select c.oid as record, n.oid as schema
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where n.nspname = 'idempotency' and c.relname = 'record'
) found on true
left join (
  select l.oid as lane, r.oid as relay
  from pg_catalog.pg_class l
  join pg_catalog.pg_class r on r.relnamespace = l.relnamespace
  join pg_catalog.pg_namespace n on n.oid = l.relnamespace
  where n.nspname = 'idempotency' and l.relname = 'outbox_lane' and r.relname = 'outbox_relay'
) relay on true
