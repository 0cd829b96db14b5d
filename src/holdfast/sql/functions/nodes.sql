-- Nodes: the databases of one Citus cluster, each with all of Holdfast in tables of its own. A queue lives on one of
-- them, with its jobs, settings, limits and workers; the others have a row of holdfast.queue that says where. An
-- enqueue on another node goes there inside the caller's transaction, which Citus commits in two phases.
--
-- Calls reach a node through holdfast_nodes.node_N, a table of one row that Citus keeps there and that
-- `holdfast migrate --shard` makes: a query of it is sent to that node whole, with the function it calls.

-- place: have a queue live on a node. Later enqueues, on whatever node, go there at once. Waiting jobs follow by
-- upkeep; those that run, and those with a lane, a step or others to wait for, end where they are. Until the last of
-- them has ended, limits, keys and lanes of the queue count on each node by itself.
create or replace function holdfast.place(queue text, node integer, actor text default null)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_row  jsonb;
  v_node integer;
begin
  perform holdfast.named('queue', queue, 120);
  perform holdfast.refuse_ours(queue);
  if holdfast.here() is distinct from 0 then
    perform holdfast.refuse('HF415', case when holdfast.here() is null
      then 'this database is not the coordinator of a Citus cluster'
      else format('this is node %s, and queues are placed on the coordinator', holdfast.here()) end, null,
      'A queue can live on another node only in a cluster: holdfast migrate --shard');
  end if;
  if not exists (select from holdfast.node_tables() t where t.node = place.node) then
    perform holdfast.refuse('HF415', format('no node has the number %s', coalesce(node::text, 'null')), null,
      format('Nodes are: %s. A node that was added is set up by: holdfast migrate --shard',
        (select string_agg(t.node::text, ', ' order by t.node) from holdfast.node_tables() t)));
  end if;
  if exists (select from holdfast.queue q where q.name = place.queue and q.adopted is not null) then
    perform holdfast.refuse('HF415', format('queue %L is an adopted table, which stays where it is', queue));
  end if;
  perform holdfast.ask_briefly();
  -- Whoever comes second waits here, and finds what the first has done.
  insert into holdfast.queue
  select d.* from jsonb_populate_record(holdfast.unset_queue(queue), jsonb_build_object('set_at', holdfast.now())) d
  on conflict (name) do update set set_at = excluded.set_at;
  v_node := coalesce((holdfast.settings_of(queue)).node, 0);
  if v_node = node then
    return;
  end if;
  v_row := case
    when exists (select from holdfast.node_tables() t where t.node = v_node) then holdfast.row_on(v_node, queue)
    else to_jsonb(holdfast.settings_of(queue))   -- its node was taken away: what is known here
  end;
  for v_node in select t.node from holdfast.node_tables() t order by t.node loop
    perform holdfast.point_on(v_node, queue, nullif(place.node, v_node), v_row);
  end loop;
  perform holdfast.note('placed', actor, null, queue, jsonb_build_object('node', place.node));
end
$$;

