"""Statements of the client that are always the same."""

from typing import LiteralString

from holdfast.client import rows

ACK: LiteralString = (
    "select id, outcome, detail from holdfast.ack("
    "ids => %s::uuid[], tokens => %s::uuid[], results => %s::jsonb, keep => %s::bool, "
    "recent => %s::int)"
)
# Nobody waits long for a row that is another's: the setting is made before the function is called.
ACK_TOGETHER: LiteralString = (
    "select a.id, a.outcome, a.detail "
    "from (select set_config('lock_timeout', '250ms', true)) s(limited) "
    "cross join lateral holdfast.ack("
    "ids => %s::uuid[], tokens => %s::uuid[], keep => s.limited is null, recent => %s::int) a"
)
SETTLE: LiteralString = (
    "select id, outcome, detail from holdfast.settle(items => %s::jsonb) order by ord"
)
ENQUEUE: LiteralString = (
    "select id, created, duplicate_of, behind, holder, held_since "
    "from holdfast.enqueue(items => %s::jsonb, repeat => %s::bool) order by ord"
)
# More than one call should take, in one statement. What separates the parts cannot occur in JSON.
SEPARATOR = "\x1e"
ENQUEUE_PARTS: LiteralString = (
    "select e.id, e.created, e.duplicate_of, e.behind, e.holder, e.held_since "
    "from pg_catalog.unnest(pg_catalog.string_to_array(%s::text, pg_catalog.chr(30))) "
    "with ordinality as part (items, nth), "
    "lateral holdfast.enqueue(items => part.items::jsonb, repeat => %s::bool) e "
    "order by part.nth, e.ord"
)
# One job with nothing to decide; null: it is stored as it was sent. All values are texts.
ENQUEUE_ONE: LiteralString = (
    "select holdfast.enqueue_one(id => %s::uuid, kind => %s::text, queue => %s::text, "
    "payload => %s::jsonb, priority => %s::smallint, repeat => %s::boolean)::text"
)
COPY: LiteralString = f"copy holdfast.job ({rows.COLUMNS}) from stdin"
COPIED: LiteralString = (
    "select holdfast.copied(queue => %s::text, kinds => %s::text[], counts => %s::bigint[])"
)
SYSTEM: LiteralString = """
select (select max(m.version) from holdfast.migration m),
  (select m.release from holdfast.migration m order by m.applied_at desc limit 1),
  current_setting('server_version'), pg_database_size(current_database()),
  (select count(*) from pg_stat_activity a where a.datname = current_database()),
  current_setting('max_connections')::int,
  (select max(clock_timestamp() - a.xact_start) from pg_stat_activity a
   where a.datname = current_database() and a.pid <> pg_backend_pid())
"""
# Pages of one log are shown as one.
RELATIONS: LiteralString = """
select regexp_replace(t.relname, '_([0-9]{8}.*|[0-9]{2}|rest)$', '') as name,
  sum(pg_total_relation_size(t.relid))::bigint as size, sum(t.n_live_tup)::bigint,
  sum(t.n_dead_tup)::bigint, max(greatest(t.last_vacuum, t.last_autovacuum))
from pg_stat_all_tables t
where t.schemaname = 'holdfast'
group by 1
order by 2 desc, 1
"""
