-- Links by which a person without an account answers one wait of one job. Of the secret there is only a hash.
create table holdfast.reply_link (
  id         text collate "C" primary key,
  hash       bytea       not null,
  job        uuid        not null,                      -- the id that it had when the link was made
  step       text collate "C" not null,                 -- the wait, by the name of its step
  question   text,
  created_at timestamptz not null,
  created_by text,
  expires_at timestamptz not null,
  used_at    timestamptz,
  revoked_at timestamptz
);
create index reply_link_expires on holdfast.reply_link (expires_at);