-- nodes: what each node has. problem: why it could not be asked.
create or replace function holdfast.nodes()
returns table (
  node integer, address text, release text, placed bigint, queued bigint, leased bigint, dead bigint, strays bigint,
  workers bigint, problem text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_said jsonb;
  these  record;
begin
  if holdfast.here() is null then
    return;
  end if;
  perform holdfast.ask_briefly();
  for these in
    select n.groupid as node, format('%s:%s', n.nodename, n.nodeport) as address, t.node is not null as known
    from pg_dist_node n
    left join holdfast.node_tables() t on t.node = n.groupid
    where n.noderole = 'primary'
    order by n.groupid
  loop
    v_said := null;
    problem := null;
    begin
      if not these.known then
        problem := 'it is not set up: run holdfast migrate --shard';
      elsif these.node = holdfast.here() then
        v_said := holdfast.about_here(these.node);
      else
        execute format('select holdfast.about_here(%s) from holdfast_nodes.node_%s', these.node, these.node)
        into v_said;
      end if;
    exception when others then
      problem := sqlerrm;
    end;
    node := these.node;
    address := these.address;
    release := v_said ->> 'release';
    placed := (select count(*) from holdfast.queue q where coalesce(q.node, holdfast.here()) = these.node
      and exists (select from holdfast.queue x where x.node is not null));
    queued := v_said -> 'queued';
    leased := v_said -> 'leased';
    dead := v_said -> 'dead';
    strays := v_said -> 'strays';
    workers := v_said -> 'workers';
    return next;
  end loop;
end
$$;

-- members: the nodes that are set up, and which of them this is; none without Citus.
create or replace function holdfast.members()
returns table (node integer, host text, port integer, here boolean)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if holdfast.here() is null then
    return;
  end if;
  return query
    select n.groupid, n.nodename::text, n.nodeport, n.groupid = holdfast.here()
    from pg_dist_node n
    join holdfast.node_tables() t on t.node = n.groupid
    where n.noderole = 'primary'
    order by n.groupid;
end
$$;

-- homes: the nodes on which queues live.
create or replace function holdfast.homes(queues text[])
returns table (queue text, node integer)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select q.name, coalesce((holdfast.settings_of(q.name)).node, holdfast.here())
  from unnest(homes.queues) q(name)
$$;

-- here: the number of this node in its cluster; the coordinator is 0. Null in a database without Citus.
create or replace function holdfast.here()
returns integer
language plpgsql stable
as $$
begin
  if to_regclass('pg_catalog.pg_dist_local_group') is null then
    return null;
  end if;
  return (select g.groupid from pg_dist_local_group g);
end
$$;

-- lives_elsewhere: whether one of these queues lives on another node. On the coordinator a queue that nobody placed
-- lives here; on the others it lives there.
create or replace function holdfast.lives_elsewhere(queues text[])
returns boolean
language plpgsql stable
as $$
begin
  return exists (select from holdfast.queue q where q.name = any(queues) and q.node is not null)
    or coalesce(current_setting('holdfast.unplaced', true), '') <> '' and exists (
      select from unnest(queues) n(name) where (holdfast.settings_of(n.name)).node is not null);
end
$$;

-- refuse_other_node: refuse what can only be done where the queue lives.
create or replace function holdfast.refuse_other_node(queue text)
returns void
language plpgsql stable
as $$
declare
  v_node  integer;
  v_place text;
begin
  if not holdfast.lives_elsewhere(array[queue]) then
    return;
  end if;
  v_node := (holdfast.settings_of(queue)).node;
  if holdfast.here() is not null then
    v_place := (select format('%s:%s', n.nodename, n.nodeport) from pg_dist_node n
      where n.groupid = v_node and n.noderole = 'primary');
  end if;
  perform holdfast.refuse('HF415', format('queue %L lives on node %s of the cluster', queue, v_node), null,
    format('Connect to %s, or have it live here: select holdfast.place(%L, %s)', coalesce(v_place, 'that node'), queue,
      coalesce(holdfast.here(), 0)));
end
$$;

-- enqueue_placed: an enqueue of which some queues live on other nodes. Each node gets its jobs by one call, in the
-- order of the nodes' numbers.
create or replace function holdfast.enqueue_placed(items jsonb, repeat boolean)
returns table (
  ord integer, id uuid, created boolean, duplicate_of uuid, behind uuid, holder text, held_since timestamptz)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_links constant boolean := items @? '$[*].after' or items @? '$[*].workflow' or items @? '$[*].child_of';
  v_nodes integer[];
begin
  if repeat and holdfast.moved_lately(holdfast.queues_of(items)) then
    return query select r.* from holdfast.enqueue_repeated(items) r;
    return;
  end if;
  v_nodes := array(
    select coalesce((holdfast.settings_of(q.name)).node, holdfast.here())
    from (select distinct coalesce(i.item ->> 'queue', 'default') from jsonb_array_elements(items) i(item)) q(name)
    group by 1
    order by 1);
  if v_links and cardinality(v_nodes) > 1 then
    perform holdfast.refuse('HF415', 'jobs that wait for each other live on different nodes of the cluster',
      format('their queues live on the nodes %s', array_to_string(v_nodes, ', ')),
      'Place these queues on one node: select holdfast.place(…)');
  end if;
  if (items @? '$[*].workflow' or items @? '$[*].child_of') and v_nodes[1] <> holdfast.here() then
    perform holdfast.refuse('HF415', format('this is node %s, and the jobs of the workflow live on node %s',
      holdfast.here(), v_nodes[1]), null, 'Start the workflow on that node: all its jobs live on one.');
  end if;
  return query
    with per_node as materialized (
      select coalesce((holdfast.settings_of(coalesce(i.item ->> 'queue', 'default'))).node, holdfast.here()) as node,
             jsonb_agg(i.item order by i.ord) as items, array_agg(i.ord::integer order by i.ord) as ords
      from jsonb_array_elements(items) with ordinality i(item, ord)
      group by 1
      order by 1
    )
    select p.ords[e.ord], e.id, e.created, e.duplicate_of, e.behind, e.holder, e.held_since
    from per_node p
    cross join lateral holdfast.enqueue_on(p.node, p.items, repeat) e
    order by 1;
end
$$;

-- moved_lately: whether one of these queues may have lived on another node when a call was sent first that is repeated
-- now.
create or replace function holdfast.moved_lately(queues text[])
returns boolean
language sql stable
as $$
  select coalesce(current_setting('holdfast.asked', true), '') = '' and exists (
      select from holdfast.queue q
      where q.name = any(moved_lately.queues) and q.set_at > holdfast.now() - interval '10 minutes')
    and exists (select from holdfast.node_tables())
$$;

-- enqueue_repeated: a call that may have been sent before its queues moved. What another node than the queue's has
-- stored is not stored again.
create or replace function holdfast.enqueue_repeated(items jsonb)
returns table (
  ord integer, id uuid, created boolean, duplicate_of uuid, behind uuid, holder text, held_since timestamptz)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_links constant boolean := items @? '$[*].after' or items @? '$[*].workflow' or items @? '$[*].child_of';
  v_known uuid[] := '{}';
  v_some  uuid[];
  these   record;
begin
  perform holdfast.ask_briefly();
  for these in
    select t.node, jsonb_agg(i.item) as items
    from holdfast.node_tables() t
    join jsonb_array_elements(items) i(item)
      on t.node <> coalesce((holdfast.settings_of(coalesce(i.item ->> 'queue', 'default'))).node, holdfast.here())
    where i.item ->> 'id' is not null
    group by t.node
    order by t.node
  loop
    if these.node = holdfast.here() then
      v_some := holdfast.known_here(these.node, these.items);
    else
      execute format('select holdfast.known_here(%1$s, $1) from holdfast_nodes.node_%1$s', these.node)
      into v_some using these.items;
    end if;
    v_known := v_known || v_some;
  end loop;
  if v_links and v_known <> '{}' then   -- it was stored as a whole, or not at all
    v_known := array(select (i.item ->> 'id')::uuid from jsonb_array_elements(items) i(item));
  end if;
  perform set_config('holdfast.asked', 'on', true);
  return query
    with given as materialized (
      select i.item, i.ord::integer, (i.item ->> 'id')::uuid as id
      from jsonb_array_elements(items) with ordinality i(item, ord)
    ), rest as materialized (
      select jsonb_agg(g.item order by g.ord) as items, array_agg(g.ord order by g.ord) as ords
      from given g
      where g.id is null or not g.id = any(v_known)
    )
    select g.ord, g.id, true, null::uuid, null::uuid, null::text, null::timestamptz
    from given g
    where g.id = any(v_known)
    union all
    select r.ords[e.ord], e.id, e.created, e.duplicate_of, e.behind, e.holder, e.held_since
    from rest r
    cross join lateral holdfast.enqueue(coalesce(r.items, '[]'), true) e
    order by 1;
  perform set_config('holdfast.asked', '', true);
end
$$;

-- known_here: which of these jobs this node has, or has had.
create or replace function holdfast.known_here(node integer, items jsonb)
returns uuid[]
language plpgsql
set enable_seqscan = off
as $$
declare
  v_ids constant uuid[] := array(select (i.item ->> 'id')::uuid from jsonb_array_elements(items) i(item));
begin
  perform holdfast.be_node(node);
  return holdfast.known_before(v_ids, items) || array(
    select j.id
    from jsonb_array_elements(items) i(item)
    join holdfast.job j on j.part = holdfast.part_of((i.item ->> 'id')::uuid) and j.id = (i.item ->> 'id')::uuid
    where j.queue = coalesce(i.item ->> 'queue', 'default'));
end
$$;

-- enqueue_on: enqueue jobs on a node, inside the caller's transaction.
create or replace function holdfast.enqueue_on(node integer, items jsonb, repeat boolean)
returns table (
  ord integer, id uuid, created boolean, duplicate_of uuid, behind uuid, holder text, held_since timestamptz)
language plpgsql
as $$
#variable_conflict use_column
begin
  if node = holdfast.here() then
    return query
      select e.ord, e.id, e.created, e.duplicate_of, e.behind, e.holder, e.held_since
      from holdfast.enqueue(items, repeat) e;
    return;
  end if;
  perform holdfast.write_on(node);
  perform holdfast.carry_large(node, items);
  return query execute format('with written as (delete from holdfast_nodes.node_%1$s where never)
    select e.ord, e.id, e.created, e.duplicate_of, e.behind, e.holder, e.held_since
    from holdfast_nodes.node_%1$s cross join lateral holdfast.enqueue_here(%1$s, $1, $2) e', node)
    using items, repeat;
end
$$;

-- enqueue_here: an enqueue that another node sends. It is not sent on: while a placing commits, two nodes may take each
-- other for the queue's.
create or replace function holdfast.enqueue_here(node integer, items jsonb, repeat boolean)
returns table (
  ord integer, id uuid, created boolean, duplicate_of uuid, behind uuid, holder text, held_since timestamptz)
language plpgsql
as $$
#variable_conflict use_column
begin
  perform holdfast.be_node(node);
  if holdfast.lives_elsewhere(holdfast.queues_of(items)) then
    raise exception using
      errcode = 'serialization_failure',
      message = format('a queue has just moved away from node %s: %s', node,
        array_to_string(holdfast.queues_of(items), ', ')),
      hint = 'Repeat the transaction. If this lasts longer than a minute: holdfast migrate --shard';
  end if;
  perform set_config('holdfast.asked', 'on', true);   -- the node that sends it has asked all
  return query
    select e.ord, e.id, e.created, e.duplicate_of, e.behind, e.holder, e.held_since
    from holdfast.enqueue(items, repeat) e;
end
$$;

-- carry_large, take_large: give a node the payloads that these jobs have in the table of this one. What stays here is
-- swept with those that no job has.
create or replace function holdfast.carry_large(node integer, jobs jsonb)
returns void
language plpgsql
as $$
declare
  v_addresses text[];
  v_data      bytea[];
begin
  select array_agg(p.address), array_agg(p.data) into v_addresses, v_data
  from (
    select distinct x.job #>> '{payload,$holdfast,address}' as address
    from jsonb_array_elements(jobs) x(job)
    where holdfast.is_coded(x.job -> 'payload') and x.job #>> '{payload,$holdfast,store}' = 'table'
  ) a
  join holdfast.large_payload p on p.address = a.address;
  if v_addresses is not null then
    execute format('with written as (delete from holdfast_nodes.node_%1$s where never)
      select holdfast.take_large(%1$s, $1, $2) from holdfast_nodes.node_%1$s', node)
    using v_addresses, v_data;
  end if;
end
$$;

create or replace function holdfast.take_large(node integer, addresses text[], data bytea[])
returns void
language plpgsql
as $$
begin
  perform holdfast.be_node(node);
  insert into holdfast.large_payload (address, data, created_at)
  select u.address, u.data, holdfast.now()
  from unnest(take_large.addresses, take_large.data) u(address, data)
  on conflict do nothing;
end
$$;

-- write_on: tell Citus that this transaction writes here, before a call that writes on another node, so that it commits
-- in two phases. It cannot know by itself: what a node runs is a function inside a select. For that reason each such
-- call deletes nothing there as well, in the same statement.
create or replace function holdfast.write_on(node integer)
returns void
language plpgsql
as $$
begin
  if to_regclass(format('holdfast_nodes.node_%s', node)) is null then
    perform holdfast.refuse('HF415', format('node %s is not set up', node), null, 'Run: holdfast migrate --shard');
  end if;
  execute format('delete from holdfast_nodes.node_%s where never', holdfast.here());
end
$$;

-- be_node: refuse to work for another node. Citus may have moved the table by which this one is reached, when it
-- balanced its shards.
create or replace function holdfast.be_node(node integer)
returns void
language plpgsql
as $$
begin
  if holdfast.here() is distinct from node then
    perform holdfast.refuse('HF415', format('node %s was reached instead of node %s', holdfast.here(), node),
      'Citus has moved holdfast_nodes.node_' || node, 'Run: holdfast migrate --shard');
  end if;
end
$$;

-- ask_briefly: for the rest of this transaction, give up on a node that takes no connection within two seconds. No
-- connection is kept for the next one either: on that the node would be waited for, for as long as it stands still.
create or replace function holdfast.ask_briefly()
returns void
language sql
as $$
  select set_config('citus.node_connection_timeout', '2000', true),
         set_config('citus.max_cached_conns_per_worker', '0', true)
$$;

-- node_tables: the nodes that are set up.
create or replace function holdfast.node_tables()
returns table (node integer)
language sql stable
as $$
  select substr(c.relname, 6)::integer
  from pg_class c
  join pg_namespace s on s.oid = c.relnamespace
  where s.nspname = 'holdfast_nodes' and c.relname ~ '^node_[0-9]+$' and c.relkind = 'r'
$$;

-- row_on, row_here: the settings of a queue where it lives, locked: whoever changes them meanwhile waits, and is then
-- refused.
create or replace function holdfast.row_on(node integer, queue text)
returns jsonb
language plpgsql
as $$
declare
  v_row jsonb;
begin
  if node = holdfast.here() then
    return holdfast.row_here(node, queue);
  end if;
  perform holdfast.write_on(node);
  execute format('with written as (delete from holdfast_nodes.node_%1$s where never)
    select holdfast.row_here(%1$s, $1) from holdfast_nodes.node_%1$s', node)
  into v_row using queue;
  return v_row;
end
$$;

create or replace function holdfast.row_here(node integer, queue text)
returns jsonb
language plpgsql
as $$
begin
  perform holdfast.be_node(node);
  perform from holdfast.queue q where q.name = row_here.queue for update;
  return to_jsonb(holdfast.settings_of(queue)) || jsonb_build_object('lanes', (
    select jsonb_agg(to_jsonb(l))
    from holdfast.lane l
    where l.queue = row_here.queue and num_nonnulls(l.lane_limit, l.on_failure, l.rate_limit) > 0));
end
$$;

-- point_on, point_here: have a node know where a queue lives; null: there. The settings come with the queue.
create or replace function holdfast.point_on(at integer, queue text, node integer, settings jsonb)
returns void
language plpgsql
as $$
begin
  if at = holdfast.here() then
    perform holdfast.point_here(at, queue, node, settings);
    return;
  end if;
  perform holdfast.write_on(at);
  execute format('with written as (delete from holdfast_nodes.node_%1$s where never)
    select holdfast.point_here(%1$s, $1, $2, $3) from holdfast_nodes.node_%1$s', at)
  using queue, node, settings;
end
$$;

create or replace function holdfast.point_here(at integer, queue text, node integer, settings jsonb)
returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_row holdfast.queue;
begin
  perform holdfast.be_node(at);
  v_row := jsonb_populate_record(holdfast.unset_queue(queue), settings);
  v_row.name := queue;
  v_row.node := point_here.node;
  v_row.set_at := holdfast.now();
  update holdfast.queue q set node = v_row.node, set_at = v_row.set_at
  where q.name = point_here.queue and v_row.node is not null;
  if not found then
    delete from holdfast.queue q where q.name = point_here.queue;
    insert into holdfast.queue select v_row.*;
    perform holdfast.take_lanes(queue, settings -> 'lanes');
  end if;
end
$$;

-- take_lanes: the settings of a queue's lanes come with those of the queue.
create or replace function holdfast.take_lanes(queue text, lanes jsonb)
returns void
language plpgsql
as $$
begin
  update holdfast.lane l set lane_limit = null, on_failure = null, rate_limit = null, rate_period = null
  where l.queue = take_lanes.queue and num_nonnulls(l.lane_limit, l.on_failure, l.rate_limit) > 0;
  insert into holdfast.lane as l (part, queue, name, lane_limit, on_failure, rate_limit, rate_period)
  select holdfast.lane_part(take_lanes.queue, g.name), take_lanes.queue, g.name, g.lane_limit, g.on_failure,
         g.rate_limit, g.rate_period
  from jsonb_populate_recordset(null::holdfast.lane, coalesce(nullif(lanes, 'null'), '[]')) g
  on conflict on constraint lane_pkey do update
  set lane_limit = excluded.lane_limit, on_failure = excluded.on_failure, rate_limit = excluded.rate_limit,
      rate_period = excluded.rate_period;
end
$$;

-- point_all: have every node know where all queues live. For a node that was added.
create or replace function holdfast.point_all()
returns integer
language plpgsql
as $$
declare
  v_count integer := 0;
  these   record;
begin
  for these in
    select q.name, q.node, t.node as at
    from holdfast.queue q
    join holdfast.node_tables() t on t.node not in (q.node, 0)
    order by t.node, q.name
  loop
    perform holdfast.point_on(these.at, these.name, these.node, null);
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;

-- about_here: what this node says of itself.
create or replace function holdfast.about_here(node integer)
returns jsonb
language plpgsql
as $$
begin
  perform holdfast.be_node(node);
  return (
    select jsonb_build_object('queued', coalesce(sum(q.queued), 0), 'leased', coalesce(sum(q.leased), 0),
      'dead', coalesce(sum(q.dead), 0),
      'strays', coalesce(sum(q.queued) filter (where exists (
        select from holdfast.stray_queues() x where x.name = q.queue)), 0),
      'workers', (select count(*) from holdfast.workers w where w.alive),
      'release', (select m.release from holdfast.migration m where m.version = 0))
    from holdfast.queues q);
end
$$;

-- send_strays: send waiting jobs on to the node where their queue lives: those that were there when it was placed, or
-- came back later, by a retry for example. A node that cannot be reached does not stop the others.
create or replace function holdfast.send_strays(max_jobs integer)
returns integer
language plpgsql
as $$
declare
  v_sent integer := 0;
  these  record;
begin
  perform holdfast.ask_briefly() where holdfast.has_strays();
  for these in
    select q.name, q.node, ((holdfast.queue_part(q.name) + step) % 64)::smallint as part
    from holdfast.stray_queues() q
    cross join lateral generate_series(0, q.fanout - 1) step
    order by q.node, q.name, step
  loop
    exit when v_sent >= max_jobs;
    begin
      v_sent := v_sent + holdfast.send_some(these.part, these.name, these.node, max_jobs - v_sent);
    exception when others then
      if holdfast.is_hopeless(sqlstate) then
        raise;
      end if;
      perform holdfast.note_failing('strays', these.name, sqlstate, sqlerrm);
    end;
  end loop;
  return v_sent;
end
$$;

-- stray_queues: the queues that live on other nodes; also those that nobody placed and of which this node has jobs:
-- sessions that are older than its place in the cluster store them here.
create or replace function holdfast.stray_queues()
returns table (name text, node integer, fanout integer)
language sql stable
as $$
  select q.name, q.node, q.fanout::integer
  from holdfast.queue q
  where q.node is not null and q.adopted is null
  union all
  select u.name, u.node, u.fanout::integer
  from (select t.queue from holdfast.tally t union select t.queue from holdfast.total t) k
  cross join lateral holdfast.unset_queue(k.queue) u
  where current_setting('holdfast.unplaced', true) <> '' and u.node is not null
    and not exists (select from holdfast.queue q where q.name = k.queue)
$$;

-- has_strays: whether jobs wait here that can be sent to the node where their queue lives.
create or replace function holdfast.has_strays()
returns boolean
language sql stable
as $$
  select exists (
    select from holdfast.stray_queues() q
    cross join lateral generate_series(0, q.fanout - 1) step
    where exists (
      select from holdfast.job j
      where j.part = ((holdfast.queue_part(q.name) + step) % 64)::smallint and j.queue = q.name and j.token is null
        and not j.blocked and j.lane is null and j.link is null and j.steps is null))
$$;

-- send_some: the same for one part of one queue. The rows are locked, stored there and deleted here; what is not
-- stored, since a job there has the key, stays.
create or replace function holdfast.send_some(part smallint, queue text, node integer, max_jobs integer)
returns integer
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_jobs     jsonb;
  v_attempts jsonb;
  v_ids      uuid[];
begin
  select jsonb_agg(to_jsonb(s) order by s.pos nulls last, s.run_at, s.id), array_agg(s.id) into v_jobs, v_ids
  from (
    select j.*
    from holdfast.job j
    where j.part = send_some.part and j.queue = send_some.queue and j.token is null and not j.blocked
      and j.lane is null and j.link is null and j.steps is null
      and not exists (
        select from holdfast.job f
        where f.part = j.part and f.queue = j.queue and f.kind = j.kind and f.key = j.key and f.follow)
    limit send_some.max_jobs
    for update of j skip locked
  ) s;
  if v_jobs is null then
    return 0;
  end if;
  select jsonb_agg(to_jsonb(a)) into v_attempts
  from holdfast.attempt a
  where a.part = send_some.part and a.id = any(v_ids);
  perform holdfast.write_on(node);
  perform holdfast.carry_large(node, v_jobs);
  execute format('with written as (delete from holdfast_nodes.node_%1$s where never)
    select holdfast.take_in(%1$s, $1, $2, $3) from holdfast_nodes.node_%1$s', node)
  into v_ids using queue, v_jobs, coalesce(v_attempts, '[]');
  if v_ids is null then
    return 0;
  end if;
  delete from holdfast.attempt a where a.part = send_some.part and a.id = any(v_ids);
  with gone as (
    delete from holdfast.job j where j.part = send_some.part and j.id = any(v_ids) returning j.kind
  )
  insert into holdfast.tally (part, queue, kind, queued)
  select send_some.part, send_some.queue, g.kind, -count(*) from gone g group by g.kind;
  return cardinality(v_ids);
end
$$;

-- take_in: store jobs that another node sends, in the order given; returns the ids of those that are stored. Whatever
-- the queue's settings ask of its rows is done to them by upkeep, as to those that came while a setting changed.
create or replace function holdfast.take_in(node integer, queue text, jobs jsonb, attempts jsonb)
returns uuid[]
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := holdfast.clock();
  v_stored uuid[];
  v_queue  holdfast.queue;
begin
  perform holdfast.be_node(node);
  lock table holdfast.job in row exclusive mode;
  v_queue := holdfast.settings_of(queue);
  with given as materialized (
    select g.row, g.nth from jsonb_array_elements(jobs) with ordinality g(row, nth)
  ), stored as (
    insert into holdfast.job
    select r.*
    from (
      select jsonb_populate_record(null::holdfast.job, g.row || jsonb_build_object(
        'pos', case when g.row -> 'pos' <> 'null' then nextval('holdfast.pos') end)) as job
      from given g
      order by g.nth
    ) n
    cross join lateral (select (n.job).*) r
    on conflict do nothing
    returning part, id, kind
  ), counted as (
    insert into holdfast.tally (part, queue, kind, queued)
    select s.part, take_in.queue, s.kind, count(*) from stored s group by s.part, s.kind
  )
  select array_agg(s.id) into v_stored from stored s;
  insert into holdfast.attempt
  select a.* from jsonb_populate_recordset(null::holdfast.attempt, attempts) a where a.id = any(v_stored);
  perform holdfast.note_expiry(v_stored, v_now) where jobs @? '$[*].expires_at ? (@ != null)';
  insert into holdfast.redo (queue)
  select take_in.queue where v_stored is not null and (v_queue.fair or v_queue.by_kind
    or v_queue.lease_limit is not null);
  perform holdfast.wake(array[take_in.queue], cardinality(v_stored)) where v_stored is not null;
  return v_stored;
end
$$;
