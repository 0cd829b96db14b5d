-- How long dead jobs have waited for a person, queue by queue, without looking at all of them.
create index dead_queue on holdfast.dead (queue, ended_at);
