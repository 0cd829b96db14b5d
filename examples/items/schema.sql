create table if not exists item (
  id bigint generated always as identity primary key,
  name text not null unique
);

create table if not exists item_price (
  id bigint generated always as identity primary key,
  item_id bigint not null references item on delete cascade,
  price numeric not null,
  seen_at timestamptz not null default now()
);

create index if not exists item_price_newest on item_price (item_id, id desc);

create table if not exists item_trend (
  item_id bigint primary key references item on delete cascade,
  move double precision not null
);

-- The jobs of an item go with it, in the transaction that deletes it, whoever that is. What runs at
-- that moment finds no item any more, and cancels itself.
create or replace function forget_item() returns trigger language plpgsql as $$
begin
  perform holdfast.delete(holdfast.find(format('subject:item/%s -state:leased', old.id)));
  return null;
end $$;

create or replace trigger forget_item after delete on item for each row execute function forget_item();
