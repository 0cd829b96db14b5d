-- Why the last claim of an adopted table gave nothing, if no single row was the reason; null once a claim has worked.
alter table holdfast.adopted add column fault text;
