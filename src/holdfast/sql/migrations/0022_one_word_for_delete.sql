-- To delete jobs is called delete wherever it is said: the operation of it too.
alter table holdfast.operation drop constraint "verb is retry, cancel, archive, purge, move or undo";
update holdfast.operation set verb = 'delete' where verb = 'purge';
alter table holdfast.operation add constraint "verb is retry, cancel, archive, delete, move or undo"
  check (verb in ('retry', 'cancel', 'archive', 'delete', 'move', 'undo'));
